"""Pieces that several formulas share: request counts by source, match ratios, places, spread of counts.

Pure functions over columns. Knows no policy.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import numpy as np

from epp.types import FIRST_FLIGHT_BYTES, upload_doublings

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from epp.types import RequestView, Signals, Snapshot

#: Where a count of requests comes from: the picker's own reservations, or the engine's last scrape.
Counts = Literal["live", "engine"]


def check_choice(field: str, value: object, choices: tuple[str, ...]) -> None:
    """Refuse a parameter that is none of the words allowed.

    Raises:
        ValueError: it is not.
    """
    if value not in choices:
        raise ValueError(f"{field} must be one of {', '.join(choices)}, not {value!r}")


def check_counts(value: object) -> None:
    """Refuse a source of counts that does not exist.

    Raises:
        ValueError: neither ``live`` nor ``engine``.
    """
    check_choice("counts", value, ("live", "engine"))


def check_flag(field: str, value: object) -> None:
    """Refuse a parameter that is not true or false.

    Raises:
        ValueError: it is not.
    """
    if not isinstance(value, bool):
        raise ValueError(f"{field} must be true or false, not {value!r}")  # noqa: TRY004  # a value from a file


def check_number(field: str, value: object, low: float, high: float = math.inf) -> None:
    """Refuse a parameter that is not a number within bounds.

    Raises:
        ValueError: it is not.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise ValueError(f"{field} must be a number from {low} to {high}, not {value!r}")


def check_whole(field: str, value: object, low: int) -> None:
    """Refuse a parameter that is not a whole number from ``low`` on.

    Raises:
        ValueError: it is not.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise ValueError(f"{field} must be a whole number from {low}, not {value!r}")


def request_counts(fleet: Snapshot, source: Counts, *, waiting: bool = True) -> NDArray[np.float64]:
    """Unfinished requests of each endpoint.

    Args:
        fleet: the columns.
        source: ``live`` for this picker's own, ``engine`` for running requests by the last scrape.
        waiting: whether the engine's count includes its queue; the live count always does.
    """
    if source == "live":
        return fleet.running_requests
    return fleet.engine_running + fleet.engine_waiting if waiting else fleet.engine_running


def transfer_ms(
    body_bytes: int, now: Signals[NDArray[np.float64]], upload_rounds: float, *, cold: bool
) -> NDArray[np.float64]:
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


def match_ratios(request: RequestView, fleet: Snapshot) -> NDArray[np.float64]:
    """Share of the prompt that each endpoint is expected to have cached, 0..1; 0 without a prompt."""
    if request.prompt_tokens <= 0:
        return np.zeros(len(fleet))
    return np.minimum(fleet.cached_tokens / request.prompt_tokens, 1.0)


def places(*keys: NDArray[np.float64] | NDArray[np.bool_]) -> NDArray[np.float64]:
    """Place of each endpoint when sorted by the keys, ascending, the first key before the second.

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


def mean_and_deviation(values: NDArray[np.float64]) -> tuple[float, float]:
    """Mean and population standard deviation, the same to the last bit in whatever order values stand."""
    mean = math.fsum(values) / len(values)
    return mean, math.sqrt(math.fsum((values - mean) ** 2) / len(values))
