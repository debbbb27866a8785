"""Searches beside each other in rehearsals: what the weights that they recommend are worth, by measurements.

Where `bench.tuner_search` has random surfaces with noise of its own for each measurement, these are simulated
cells: all measurements of a rehearsal meet the same two windows, so that noise is shared, and small. What is
recommended is judged on windows that nothing was searched on, by the search's own price against the start
(`epp.tune.rehearse.Stage.cost`), in %; below zero is better.

    python -m bench.tuner_rehearsals --runs 2
"""

from __future__ import annotations

import argparse
import math
from statistics import mean, median
from typing import TYPE_CHECKING

import numpy as np
from cmaes import CMA

from bench.tuner_cells import CELLS
from bench.tuner_runs import HELD_OUT, OPEN, perturbed
from epp.demo.tuner import rules_of
from epp.tune.calibrate import Deployment
from epp.tune.rehearse import SEARCH_WINDOWS, Stage
from epp.tuner.search import FIRST_STEP, Search

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from bench.tuner_cells import Cell

PLACES = (
    "short prompts / mixed engines | gorgo",
    "busy chat / mixed engines | gorgo-ms",
    "busy chat / one region | gorgo",
    "long conversations / one region | gorgo-ms",
    "chat / three regions | gorgo-ms",
)
_BUDGETS = (24, 64, 120)
_REQUESTS, _JUDGED = 600, 16


def with_step(step: float, *, adapted: bool) -> Callable[[Mapping[str, float], str, int], Search]:
    """The default search with another first step, and with learning rates that adapt to noise."""

    def begun(start: Mapping[str, float], policy: str, seed: int) -> Search:
        search = Search(start, rules_of(policy).bounds, seed=seed)
        cma = search._optimizer  # noqa: SLF001 - what is compared
        size = len(cma.mean)
        search._optimizer = CMA(  # noqa: SLF001 - likewise
            mean=cma.mean,
            sigma=step,
            bounds=np.tile([0.0, 1.0], (size, 1)),
            seed=seed & 0xFFFF_FFFF,
            lr_adapt=adapted,
        )
        return search

    return begun


SEARCHES = {
    f"default, first step {FIRST_STEP:g}": with_step(FIRST_STEP, adapted=False),
    "first step 0.15": with_step(0.15, adapted=False),
    "first step 0.3": with_step(0.3, adapted=False),
    "first step 0.15, learning rates adapted to noise": with_step(0.15, adapted=True),
}


def stage_of(cell: Cell, policy: str, first_seed: int, windows: int) -> Stage:
    """Windows of loads of their own."""
    deployment = Deployment(
        policy=policy,
        params={},
        weights={},
        fleet=cell.fleet,
        trace=cell.load(first_seed, windows * _REQUESTS / cell.rate_rps),
        ttft_p95_ms=math.nan,
        e2e_p95_ms=math.nan,
        notes=(),
    )
    return Stage(deployment, OPEN, 7, _REQUESTS)


def searched(search: Search, stage: Stage, start: Mapping[str, float], budget: int) -> dict[str, float]:
    """What it recommends after so many measurements in all."""
    while not search.stop(budget=budget):
        window = stage.windows[search.told % SEARCH_WINDOWS]
        search.tell(stage.cost(window, search.ask(), start))
    return search.recommend()


def worth(stage: Stage, weights: Mapping[str, float], start: Mapping[str, float]) -> float:
    """Held out, in %."""
    return 100.0 * mean(stage.cost(window, weights, start) for window in stage.windows)


def main() -> None:
    """Print one row a search: mean and median over cells and starts, by measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=2, help="starts of each cell")
    runs = parser.parse_args().runs
    found: dict[tuple[str, int], list[float]] = {}
    for place in PLACES:
        name, policy = place.split(" | ")
        judged = stage_of(CELLS[name], policy, HELD_OUT, _JUDGED)
        for seed in range(runs):
            start = perturbed(policy, seed)
            stage = stage_of(CELLS[name], policy, 1000 * seed + 50, SEARCH_WINDOWS)
            for label, begun in SEARCHES.items():
                search = begun(start, policy, seed)
                for budget in _BUDGETS:
                    weights = searched(search, stage, start, budget)
                    found.setdefault((label, budget), []).append(worth(judged, weights, start))
    print("| search | " + " | ".join(f"{budget} measurements" for budget in _BUDGETS) + " |")
    print("|---" * (len(_BUDGETS) + 1) + "|")
    for label in SEARCHES:
        cells = [found[label, budget] for budget in _BUDGETS]
        print(f"| {label} | " + " | ".join(f"{mean(c):+.1f} / {median(c):+.1f}" for c in cells) + " |")


if __name__ == "__main__":
    main()
