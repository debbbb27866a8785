"""Run the first command of each page with simulated figures, at one commit.

    make measured ARGS="--traces DIR"     # or python -m epp_lab.measured; goes on where it was
    make measured ARGS="--again '--first-seed 100 --seeds 4'"

Runs are kept in ``build/measured/COMMIT``, what each command printed beside them. A verdict is how a figure
stands to its baseline's: lower, higher, or level where the interval holds 1. Where it differs from that of
the commit measured before, or with ``--again`` from that of the usual seeds, the command says so.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from epp.errors import EppError
from epp_lab import experiment
from epp_lab.compare import command as compare
from epp_lab.compare.plan import number_from
from epp_lab.origin import current_commit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    Verdicts = Mapping[str, str]

#: CPU time of all, in hours.
HOURS = 14.0
_FOLDER = Path("build", "measured")
#: Where `make bench-vllm` leaves the fleet like its engines.
_FLEET = Path("build", "vllm", "fleet.json")


class Row(NamedTuple):
    """Figures of a page.

    Attributes:
        page: below ``docs``; it names the command.
        words: of `epp lab`.
        stated_min: CPU time, about, where it is not the experiment's own.
        traces: it reads recorded traces.
    """

    page: str
    words: str
    stated_min: float | None = None
    traces: bool = False

    @property
    def minutes(self) -> float:
        """CPU time, about: it is not begun when less is left."""
        name = shlex.split(self.words)[1]
        return experiment.find(name).minutes if self.stated_min is None else self.stated_min


_PICKERS = "--fleet one-region --policy gorgo-ms --pickers"
ROWS = (
    Row("measured/multi-region.md", "experiments wan"),
    Row("laar.md", "experiments laar --seeds 40", 11),
    Row("measured/lodestar.md", "experiments lodestar-gate --cells l20-a30", 2),
    Row("tuner.md", "experiments tuner-guard"),
    Row("tuner.md", "experiments tuner-paper"),
    Row("measured/multi-region.md", "experiments network"),
    Row("measured/policies.md", "experiments policy-knowledge"),
    Row("measured/policies.md", "experiments policies --seeds 7", 17),
    Row("measured/policies.md", "experiments policies-fresh", traces=True),
    Row("scale.md", 'experiments pickers --cells "1000 endpoints" --seeds 2', 7.5),
    Row("measured/cluster.md", "experiments pickers"),
    Row("measured/multi-region.md", "experiments sketch"),
    Row("tuner.md", "experiments tuner-drift"),
    Row("measured/simulator.md", "experiments gorgo-paper"),
    Row("measured/multi-region.md", "experiments regions"),
    Row("measured/lodestar.md", "experiments lodestar-promotion"),
    Row("measured/calibration.md", "experiments calibration --fleet fleet.json"),
    Row("measured/disaggregation.md", "experiments tension", traces=True),
    Row("measured/disaggregation.md", "experiments pairs", traces=True),
    Row(
        "measured/agents.md",
        "experiments agents --first-seed 10 --seeds 10 --entries early,programs,affinity --cells "
        + ",".join(map(str, range(25, 49))),
        40,
        traces=True,
    ),
    Row("measured/kv-events.md", "experiments events --seeds 20", traces=True),
    *(
        Row(
            "measured/cluster.md",
            "compare --workload mooncake-chat,agent-sessions,art-chat"
            f" {_PICKERS} 1,4 --share {shared} --seeds 20",
            12,
        )
        for shared in ("all", "none")
    ),
    Row(
        "measured/cluster.md", f"compare --workload agent-sessions,art-chat {_PICKERS} 1,2,4,8 --seeds 20", 19
    ),
    Row("measured/lodestar.md", "experiments lodestar"),
    Row(
        "measured/lodestar.md",
        "compare --workload shared-10,shared-30,shared-50,shared-70 --fleet homo"
        " --policy lodestar,prefix-cache-and-load,gorgo-ms,mooncake --seeds 4",
        9,
    ),
    Row("measured/queue.md", "experiments queue --seeds 20", traces=True),
    Row("tuner.md", "experiments tuner-runs --seeds 3", 92),
)


class SkippedError(EppError):
    """It cannot be run here."""


def _experiment(words: Sequence[str], kept: Path, jobs: int, again: Sequence[str]) -> tuple[float, Verdicts]:
    """Run an experiment; its minutes and verdicts."""
    name, *options = *words, *again
    found = experiment.find(name)
    if found.takes_fleet:
        if not _FLEET.exists():
            raise SkippedError(f"needs {_FLEET}, which `make bench-vllm` writes")
        options[options.index("--fleet") + 1] = str(_FLEET)
    file = kept.with_suffix(".jsonl")
    experiment.main(name, found, [*options, "--jobs", str(jobs), "--kept", str(file)])
    runs = experiment.read_kept(file)
    verdicts = {" | ".join(key): word for key, word in experiment.verdicts(found, runs).items()}
    return experiment.minutes_of(runs), verdicts


def _compare(words: Sequence[str], kept: Path, jobs: int, again: Sequence[str]) -> tuple[float, Verdicts]:
    """Run a comparison; its minutes and verdicts."""
    if again:
        raise SkippedError("it has no other seeds")
    parser = argparse.ArgumentParser()
    compare.add_arguments(parser)
    before_s = sum(os.times()[:4])
    compare.run(parser.parse_args([*words, "--workers", str(jobs), "--out", str(kept)]))
    minutes = (sum(os.times()[:4]) - before_s) / 60.0
    verdicts = {}
    for cell in json.loads((kept / "results.json").read_bytes())["cells"]:
        for each in cell["comparisons"]:
            for name, ends in each["to_candidate"].items():
                low, high = (math.nan if ends[end] is None else ends[end] for end in ("low", "high"))
                verdicts[f"{cell['name']} | {name} | {each['label']}"] = experiment.standing(low, high)
    return minutes, verdicts


_WAYS: Mapping[str, Callable[..., tuple[float, Verdicts]]] = {"experiments": _experiment, "compare": _compare}


def measure(
    row: Row, folder: Path, *, number: int, jobs: int, left_min: float, again: Sequence[str]
) -> float:
    """Make a page's figures unless they are there; the minutes that they took.

    Raises:
        SkippedError: it cannot be run here.
    """
    kept = folder / f"{number:02}"
    done, text = kept.with_suffix(".json"), kept.with_suffix(".txt")
    if done.exists():
        return float(json.loads(done.read_bytes())["minutes"])
    if row.traces and "EPP_TRACES" not in os.environ:
        raise SkippedError("needs --traces DIR")
    if row.minutes > left_min:
        raise SkippedError(f"takes {row.minutes:g} min, and {left_min:.0f} are left")
    way, *words = shlex.split(row.words)
    with text.open("w", encoding="utf-8") as out, contextlib.redirect_stdout(out):
        minutes, verdicts = _WAYS[way](words, kept, jobs, again)
    told = {"command": f"epp lab {row.words}", "minutes": round(minutes, 2), "verdicts": verdicts}
    done.write_text(json.dumps(told, indent=1), encoding="utf-8")
    return minutes


def changes(folder: Path, before: Path | None) -> Iterator[str]:
    """Say where a verdict differs from that of a commit measured before."""
    earlier = {told["command"]: told["verdicts"] for told in _told(before)} if before else {}
    for told in _told(folder):
        for place, word in told["verdicts"].items():
            was = earlier.get(told["command"], {}).get(place, word)
            if was != word:
                yield f"{told['command']}: {place}: was {was}, is {word}"


def _told(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_bytes()) for path in sorted(folder.glob("*.json"))]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure all that can be, and print minutes, what was skipped, and where verdicts changed."""
    parser = argparse.ArgumentParser(prog="python -m epp_lab.measured", description=__doc__)
    add = parser.add_argument
    add("--traces", type=Path, metavar="DIR", help="folder of the recorded traces (EPP_TRACES)")
    add("--only", default="", metavar="TEXT", help="pages and commands with this text in them")
    add("--jobs", type=number_from(1), default=2, help="processes (%(default)s)")
    add("--hours", type=number_from(0, float), default=HOURS, help="of CPU, at most (%(default)s)")
    add("--again", default="", metavar="WORDS", help="run experiments with these as well, for other seeds")
    arguments = parser.parse_args(argv)
    commit = current_commit()
    if commit.endswith("-dirty"):
        parser.error("the tree has changes: commit them, so that the figures are of one commit")
    if arguments.traces is not None:
        os.environ["EPP_TRACES"] = str(arguments.traces.resolve())
    usual, again = _FOLDER / commit, shlex.split(arguments.again)
    folder = Path("-".join([str(usual), *(word.lstrip("-") for word in again)]))
    kept = [path for path in _FOLDER.glob("*") if path != folder]
    others = [path for path in kept if (path == usual if again else not path.name.startswith(commit))]
    folder.mkdir(parents=True, exist_ok=True)
    spent_min = 0.0
    for number, row in enumerate(ROWS):
        if arguments.only not in f"{row.page} {row.words}":
            continue
        left_min = 60.0 * arguments.hours - spent_min
        try:
            minutes = measure(row, folder, number=number, jobs=arguments.jobs, left_min=left_min, again=again)
        except (EppError, OSError) as error:
            print(f"{row.page}: epp lab {row.words}: skipped: {error}", flush=True)
            continue
        spent_min += minutes
        print(f"{row.page}: epp lab {row.words}: {minutes:.1f} min, {folder}/{number:02}.txt", flush=True)
    print(f"{spent_min:.1f} min of CPU at commit {commit}")
    for sentence in changes(folder, max(others, key=lambda path: path.stat().st_mtime, default=None)):
        print(sentence)
    return 0


if __name__ == "__main__":
    sys.exit(main())
