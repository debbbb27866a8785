"""`gorgo-hillclimb`: the published online tuner moves the weights of `gorgo` while it serves.

`EsPaper` is that tuner to the letter, faults included: to reproduce its figures, never for use. (1+1)-ES on
the logarithm of the weights with Rechenberg's 1/5 rule, source [G]. What is wrong with it, and is kept:
samples count at completion, whichever candidate dispatched them; windows of 128 hop by 32, so three quarters
of a window were seen before; the incumbent is never measured again; the score is negative, so
``score > best * (1 + 0.005)`` accepts what is up to 0.5 % worse; failed requests vanish; sigma has no
ceiling. `epp_lab.tuner.search` has none of this.
"""

from __future__ import annotations

import math
from collections import deque
from statistics import NormalDist
from typing import TYPE_CHECKING

import msgspec

from epp.keyed_uniform import keyed_uniform
from epp_lab.tuner_life import Stretch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from epp_lab.compare.trace import TraceRequest
    from epp_lab.sim.scenario import FleetSpec, WindowOptions
    from epp_lab.tuner.samples import Sample

#: What a comparison calls it; a picker cannot serve by this name.
HILLCLIMB = "gorgo-hillclimb"
START: Mapping[str, float] = {"rtt_weight": 0.5, "queue_weight": 0.1}
BOX: Mapping[str, tuple[float, float]] = {"rtt_weight": (0.05, 2.0), "queue_weight": (0.05, 0.5)}
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
        self.stopped = False
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
            self.stopped = True
            self.weights = dict(self.best)
        else:
            self.weights = {name: self._moved(name, value) for name, value in self.best.items()}

    def _moved(self, name: str, value: float) -> float:
        draw = keyed_uniform(self._seed, str(self.steps + 1), f"es {name}")
        z, (low, high) = NormalDist().inv_cdf(draw + _TINY), self._box[name]
        moved = value * math.exp(min(self.sigma * z, _LARGEST))  # beyond it only the box counts
        return min(max(moved, low), high)


def hillclimb(
    requests: Sequence[TraceRequest],
    fleet: FleetSpec,
    search: EsPaper,
    *,
    seed: int,
    options: WindowOptions,
) -> Stretch:
    """Return a window whose weights the search moves with each answer; it begins when it is run.

    Args:
        requests: the load.
        fleet: the replicas.
        search: the tuner.
        seed: of network and draws.
        options: how the load is sent.
    """

    def put_in_force() -> None:
        text = msgspec.json.encode({"weights": search.weights})
        stretch.book.update("override", text, "overrides.yaml")

    def answered(sample: Sample) -> None:
        if sample.answered and search.tell(sample.ttft_ms):  # failed requests vanish, as published
            put_in_force()

    stretch = Stretch(
        requests, fleet, "gorgo", {}, seed=seed, answered=answered, look=lambda _: None, options=options
    )
    put_in_force()
    return stretch
