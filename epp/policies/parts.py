"""What several formulas share: types of parameters, request counts, transfer times, match ratios, places."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import numpy as np

from epp.types import FIRST_FLIGHT_BYTES, upload_doublings

if TYPE_CHECKING:
    from epp.types import Flags, Floats, RequestInfo, Signals, Snapshot

#: Where a count of requests comes from: the picker's own reservations, or the engine's last scrape.
Counts = Literal["live", "engine"]


def request_counts(fleet: Snapshot, source: Counts, *, waiting: bool = True) -> Floats:
    """Count unfinished requests of each endpoint; ``waiting``: whether the engine's count has its queue."""
    if source == "live":
        return fleet.running_requests
    return fleet.engine_running + fleet.engine_waiting if waiting else fleet.engine_running


def transfer_ms(body_bytes: int, now: Signals[Floats], upload_rounds: float, *, cold: bool) -> Floats:
    """Time on the network until a request's body is through, in ms.

    ``rtt * (1 + rounds * doublings) + cold_chance * (connect + rtt * (1 - rounds) * doublings)``, with
    ``doublings = log2(1 + body / 14,600)`` of the congestion window, each of which takes
    ``rounds = min(upload_rounds, rounds seen on warm connections)`` round trips. The second part is what a
    connection opened for the request adds, its doublings for bodies beyond the first flight
    (`epp.signals.paths`); without ``cold`` it is 0 and ``rounds`` is ``upload_rounds``.
    """
    doublings = upload_doublings(body_bytes)
    if not cold:
        return (1.0 + upload_rounds * doublings) * now.rtt_ms
    rounds = np.minimum(upload_rounds, now.upload_rounds)
    cold_ms = now.connect_ms
    if body_bytes > FIRST_FLIGHT_BYTES:
        cold_ms = cold_ms + np.maximum(1.0 - rounds, 0.0) * doublings * now.rtt_ms
    return (1.0 + rounds * doublings) * now.rtt_ms + now.cold_chance * cold_ms


def match_ratios(request: RequestInfo, fleet: Snapshot) -> Floats:
    """Compute the share of the prompt that each endpoint is expected to have cached, 0..1."""
    if request.prompt_tokens <= 0:
        return np.zeros(len(fleet))
    return np.minimum(fleet.cached_tokens / request.prompt_tokens, 1.0)


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
