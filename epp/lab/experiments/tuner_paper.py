"""The published online tuner on its window: what its figure 3 shows, by seed, and what it finds.

`EsPaper` is that tuner to the letter, faults included: for reproducing its figure, never for use. (1+1)-ES on
the logarithm of the weights with Rechenberg's 1/5 rule, source [G]. What is wrong with it, and is kept:
samples count at completion, whichever candidate dispatched them; windows of 128 hop by 32, so three quarters
of a window were seen before; the incumbent is never measured again; the score is negative, so
``score > best * (1 + 0.005)`` accepts what is up to 0.5 % worse; failed requests vanish; sigma has no
ceiling. `epp.learn.tuner.search` has none of this.
"""

from __future__ import annotations

import math
from collections import deque
from statistics import NormalDist
from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec

from epp.keyed_uniform import keyed_uniform
from epp.lab.compare.fleets import calibrated
from epp.lab.experiment import Experiment
from epp.lab.sim.run import run_window
from epp.lab.tuner_life import (
    HELD_OUT_SEED,
    OPEN,
    REGIONS,
    SEARCHED_SEED,
    WINDOW_S,
    Cell,
    Stretch,
    defaults_of,
    p95s,
)
from epp.lab.workloads.art_chat import APR_5

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epp.learn.tuner.samples import Sample

START: Mapping[str, float] = MappingProxyType({"rtt_weight": 0.5, "queue_weight": 0.1})
BOX: Mapping[str, tuple[float, float]] = MappingProxyType(
    {"rtt_weight": (0.05, 2.0), "queue_weight": (0.05, 0.5)}
)
_HOP = 32
_TOLERANCE = 0.005
_FACTOR = 0.817
_REMEMBERED = 8
_MAX_STEPS = 10_000
_SIGMA, _SIGMA_MIN = 0.5, 0.05
_TINY = 2.0**-54
_LARGEST = 100.0


class EsPaper:
    """Tell it the TTFT of each successful streaming request as it completes; live weights are `weights`.

    Args:
        seed: of its draws.
        window: samples that a score is made of; the paper's 128, 64 in its authors' later text.
        start: first weights; their first window is the baseline.
        box: range of each.
    """

    def __init__(
        self,
        seed: int,
        window: int = 128,
        start: Mapping[str, float] = START,
        box: Mapping[str, tuple[float, float]] = BOX,
    ) -> None:
        self._seed, self._window, self._box = seed, window, box
        self.weights, self.best = dict(start), dict(start)
        self.best_score, self.sigma = math.nan, _SIGMA
        self.steps = self.samples = 0
        self.stopped = ""
        self._newest: deque[float] = deque(maxlen=window)
        self._hopped = 0
        self._accepted: deque[bool] = deque(maxlen=_REMEMBERED)

    def tell(self, ttft_ms: float) -> bool:
        """Take one completed request; whether the live weights changed."""
        if self.stopped:
            return False
        self.samples += 1
        self._hopped += 1
        self._newest.append(ttft_ms)
        if self._hopped < _HOP or len(self._newest) < self._window:
            return False
        self._hopped, before = 0, self.weights
        # Negative p95 of the window in seconds, by the rounded index that its authors use.
        self._score(-sorted(self._newest)[round(0.95 * (self._window - 1))] / 1000.0)
        return self.weights != before

    def _score(self, score: float) -> None:
        first = math.isnan(self.best_score)
        accepted = first or score > self.best_score * (1.0 + _TOLERANCE)
        if accepted:
            self.best_score, self.best = score, dict(self.weights)
        if not first:
            self._accepted.append(accepted)
            self.steps += 1
            rate = sum(self._accepted) / _REMEMBERED
            if len(self._accepted) == _REMEMBERED:
                self.sigma *= _FACTOR if rate < 0.2 else 1.0 / _FACTOR
        if self.sigma < _SIGMA_MIN or self.steps >= _MAX_STEPS:
            self.stopped = "sigma is below its floor" if self.sigma < _SIGMA_MIN else "out of steps"
            self.weights = dict(self.best)
        else:
            self.weights = {name: self._moved(name, value) for name, value in self.best.items()}

    def _moved(self, name: str, value: float) -> float:
        draw = keyed_uniform(self._seed, str(self.steps + 1), f"es {name}")
        z, (low, high) = NormalDist().inv_cdf(draw + _TINY), self._box[name]
        moved = value * math.exp(min(self.sigma * z, _LARGEST))  # beyond it only the box counts
        return min(max(moved, low), high)


PUBLISHED = "published weights"
#: The paper's window of samples, and that of its authors' later text.
WINDOWS = {"search, windows of 128": 128, "search, windows of 64": 64}
DURATION_S = 1800.0
#: Fleet, requests a second, start and box: as published on the fleet of all tables, on caches that keep every
#: token, and with a queue whose price may go.
CELLS = {
    "as published": (calibrated(REGIONS), 4.2, START, BOX),
    "exact caches": (REGIONS, 4.2, START, BOX),
    "queue may be free": (
        REGIONS,
        1.4,
        {"rtt_weight": 0.5, "queue_weight": 1e-4},
        {"rtt_weight": (0.05, 50.0), "queue_weight": (1e-4, 5.0)},
    ),
}


def searched(cell: Cell, search: EsPaper) -> EsPaper:
    """Let the search tune a deployment until it stops or the window ends."""
    stretch: Stretch

    def put_in_force() -> None:
        text = msgspec.json.encode({"weights": search.weights})
        stretch.book.update("override", text, "overrides.yaml")

    def answered(sample: Sample) -> None:
        if sample.answered and search.tell(sample.ttft_ms):  # failed requests vanish, as published
            put_in_force()

    load = cell.load(SEARCHED_SEED, DURATION_S)
    stretch = Stretch(load, cell.fleet, "gorgo", {}, seed=0, answered=answered, look=lambda _: None)
    put_in_force()
    stretch.run_until(lambda: bool(search.stopped))
    return search


def held_out(cell: Cell, weights: Mapping[str, float]) -> dict[str, float]:
    """Measure weights on a load that nothing was searched on."""
    load = cell.load(HELD_OUT_SEED, WINDOW_S)
    results = run_window(load, cell.fleet, "gorgo", weights, seed=7, options=OPEN).requests
    served = [result.endpoint for result in results if result.ok]
    hottest = max(map(served.count, set(served))) / len(served)
    return {**p95s(results), "hottest_share": hottest}


def run(cell: str, entry: str, seed: int) -> dict[str, float]:
    """Search once by a seed of its own; the load is the same for all."""
    fleet, rate_rps, start, box = CELLS[cell]
    place = Cell(fleet, APR_5, rate_rps)
    if entry == PUBLISHED:
        weights = defaults_of("gorgo")
        return {**{name: weights[name] for name in start}, **held_out(place, weights)}
    search = searched(place, EsPaper(seed=seed, window=WINDOWS[entry], start=dict(start), box=dict(box)))
    shown = {"steps": search.steps, "samples": search.samples, "best_score_s": search.best_score}
    return {**search.best, **shown, **held_out(place, search.best)}


EXPERIMENT = Experiment(
    question="Which weights does the published search find, how soon, and what are they worth?",
    cells=tuple(CELLS),
    entries=(PUBLISHED, *WINDOWS),
    measures=(
        *("rtt_weight", "queue_weight", "steps", "samples", "best_score_s"),
        *("ttft_p95_ms", "e2e_p95_ms", "hottest_share"),
    ),
    ranges=("rtt_weight", "queue_weight", "steps", "samples", "best_score_s"),
    run=run,
    seeds=50,
)
