"""The tuner measured: ``python -m bench.tuner``; ``--full`` for hours of it.

In this order, each with its n: the published search on its window, and the weights that it ends with over
seeds; the published search where the queue may be left out, and a candidate that herds, proposed to ours;
tuning runs, with harm on windows held out, met by both sets of weights alike; a drift. Runs are kept in
``--folder``: what was run once, of the same source, is not run again, and a run may be stopped. Without
``--full`` each part gets its share of ``--minutes`` and starts no further run beyond it.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from bench import tuner_parts
from bench.policy_runs import PACKAGE, source_digest
from bench.tuner_report import page, text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: Tuned policies: the published weights of the one, perturbed ones of the other.
_POLICIES = ("gorgo-ms", "gorgo")


@dataclass(frozen=True, slots=True)
class Part:
    """One measurement over seeds.

    Attributes:
        name: of it.
        share: of the minutes.
        runs: label and work, in order.
    """

    name: str
    share: float
    runs: Sequence[tuple[str, Callable[[], dict[str, Any]]]]


class _Line(msgspec.Struct, frozen=True):
    key: str
    part: str
    figures: dict[str, Any]


def parts(*, full: bool) -> list[Part]:
    """What is run, in order."""
    seeds, hours = 50, 30 if full else 6
    windows, budget = (30, 48) if full else (4, 16)
    patience = 5 if full else 1
    window_s, runs, drifts = 1800.0, 100 if full else 10, 8 if full else 1
    p = tuner_parts
    return [
        Part(
            "published",
            0.15,
            [
                (f"{n} {window_s:g}", partial(p.es_paper, n, free=False, duration_s=window_s))
                for n in range(seeds)
            ],
        ),
        Part(
            "unbounded",
            0.15,
            [
                (f"{n} {window_s:g} no queue", partial(p.es_paper, n, free=True, duration_s=window_s))
                for n in range(seeds)
            ],
        ),
        Part(
            "free rider",
            0.25,
            [(f"{n} {hours}", partial(p.free_rider, n, hours=hours)) for n in range(50 if full else 20)],
        ),
        Part(
            "tuning",
            0.3,
            [
                (
                    f"{name} {n} {hours} {windows} {budget}" + (f" {patience}" if full else ""),
                    partial(
                        p.tuning_run,
                        name,
                        n,
                        hours=hours,
                        windows=windows,
                        budget=budget,
                        patience=patience,
                    ),
                )
                for n in range(runs)
                for name in _POLICIES
            ],
        ),
        Part(
            "drift",
            0.15,
            [
                (f"{n} {hours} {budget}", partial(p.drift, n, hours=hours, budget=budget))
                for n in range(drifts)
            ],
        ),
    ]


def main() -> int:
    """Run what is asked for and print what is known."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--full", action="store_true", help="no limit of time, all seeds")
    parser.add_argument("--minutes", type=float, default=18.0, help="for all parts, without --full")
    parser.add_argument("--parts", default="", help="names joined by commas, all when left out")
    parser.add_argument("--folder", type=Path, default=Path("build/tuner"))
    parser.add_argument("--any-source", action="store_true", help="take kept runs of other sources too")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    digest = "" if arguments.any_source else source()
    wanted = [name.strip() for name in arguments.parts.split(",")] if arguments.parts else []
    found: dict[str, list[dict[str, Any]]] = {}
    for part in parts(full=arguments.full):
        limit_s = float("inf") if arguments.full else part.share * arguments.minutes * 60.0
        done = _run(part, arguments.folder, digest, limit_s if not wanted or part.name in wanted else 0.0)
        found[part.name] = done
    print(text_of(found))
    (arguments.folder / "report.html").write_text(page(found))
    print(f"\nWritten: {arguments.folder}/report.html")
    return 0


def source() -> str:
    """Of everything that decides what a run comes to."""
    digest = hashlib.sha256(source_digest().encode())
    here = [Path(tuner_parts.__file__), PACKAGE / "demo" / "tuner.py", PACKAGE / "demo" / "tuner_world.py"]
    for file in [*here, PACKAGE / "tune" / "rehearse.py", *sorted((PACKAGE / "tuner").glob("*.py"))]:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _run(part: Part, folder: Path, digest: str, limit_s: float) -> list[dict[str, Any]]:
    path = folder / f"{part.name.replace(', ', '-').replace(' ', '-')}.jsonl"
    known = {line.key: line.figures for line in _lines(path)}
    until_s, out = time.monotonic() + limit_s, []
    with path.open("ab") as file:
        for label, work in part.runs:
            key = f"{digest} {label}"
            if not digest:
                key = next((name for name in known if name.split(" ", 1)[1] == label), key)
            if key not in known:
                if time.monotonic() >= until_s:
                    continue
                known[key] = msgspec.json.decode(msgspec.json.encode(work()))
                file.write(msgspec.json.encode(_Line(key, part.name, known[key])) + b"\n")
                file.flush()
                print(f"{part.name}: {label} done", file=sys.stderr, flush=True)
            out.append(known[key])
    return out


def _lines(path: Path) -> list[_Line]:
    """The lines of a file; the last may be half of one."""
    out = []
    for text in path.read_bytes().splitlines() if path.exists() else []:
        try:
            out.append(msgspec.json.decode(text, type=_Line))
        except msgspec.DecodeError:
            continue
    return out


if __name__ == "__main__":
    sys.exit(main())
