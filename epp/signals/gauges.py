"""Every signal of a fleet for people: names, words, and a value per endpoint.

Owns the names. Reads the stores; changes nothing but what time changes.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from epp.signals.health import State

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy as np
    from numpy.typing import NDArray

    from epp.signals.fleet import Fleet

#: A gauge: name, what it is, (address, value) pairs.
Gauge = tuple[str, str, list[tuple[str, float]]]

_GAUGES = (
    ("rtt_ms", "Round-trip time over a warm connection."),
    ("engine_running", "Requests in the engine's batch, by its metrics."),
    ("engine_waiting", "Requests in the engine's queue, by its metrics."),
    ("engine_kv_usage", "Share of the KV cache in use, by the engine's metrics."),
    ("engine_used_tokens", "Tokens of the KV cache in use, by the engine's metrics."),
    ("engine_age_ms", "Age of the engine's metrics."),
    ("queued_tokens", "Prompt tokens of unfinished requests."),
    ("pending_uncached_tokens", "Uncached tokens of requests that await their first token."),
    ("running_requests", "Unfinished requests."),
    ("decoding_requests", "Unfinished requests past their first token."),
    ("decoding_tokens", "Prompt tokens and expected answers of unfinished requests past their first token."),
    ("hit_ratio", "Cached tokens that the engine had of late over those expected of it."),
    ("prefill_base_ms", "Fixed time of one prefill, as learned."),
    ("prefill_ms_per_token", "Time to prefill one uncached token, as learned."),
    ("decode_base_ms", "Time of a token of an answer that is alone, as learned."),
    ("decode_ms_per_request", "What every further answer in the batch adds to it, as learned."),
    ("error_share", "Share of its requests of late that failed; none without requests."),
    ("ejected", "1 while the endpoint is ejected."),
    ("draining", "1 while the endpoint takes no new requests."),
    (
        "retry_after_ms",
        "Time for which the endpoint asked to be left alone (Retry-After); 0 when it did not.",
    ),
)


def gauges(fleet: Fleet, now_s: float) -> Iterator[Gauge]:
    """Every signal for people; unknown values are left out. The pool may change between two of them."""
    engine = fleet.engine.block(now_s)
    columns: Iterable[NDArray[np.float64]] = (
        fleet.rtt.rtt_ms(now_s),
        *engine,
        fleet.engine.age_ms(now_s),
        *fleet.ledger.block,
        fleet.calibration.hit_ratio,
        *fleet.rates.block(),
    )
    fleet.health.eligible(now_s)  # moves those whose back-off is over
    members, health = fleet.members, fleet.health
    # Asked before the first is told: of who has left by then there is no health to be asked for.
    shares = [(endpoint.address, health.error_share(slot)) for slot, endpoint in members]
    failing = [(address, share) for address, share in shares if not math.isnan(share)]
    ejected = [(e.address, float(health.state(slot) is State.EJECTED)) for slot, e in members]
    draining = [(endpoint.address, float(endpoint.draining)) for _, endpoint in members]
    paused = [(endpoint.address, fleet.retry_after.left_s(slot, now_s) * 1e3) for slot, endpoint in members]
    for (name, text), column in zip(_GAUGES, columns, strict=False):
        values = ((endpoint.address, float(column[slot])) for slot, endpoint in members)
        yield name, text, [(address, value) for address, value in values if not math.isnan(value)]
    for (name, text), pairs in zip(_GAUGES[-4:], (failing, ejected, draining, paused), strict=True):
        yield name, text, pairs
