"""Policies judged on the cells of `epp.replay.policy_cells`: tuned alike, run on the same loads, compared.

    python -m bench.policies                       # the short run: at most 20 minutes; goes on
    python -m bench.policies --wide                # many more cells, each shorter, and fewer policies
    python -m bench.policies --full                # everything; may be stopped and gone on with
    python -m bench.policies --development --cells "art-chat ts 1" --entries gorgo-ms,lmetric

Prints the table, and writes ``report.html``, ``results.json`` and a page for each cell into ``--out``. The
short run takes the first ten minutes of few cells, the baselines that come near the best, and the tuned
weights that ``bench/policy_weights.json`` keeps; ``--tune`` makes that file, and does no more where the
candidate is not among ``--entries``. Runs are kept in ``--folder``: what was run once, of the same source, is
not run again. The short run goes seed by seed and begins none that would not end within ``--minutes``: on a
slow machine it tells of fewer seeds, and called again it goes on.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from bench.policy_entries import (
    ABLATIONS,
    CANDIDATE,
    ENTRIES,
    SHORT,
    WIDE,
    Weights,
    cells_of,
    chosen,
    tuning_tasks,
)
from bench.policy_figures import written
from bench.policy_report import text_of, write_report
from bench.policy_runs import Shelf, TimeLimit, digest_of
from bench.policy_summary import CellRuns, summarise
from epp.replay.policy_cells import DEVELOPMENT_SEEDS, SCORING_SEEDS
from epp.replay.simulate import Outcome, Task

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.policy_entries import Entry
    from bench.policy_summary import Summary
    from epp.replay.policy_cells import PolicyCell

PAGE = Path(__file__).parent.parent / "docs" / "gorgo-ms.md"
WEIGHTS = Path(__file__).parent / "policy_weights.json"
_SHORT_S, _SHORT_SEEDS, _FULL_SEEDS = 600.0, 5, 20
#: The short run's; what is left of 20 is for setting up, and for a seed that takes longer than those before.
_SHORT_MINUTES = 16.0
_WIDE_S, _WIDE_SEEDS = 300.0, 3
_SHORT_BUDGET, _FULL_BUDGET = 8, 24


def main() -> int:
    """Run what is asked for."""
    arguments = _arguments()
    entries = _entries(arguments)
    compared = _compared(entries, tune=arguments.tune)
    short = not (arguments.full or arguments.wide)
    cells = cells_of(arguments.cells, core=short, seconds=arguments.seconds)
    if not cells:
        first = cells_of("", core=short, seconds=0.0)[0]
        sys.exit(f"--cells: no cell's name holds {arguments.cells!r}; one is {first.name!r}")
    digest = _any_source if arguments.any_source else digest_of
    shelf = Shelf(arguments.folder, workers=arguments.workers, digest=digest, on_done=_Progress())
    weights = _tuned(shelf, entries, cells, arguments)
    if not compared:
        print(f"the weights are in {WEIGHTS}; nothing is compared, for want of {CANDIDATE!r}")
        return 0
    seeds = (DEVELOPMENT_SEEDS if arguments.development else SCORING_SEEDS)[: arguments.seeds]
    limit = TimeLimit(60.0 * arguments.minutes, time.monotonic)
    runs = _run(shelf, entries, cells, seeds, weights, kept_only=arguments.kept_only, limit=limit)
    _tell(limit, len(runs[0].seeds), len(seeds))
    summary = summarise(runs, {entry.label: entry for entry in entries})
    print(text_of(summary, runs))
    if arguments.page:
        PAGE.write_text(written(PAGE.read_text(), arguments.page, _page(summary, runs, arguments.seconds)))
    if arguments.out:
        write_report(arguments.out, summary, runs)
        print(f"\nWritten: {arguments.out}/results.json, {arguments.out}/report.html")
    return 0


def _page(summary: Summary, runs: Sequence[CellRuns], seconds: float) -> list[str]:
    window = f"the first {seconds:.0f} s of each window" if seconds else "whole windows"
    seeds = runs[0].seeds
    return [f"{len(runs)} cells, seeds {seeds[0]} to {seeds[-1]}, {window}.", "", text_of(summary, runs)]


def _entries(arguments: argparse.Namespace) -> list[Entry]:
    known = [*ENTRIES, *(ABLATIONS if arguments.ablations else ())]
    if arguments.entries:
        wanted = [part.strip() for part in arguments.entries.split(",")]
        labels = {entry.label for entry in known}
        for label in wanted:
            if label not in labels:
                sys.exit(f"no entry {label!r}; one of: {', '.join(sorted(labels))}")
        return [entry for entry in known if entry.label in wanted]
    if arguments.full:
        return known
    labels = set(WIDE if arguments.wide else SHORT)
    return [entry for entry in known if entry.label in labels or entry in ABLATIONS]


def _compared(entries: Sequence[Entry], *, tune: bool) -> bool:
    """Whether there is a comparison; without the candidate there is none, and only weights can be wanted."""
    if any(entry.label == CANDIDATE for entry in entries):
        return True
    if not tune:
        sys.exit(
            f"--entries: {CANDIDATE!r} must be among them, the others are compared with it; "
            "--tune goes without, and only searches for weights"
        )
    if not any(entry.tuned for entry in entries):
        sys.exit(
            f"--entries: none of them has weights to search for, and without {CANDIDATE!r} none is compared"
        )
    return False


def _tuned(
    shelf: Shelf, entries: Sequence[Entry], cells: Sequence[PolicyCell], arguments: argparse.Namespace
) -> Weights:
    """From the file, or searched for and written to it."""
    by: dict[str, dict[str, dict[str, float]]] = {}
    if WEIGHTS.exists():
        by = msgspec.json.decode(WEIGHTS.read_bytes(), type=dict[str, dict[str, dict[str, float]]])
    if arguments.tune:
        tasks = tuning_tasks(entries, cells, arguments.budget)
        found = shelf.tune([task for _, _, task in tasks])
        for (label, load, _), tuned in zip(tasks, found, strict=True):
            by.setdefault(label, {})[load] = {k: float(f"{v:.4g}") for k, v in tuned.weights.items()}
        ordered = {label: dict(sorted(by[label].items())) for label in sorted(by)}
        WEIGHTS.write_bytes(msgspec.json.format(msgspec.json.encode(ordered), indent=1) + b"\n")
    return Weights(by)


def _run(
    shelf: Shelf,
    entries: Sequence[Entry],
    cells: Sequence[PolicyCell],
    seeds: Sequence[int],
    weights: Weights,
    *,
    kept_only: bool,
    limit: TimeLimit,
) -> list[CellRuns]:
    """Seed by seed, so that a run that was stopped has whole seeds; ``kept_only`` runs no others."""
    plan = [
        (cell, entry, policy)
        for cell in cells
        for entry in entries
        if (policy := chosen(entry, cell, weights)) is not None
    ]
    by_seed = {
        seed: [Task(cell.cell, entry.fleet(cell), policy, seed) for cell, entry, policy in plan]
        for seed in seeds
    }
    if kept_only:
        by_seed = {seed: tasks for seed, tasks in by_seed.items() if shelf.has(tasks)}
        print(f"{len(by_seed)} of {len(seeds)} seeds were run", file=sys.stderr)
    if not by_seed:
        sys.exit("no seed has all its runs")
    outcomes, run_seeds = list[Outcome](), list[int]()
    for seed, tasks in by_seed.items():
        if run_seeds and not shelf.has(tasks) and not limit.fits_another():
            break
        outcomes += shelf.run(tasks)
        run_seeds.append(seed)
        limit.ended()
    runs = {cell.name: CellRuns(cell, run_seeds, {}, {}) for cell in cells}
    for number, (cell, entry, policy) in enumerate(plan):
        runs[cell.name].outcomes[entry.label] = outcomes[number :: len(plan)]
        runs[cell.name].weights[entry.label] = dict(policy.weights)
    return list(runs.values())


def _tell(limit: TimeLimit, done: int, wanted: int) -> None:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu_s = sum(each.ru_utime + each.ru_stime for each in used)
    took = f"{limit.spent_s:.0f} s, {cpu_s:.0f} s of CPU time"
    left = "; the time is over: called again, it goes on" if limit.limit_s and done < wanted else ""
    print(f"{done} of {wanted} seeds, {took}{left}", file=sys.stderr)


def _any_source(policy: str) -> str:  # noqa: ARG001 - in the place of `digest_of`
    return ""


class _Progress:
    """A line now and then on standard error."""

    def __init__(self) -> None:
        self._began_s = self._said_s = time.monotonic()

    def __call__(self, title: str, done: int, total: int) -> None:
        now_s = time.monotonic()
        if now_s - self._said_s > 15.0 or done == total:
            self._said_s = now_s
            print(f"{title}: {done} of {total}, {now_s - self._began_s:.0f} s", file=sys.stderr, flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--full", action="store_true", help="all cells, entries and seeds, whole windows")
    parser.add_argument("--wide", action="store_true", help="what the short run leaves out, in short windows")
    parser.add_argument("--cells", default="", help="only cells whose name holds one of these, by commas")
    parser.add_argument("--entries", default="", help="only these, by commas")
    parser.add_argument("--ablations", action="store_true", help="the candidate's ablations, too")
    parser.add_argument("--development", action="store_true", help="the seeds to look at while writing")
    parser.add_argument("--seeds", type=int, default=0, help="how many")
    parser.add_argument("--seconds", type=float, default=-1.0, help="of each window, 0 for the whole")
    parser.add_argument("--tune", action="store_true", help=f"search for weights, and keep them in {WEIGHTS}")
    parser.add_argument("--budget", type=int, default=0, help="weights that a search tries")
    parser.add_argument(
        "--minutes", type=float, default=-1.0, help="begin no seed that would end later, 0 for no limit"
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=Path("build/policy-runs"))
    parser.add_argument("--any-source", action="store_true", help="take runs of other source, too")
    parser.add_argument(
        "--kept-only", action="store_true", help="run nothing: report the seeds that were run"
    )
    parser.add_argument("--page", default="", help=f"write the tables into that place of {PAGE.name}")
    parser.add_argument("--out", type=Path, default=None, help="where the report goes")
    arguments = parser.parse_args()
    full, wide = arguments.full, arguments.wide
    arguments.cells = arguments.cells or ("wide" if wide else "")
    arguments.seeds = arguments.seeds or (_FULL_SEEDS if full else _WIDE_SEEDS if wide else _SHORT_SEEDS)
    arguments.budget = arguments.budget or (_FULL_BUDGET if full else _SHORT_BUDGET)
    if arguments.minutes < 0.0:
        arguments.minutes = 0.0 if full or wide else _SHORT_MINUTES
    if arguments.seconds < 0.0:
        arguments.seconds = 0.0 if full else _WIDE_S if wide else _SHORT_S
    return arguments


if __name__ == "__main__":
    sys.exit(main())
