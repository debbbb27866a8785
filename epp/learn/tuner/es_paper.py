"""The published tuner, to the letter, faults included: for reproducing its figure, never for use.

(1+1)-ES on the logarithm of the weights with Rechenberg's 1/5 rule, source [G]. What is wrong with it, and is
kept: samples count at completion, whichever candidate dispatched them; windows of 128 hop by 32, so three
quarters of a window were seen before; the incumbent is never measured again; the score is negative, so
``score > best * (1 + 0.005)`` accepts what is up to 0.5 % worse; failed requests vanish; sigma has no
ceiling.
`epp.learn.tuner.search` has none of this.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from statistics import NormalDist
from types import MappingProxyType
from typing import TYPE_CHECKING

from epp.keyed_uniform import keyed_uniform

if TYPE_CHECKING:
    from collections.abc import Mapping

START: Mapping[str, float] = MappingProxyType({"rtt_weight": 0.5, "queue_weight": 0.1})
BOX: Mapping[str, tuple[float, float]] = MappingProxyType(
    {"rtt_weight": (0.05, 2.0), "queue_weight": (0.05, 0.5)}
)
_BUFFER = 1000
_TOLERANCE = 0.005
_FACTOR = 0.817
_REMEMBERED = 8
_MAX_STEPS = 10_000
_TINY = 2.0**-54
_LARGEST = 100.0
_NORMAL = NormalDist()


@dataclass(slots=True)
class EsPaper:
    """Tell it the TTFT of each successful streaming request as it completes; live weights are `weights`.

    Attributes:
        seed: of its draws.
        window: samples that a score is made of; the paper's 128, 64 in its authors' later text.
        hop: new samples between two scores.
        start: first weights.
        box: range of each.
        sigma: step size on the logarithm.
        sigma_min: it stops below.
    """

    seed: int
    window: int = 128
    hop: int = 32
    start: Mapping[str, float] = field(default_factory=lambda: dict(START))
    box: Mapping[str, tuple[float, float]] = field(default_factory=lambda: dict(BOX))
    sigma: float = 0.5
    sigma_min: float = 0.05
    weights: dict[str, float] = field(init=False)
    best: dict[str, float] = field(init=False)
    best_score: float = field(init=False, default=math.nan)
    steps: int = field(init=False, default=0)
    samples: int = field(init=False, default=0)
    stopped: str = field(init=False, default="")
    history: list[tuple[int, dict[str, float], float, bool]] = field(init=False, default_factory=list)
    _buffer: list[float] = field(init=False, default_factory=list)
    _new: int = field(init=False, default=0)
    _accepted: list[bool] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        """The first weights are live, and their first window is the baseline."""
        self.weights, self.best = dict(self.start), dict(self.start)

    def tell(self, ttft_ms: float) -> bool:
        """One completed request; whether the live weights changed."""
        if self.stopped:
            return False
        self.samples += 1
        self._new += 1
        self._buffer = [*self._buffer[1 - _BUFFER :], ttft_ms]
        if self._new < self.hop or len(self._buffer) < self.window:
            return False
        self._new = 0
        before = self.weights
        self._fire(self._score())
        return self.weights != before

    def _score(self) -> float:
        """Negative p95 of the window in seconds, by the rounded index that its authors use."""
        ordered = sorted(self._buffer[-self.window :])
        return -ordered[round(0.95 * (len(ordered) - 1))] / 1000.0

    def _fire(self, score: float) -> None:
        first = math.isnan(self.best_score)
        accepted = first or score > self.best_score * (1.0 + _TOLERANCE)
        self.history.append((self.samples, dict(self.weights), score, accepted))
        if accepted:
            self.best_score, self.best = score, dict(self.weights)
        if not first:
            self._accepted = [*self._accepted, accepted][-_REMEMBERED:]
            self._adapt()
            self.steps += 1
        if self.sigma < self.sigma_min or self.steps >= _MAX_STEPS:
            self.stopped = "sigma is below its floor" if self.sigma < self.sigma_min else "out of steps"
            self.weights = dict(self.best)
        else:
            self.weights = {name: self._moved(name, value) for name, value in self.best.items()}

    def _adapt(self) -> None:
        if len(self._accepted) < _REMEMBERED:
            return
        rate = sum(self._accepted) / _REMEMBERED
        if rate > 0.2:
            self.sigma /= _FACTOR
        elif rate < 0.2:
            self.sigma *= _FACTOR

    def _moved(self, name: str, value: float) -> float:
        z = _NORMAL.inv_cdf(keyed_uniform(self.seed, str(len(self.history)), f"es {name}") + _TINY)
        low, high = self.box[name]
        moved = value * math.exp(min(self.sigma * z, _LARGEST))  # beyond it only the box counts
        return min(max(moved, low), high)
