"""One straight line through noisy, heavy-tailed samples, learned as they come."""

from __future__ import annotations

import math
from typing import NamedTuple

#: Samples after which one counts by 1/e: an hour at one request in four seconds.
MEMORY_SAMPLES = 1000.0
#: Samples that the prior weighs, spread over its design points.
PRIOR_SAMPLES = 20.0
#: Residuals count up to this many times the usual one (Huber, wider than his 1.345: latencies are skewed).
CLIP = 2.0
#: A coefficient stays within this factor of its prior, either way.
BOUND = 16.0
#: Usual relative error before any was seen.
_FIRST_SPREAD = 0.5

#: Weighted sums of uu, ux, xx, uy and xy.
_Sums = tuple[float, float, float, float, float]
_NOTHING: _Sums = (0.0, 0.0, 0.0, 0.0, 0.0)


class Learned(NamedTuple):
    """What a line rests on: samples, their usual relative error, and their weighted sums."""

    samples: int
    spread: float
    sums: _Sums


class LinearFit:
    """``y = base * u + slope * x`` for positive u, x and y, through noisy, heavy-tailed samples as they come.

    It starts on a prior that keeps the weight of a few samples for ever, old samples fade, relative errors
    count (times in milliseconds err by a share, not by an amount), one outlier moves it no further than an
    ordinary sample would, and neither coefficient leaves its bounds.

    Args:
        base: prior of the first coefficient, above 0.
        slope: prior of the second, above 0.
        design: ``(u, x)`` points at which the prior counts as seen; at least two that are not multiples of
            each other.
    """

    __slots__ = ("_data", "_high", "_low", "_prior", "_spread", "base", "samples", "slope")

    def __init__(self, base: float, slope: float, design: tuple[tuple[float, float], ...]) -> None:
        self.base, self.slope = base, slope
        self.samples = 0
        self._spread = _FIRST_SPREAD
        self._low, self._high = (base / BOUND, slope / BOUND), (base * BOUND, slope * BOUND)
        self._prior = self._data = _NOTHING
        for u, x in design:
            y = base * u + slope * x
            self._prior = _added(self._prior, u, x, y, weight=PRIOR_SAMPLES / len(design) / (y * y))

    @property
    def at_bound(self) -> bool:
        """Whether a coefficient would be larger than it may be: measurements that no engine gives.

        The lower bound is no fault: where prompts are short or engines fast, samples say little of a
        coefficient that hardly matters.
        """
        return self.base >= self._high[0] or self.slope >= self._high[1]

    def observe(self, u: float, x: float, y: float, weight: float = 1.0) -> float:
        """Take a sample; its relative error before it was taken.

        Args:
            u: factor of the base.
            x: factor of the slope.
            y: what was measured, above 0.
            weight: how much it counts, 0..1.
        """
        said = self.base * u + self.slope * x
        error, spread = (y - said) / said, self._spread
        clipped = max(-CLIP * spread, min(error, CLIP * spread))
        self._spread = spread + 0.02 * weight * (min(abs(error), 4.0 * spread) - spread)
        keep = 1.0 - weight / MEMORY_SAMPLES
        self._data = _added(
            self._data, u, x, said * (1.0 + clipped), weight=weight / (said * said), keep=keep
        )
        self.samples += 1
        self._solve()
        return error

    @property
    def learned(self) -> Learned:
        """Return what it rests on, for `adopt` of another on the same prior."""
        return Learned(self.samples, self._spread, self._data)

    def adopt(self, learned: Learned) -> None:
        """Take another's samples in the place of its own, where those are more, and can be such."""
        sound = 0.0 < learned.spread < math.inf and all(0.0 <= each < math.inf for each in learned.sums)
        if sound and learned.samples > self.samples:
            self.samples, self._spread, self._data = learned
            self._solve()

    def halve(self) -> None:
        """Let all samples so far count half, so that the prior weighs more."""
        uu, ux, xx, uy, xy = self._data
        self._data = uu / 2.0, ux / 2.0, xx / 2.0, uy / 2.0, xy / 2.0
        self._solve()

    def _solve(self) -> None:
        uu, ux, xx, uy, xy = self._data
        prior = self._prior
        uu, ux, xx, uy, xy = uu + prior[0], ux + prior[1], xx + prior[2], uy + prior[3], xy + prior[4]
        determinant = uu * xx - ux * ux
        if not determinant > 0.0 or not math.isfinite(determinant):
            return
        base = (uy * xx - xy * ux) / determinant
        slope = (xy * uu - uy * ux) / determinant
        if base < self._low[0]:  # the best within the bounds has the other coefficient moved along
            base = self._low[0]
            slope = (xy - base * ux) / xx
        elif slope < self._low[1]:
            slope = self._low[1]
            base = (uy - slope * ux) / uu
        self.base = max(self._low[0], min(base, self._high[0]))
        self.slope = max(self._low[1], min(slope, self._high[1]))


def _added(sums: _Sums, u: float, x: float, y: float, *, weight: float, keep: float = 1.0) -> _Sums:
    """What is kept of the sums and one more sample; spelled out, because every answer comes by here twice."""
    uu, ux, xx, uy, xy = sums
    return (
        keep * uu + weight * (u * u),
        keep * ux + weight * (u * x),
        keep * xx + weight * (x * x),
        keep * uy + weight * (u * y),
        keep * xy + weight * (x * y),
    )
