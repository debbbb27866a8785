"""Latencies counted in logarithmic bins, and their quantiles.

Owns the bins, 1 % wide, so that no figure is further off than that. A histogram is a plain mapping, so that
it can be persisted as it is.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

Histogram = dict[int, int]

_STEP = math.log(1.01)
#: What failed, or never came: above every latency.
NEVER = 1_000_000
_LOWEST_MS = 0.01


def bin_of(value_ms: float) -> int:
    """Return the bin of a latency; `NEVER` for NaN, one that never came."""
    if math.isnan(value_ms):
        return NEVER
    return min(NEVER - 1, math.floor(math.log(max(value_ms, _LOWEST_MS)) / _STEP))


def count(histogram: Histogram, value_ms: float) -> None:
    """Count one latency; NaN as one that never came."""
    place = bin_of(value_ms)
    histogram[place] = histogram.get(place, 0) + 1


def quantile(histogram: Mapping[int, int], q: float) -> float:
    """Return the smallest latency at or below which a share ``q`` lies (upper end of its bin).

    NaN without values, infinite where the quantile never came.
    """
    total = sum(histogram.values())
    if not total:
        return math.nan
    need, seen = max(1, math.ceil(min(q, 1.0) * total - 1e-9)), 0
    for place in sorted(histogram):
        seen += histogram[place]
        if seen >= need:
            break
    return math.inf if place == NEVER else math.exp((place + 1) * _STEP)
