"""Lodestar measured in simulated pools, in virtual time: what the paper shows, told as it comes out here.

    python -m bench.lodestar            # the short run: begins nothing after 17 minutes; called again goes on
    python -m bench.lodestar --smoke    # does it run at all: a minute, figures without meaning
    python -m bench.lodestar --all      # all cells at the short size
    python -m bench.lodestar --full     # the paper's sizes, all cells; hours, may be stopped and gone on with
    python -m bench.lodestar --tune     # search the heuristic's constants again, for each cell

Learns within each run, from nothing: the first requests are the heuristic's (`epp.replay.learned`). In the
long cells the learned policy is tried as in production, too, by the tuner's machine, and promoted by it
alone. The heuristic is Algorithm 1 with constants tuned for each cell on a load that is not judged on, kept
in ``bench/lodestar_weights.json``; with live counts, and as the paper ran it with the engines' own each 100
ms. Judged is what was due after the second round would be over, the same requests for all; whole runs stand
beside it. Writes ``results.json`` and ``report.html`` into ``--out``. Runs are kept in ``--folder`` and not
run twice. Time is virtual: a slow machine changes how long this takes, and nothing else.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from bench.lodestar_cells import CELLS, ENTRIES, FULL, GRID, HEURISTIC, SEEDS, SHORT, SMOKE
from bench.lodestar_report import page, text_of
from bench.lodestar_runs import Job, Shelf, in_order, source, tune
from bench.lodestar_summary import summarise
from bench.policy_figures import written

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.lodestar_cells import Cell, Entry, Size

PAGE = Path(__file__).parent.parent / "docs" / "lodestar.md"
WEIGHTS = Path(__file__).parent / "lodestar_weights.json"
_SHORT_MINUTES = 17.0

Weights = dict[str, dict[str, tuple[float, float]]]


def main() -> int:
    """Run what is asked for."""
    arguments = _arguments()
    size = SMOKE if arguments.smoke else FULL if arguments.full else SHORT
    every = arguments.full or arguments.all
    cells = [cell for cell in CELLS if (every or cell.core) and _named(cell.name, arguments.cells)]
    entries = [e for e in ENTRIES if (arguments.full or e.core) and _named(e.label, arguments.entries)]
    if not cells or not entries:
        sys.exit("--cells, --entries: nothing in this run has such a name; --all and --full have more")
    began_s = time.monotonic()
    weights = _weights(cells, size, arguments)
    seeds = SEEDS[: arguments.seeds or (len(SEEDS) if arguments.full else 1 if arguments.smoke else 3)]
    minutes = arguments.minutes or (1e6 if arguments.full else _SHORT_MINUTES)
    shelf = Shelf(arguments.folder, "" if arguments.any_source else source())
    jobs = {seed: _jobs(cells, entries, size, seed, weights) for seed in seeds}
    if not arguments.kept_only:
        shelf.work(
            [job for seed in seeds for job in jobs[seed]],
            workers=arguments.workers,
            until_s=began_s + 60.0 * minutes,
            say=lambda text: print(
                f"{time.monotonic() - began_s:6.0f} s  {text}", file=sys.stderr, flush=True
            ),
        )
    runs = [found for seed in seeds for job in jobs[seed] if (found := shelf.of(job)) is not None]
    if not runs:
        sys.exit("nothing was run yet; call again to go on")
    result = summarise(cells, size, seeds, weights, runs)
    print(text_of(result))
    if arguments.page:
        PAGE.write_text(written(PAGE.read_text(), arguments.page, text_of(result).splitlines()))
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "results.json").write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1))
    (arguments.out / "report.html").write_text(page(result), encoding="utf-8")
    print(f"\nWritten: {arguments.out}/results.json, {arguments.out}/report.html")
    return 0


def _named(name: str, wanted: str) -> bool:
    return not wanted or any(part.strip() in name for part in wanted.split(","))


def _jobs(
    cells: Sequence[Cell], entries: Sequence[Entry], size: Size, seed: int, weights: Weights
) -> list[Job]:
    """Those that must be compared with come first."""
    out = []
    for entry in entries:
        for cell in cells:
            if entry.runs_on(cell):
                label = HEURISTIC if entry.learns else entry.label
                pair = weights.get(cell.name, {}).get(label, GRID[0])
                out.append(Job(cell.name, entry.label, seed, size.name, pair))
    return out


def _weights(cells: Sequence[Cell], size: Size, arguments: argparse.Namespace) -> Weights:
    """The heuristic's constants for each cell: from the file, or searched for and written to it."""
    kept: Weights = {}
    if WEIGHTS.exists():
        kept = msgspec.json.decode(WEIGHTS.read_bytes(), type=Weights)
    if not arguments.tune:
        return kept
    tuned = [entry for entry in ENTRIES if entry.policy == HEURISTIC]
    jobs = [Job(c.name, e.label, 0, size.name, pair) for c in cells for e in tuned for pair in GRID]
    best: dict[tuple[str, str], float] = {}
    for job, mean_ms in in_order(tune, jobs, workers=arguments.workers, until_s=float("inf")):
        print(f"tuning {job.cell}, {job.entry}, {job.weights}: {mean_ms:.0f} ms", file=sys.stderr, flush=True)
        if mean_ms < best.get((job.cell, job.entry), float("inf")):
            best[job.cell, job.entry] = mean_ms
            kept.setdefault(job.cell, {})[job.entry] = job.weights
    ordered = {cell: dict(sorted(kept[cell].items())) for cell in sorted(kept)}
    WEIGHTS.write_bytes(msgspec.json.format(msgspec.json.encode(ordered), indent=1) + b"\n")
    return kept


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    sizes = parser.add_mutually_exclusive_group()
    sizes.add_argument("--smoke", "--short", action="store_true", help="tiny: whether it runs")
    sizes.add_argument("--full", action="store_true", help="the paper's sizes, all cells and entries")
    parser.add_argument("--all", action="store_true", help="all cells also in the short size")
    parser.add_argument("--cells", default="", help="only cells whose name holds one of these, by commas")
    parser.add_argument(
        "--entries", default="", help="only entries whose label holds one of these, by commas"
    )
    parser.add_argument("--seeds", type=int, default=0, help="how many")
    parser.add_argument(
        "--tune", action="store_true", help=f"search the heuristic's constants, keep them in {WEIGHTS}"
    )
    parser.add_argument("--minutes", type=float, default=0.0, help="begin no run after so long")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=Path("build/lodestar-runs"))
    parser.add_argument("--any-source", action="store_true", help="take runs of other source, too")
    parser.add_argument(
        "--kept-only", action="store_true", help="run nothing: report the seeds that were run"
    )
    parser.add_argument("--page", default="", help=f"write the tables into that place of {PAGE.name}")
    parser.add_argument("--out", type=Path, default=Path("build/lodestar"), help="where the report goes")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
