"""The scale on which weights are searched: the unit interval, even in their logarithm."""

from __future__ import annotations

import math

#: Where a weight may be 0, the logarithm begins at this part of its upper bound.
_ZERO_PART = 1e-3


def _ends(low: float, high: float) -> tuple[float, float]:
    return math.log(max(low, _ZERO_PART * high)), math.log(high)


def to_unit(value: float, low: float, high: float) -> float:
    """Where a weight stands between its bounds, ``low < high``, 0 to 1; outside of them at the nearer one."""
    bottom, top = _ends(low, high)
    return min(max((math.log(max(value, 1e-300)) - bottom) / (top - bottom), 0.0), 1.0)


def from_unit(unit: float, low: float, high: float) -> float:
    """The weight that stands there, within its bounds."""
    bottom, top = _ends(low, high)
    return min(max(math.exp(bottom + min(max(unit, 0.0), 1.0) * (top - bottom)), low), high)
