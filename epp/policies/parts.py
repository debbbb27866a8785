"""What several formulas share: types of parameters, request counts, match ratios, places."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from epp.types import Flags, Floats, RequestInfo, Snapshot

#: Where a count of requests comes from: the picker's own reservations, or the engine's last scrape.
Counts = Literal["live", "engine"]


def request_counts(snapshot: Snapshot, source: Counts, *, waiting: bool = True) -> Floats:
    """Count unfinished requests of each endpoint; ``waiting``: whether the engine's count has its queue."""
    if source == "live":
        return snapshot.running_requests
    return snapshot.engine_running + snapshot.engine_waiting if waiting else snapshot.engine_running


def match_ratios(request: RequestInfo, snapshot: Snapshot) -> Floats:
    """Compute the share of the prompt that each endpoint is expected to have cached, 0..1."""
    if request.prompt_tokens <= 0:
        return np.zeros(len(snapshot))
    return np.minimum(snapshot.cached_tokens / request.prompt_tokens, 1.0)


def places(*keys: Floats | Flags) -> Floats:
    """Find the place of each endpoint when sorted by the keys, ascending, the first key before the second.

    The best have place 0; equals share a place, and the next after m equals is m places on.
    """
    order = np.lexsort(keys[::-1])
    differs = np.zeros(len(order), np.bool_)
    for key in keys:
        ordered = key[order]
        differs[1:] |= ordered[1:] != ordered[:-1]
    starts = np.maximum.accumulate(np.where(differs, np.arange(len(order)), 0))
    result = np.empty(len(order), np.float64)
    result[order] = starts
    return result


def mean_and_deviation(values: Floats) -> tuple[float, float]:
    """Mean and population standard deviation, the same to the last bit in whatever order values stand."""
    mean = math.fsum(values) / len(values)
    return mean, math.sqrt(math.fsum((values - mean) ** 2) / len(values))
