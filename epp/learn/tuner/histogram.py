"""Latencies counted in logarithmic bins, and their quantiles with bounds that hold at all times.

Owns the bins (1 % wide, so no figure is further off than that) and the quantile confidence sequence. Pure; a
histogram is a plain mapping, so that it can be persisted as it is.
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
    """The bin of a latency; `NEVER` for NaN, one that never came."""
    if math.isnan(value_ms):
        return NEVER
    return min(NEVER - 1, math.floor(math.log(max(value_ms, _LOWEST_MS)) / _STEP))


def count(histogram: Histogram, value_ms: float) -> None:
    """Count one latency; NaN as one that never came."""
    place = bin_of(value_ms)
    histogram[place] = histogram.get(place, 0) + 1


def quantile(histogram: Mapping[int, int], q: float) -> float:
    """The smallest latency at or below which a share ``q`` lies (upper end of its bin).

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


def quantile_bounds(histogram: Mapping[int, int], q: float, *, alpha: float) -> tuple[float, float]:
    """Bounds of the quantile that hold at all times at once with probability ``1 - alpha``.

    From sample quantiles at ``q -+ f``, ``f = 1.5 sqrt(q (1 - q) l) + 0.8 l``,
    ``l = (1.4 ln ln(2.1 n) + ln(10 / alpha)) / n`` (Howard and Ramdas, "Sequential estimation of quantiles
    with applications to A/B testing and best-arm identification", Bernoulli 28(3), 2022). For independent
    requests; of requests in bursts they are too narrow, which is why promotions rest on blocks.
    """
    n = sum(histogram.values())
    if n < 2:
        return 0.0, math.inf
    spread = (1.4 * math.log(math.log(2.1 * n)) + math.log(10.0 / alpha)) / n
    f = 1.5 * math.sqrt(q * (1.0 - q) * spread) + 0.8 * spread
    low = quantile(histogram, q - f) / math.exp(_STEP) if q > f else 0.0
    return low, quantile(histogram, q + f) if q + f < 1.0 else math.inf
