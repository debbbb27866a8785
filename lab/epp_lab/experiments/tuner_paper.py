"""The published online tuner on its window: what its figure 3 shows, by seed, and what it finds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epp_lab.compare.fleets import calibrated
from epp_lab.compare.hillclimb import hillclimb
from epp_lab.experiment import Experiment
from epp_lab.sim.run import run_window
from epp_lab.tuner.hillclimb import BOX, START, EsPaper
from epp_lab.tuner_life import (
    HELD_OUT_SEED,
    OPEN,
    REGIONS,
    SEARCHED_SEED,
    WINDOW_S,
    LifeCell,
    defaults_of,
    p95s,
)
from epp_lab.workloads.art_chat import APR_5

if TYPE_CHECKING:
    from collections.abc import Mapping

PUBLISHED = "published weights"
#: The paper's window of samples, and that of its authors' later text.
WINDOWS = {"search, windows of 128": 128, "search, windows of 64": 64}
DURATION_S = 1800.0
_FREE = (
    1.4,
    {"rtt_weight": 0.5, "queue_weight": 1e-4},
    {"rtt_weight": (0.05, 50.0), "queue_weight": (1e-4, 5.0)},
)
#: Fleet, requests a second, start and box: as published on the fleet of all tables, on caches that keep every
#: token, and on both with a queue whose price may go.
CELLS = {
    "as published": (calibrated(REGIONS), 4.2, START, BOX),
    "exact caches": (REGIONS, 4.2, START, BOX),
    "queue may be free": (REGIONS, *_FREE),
    "queue may be free / calibrated": (calibrated(REGIONS), *_FREE),
}


def searched(cell: LifeCell, search: EsPaper) -> EsPaper:
    """Let the search tune a deployment until it stops or the window ends."""
    load = cell.load(SEARCHED_SEED, DURATION_S)
    hillclimb(load, cell.fleet, search, seed=0, options=OPEN).run_until(lambda: search.stopped)
    return search


def held_out(cell: LifeCell, weights: Mapping[str, float]) -> dict[str, float]:
    """Measure weights on a load that nothing was searched on."""
    load = cell.load(HELD_OUT_SEED, WINDOW_S)
    results = run_window(load, cell.fleet, "gorgo", weights, seed=7, options=OPEN).requests
    served = [result.endpoint for result in results if result.ok]
    hottest = max(map(served.count, set(served))) / len(served)
    return {**p95s(results), "hottest_share": hottest}


def run(cell: str, entry: str, seed: int) -> dict[str, float]:
    """Search once by a seed of its own; the load is the same for all."""
    fleet, rate_rps, start, box = CELLS[cell]
    place = LifeCell(fleet, APR_5, rate_rps)
    if entry == PUBLISHED:
        weights = defaults_of("gorgo")
        return {**{name: weights[name] for name in start}, **held_out(place, weights)}
    search = searched(place, EsPaper(seed=seed, window=WINDOWS[entry], start=start, box=box))
    shown = {"steps": search.steps, "samples": search.samples, "best_score_s": search.best_score}
    return {**search.best, **shown, **held_out(place, search.best)}


EXPERIMENT = Experiment(
    question="Which weights does the published search find, how soon, and what are they worth?",
    cells=CELLS,
    entries=(PUBLISHED, *WINDOWS),
    measures=(
        *("rtt_weight", "queue_weight", "steps", "samples", "best_score_s"),
        *("ttft_p95_ms", "e2e_p95_ms", "hottest_share"),
    ),
    ranges=("rtt_weight", "queue_weight", "steps", "samples", "best_score_s"),
    run=run,
    minutes=13,
    seeds=50,
)
