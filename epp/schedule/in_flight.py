"""A request between its decision and its outcome: what it asked, what was promised, what was seen.

Owns what the stream and the call at the first token report, put together as an `Outcome`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec import Struct

from epp.apis.usage import NO_USAGE, Usage
from epp.schedule.decision import Outcome, Source, usage_sources, with_itl

if TYPE_CHECKING:
    from epp.schedule.decision import Decision
    from epp.signals.paths import ConnectionTiming
    from epp.types import RequestInfo, Signals, Snapshot


class Sent(Struct, frozen=True):
    """The endpoint's state when the request was sent, without it.

    Attributes:
        rtt_ms: round trip to it.
        pending_requests: requests that awaited their first token.
        pending_uncached_tokens: their uncached tokens.
        running_requests: requests in all.
        idle: how long the connection was idle that it should find, as `epp.signals.paths` counts it.
        upload_rounds: round trips per doubling of a body on such a connection, as seen.
    """

    rtt_ms: float
    pending_requests: float
    pending_uncached_tokens: float
    running_requests: float
    idle: int
    upload_rounds: float


@dataclass(slots=True)
class InFlight:
    """What is remembered of a request until its outcome is reported.

    ``confirmed`` once the prefix index knows how much of its prompt the engine had.
    """

    slot: int
    endpoint: str
    request: RequestInfo
    picked_s: float
    expected_tokens: float
    distance_tokens: float = math.nan
    sent: Sent | None = None
    first_token_s: float = math.nan
    first_source: Source = Source.FIRST_TOKEN
    last_chunk_s: float = math.nan
    status: int | None = None
    usage: Usage = NO_USAGE
    usage_refused: bool = False
    confirmed: bool = False
    served: str = ""
    chunks: int | None = None
    response_bytes: int | None = None
    connection: ConnectionTiming | None = None
    streamed: bool | None = None


def outcome_of(decision_id: str, entry: InFlight, cause: str, now_s: float) -> Outcome:
    """Make the outcome of what the stream, and the call at the first token, have reported."""
    ttft_ms = (entry.first_token_s - entry.picked_s) * 1e3
    stream = Source.STREAM
    sources = {"cause": stream, "e2e_ms": stream}
    if entry.served:
        sources["served"] = stream
    if entry.status is not None:
        sources["status"] = stream
    if entry.chunks is not None:
        sources["chunks"] = stream
    if entry.response_bytes is not None:
        sources["response_bytes"] = stream
    if not math.isnan(ttft_ms):
        sources["ttft_ms"] = entry.first_source
    if entry.usage != NO_USAGE:
        sources |= usage_sources(entry.usage, stream)
    outcome = Outcome(
        id=decision_id,
        endpoint=entry.endpoint,
        cause=cause,
        status=entry.status,
        ttft_ms=ttft_ms,
        e2e_ms=(now_s - entry.picked_s) * 1e3,
        usage=entry.usage,
        usage_refused=entry.usage_refused,
        generates=bool(entry.request.prompt_tokens) and entry.request.max_output_tokens != 0,
        served=entry.served,
        chunks=entry.chunks,
        response_bytes=entry.response_bytes,
        streamed=entry.request.stream if entry.streamed is None else entry.streamed,
        sources=sources,
    )
    return with_itl(outcome, (entry.last_chunk_s - entry.first_token_s) * 1e3, Source.STREAM)


def sent_of(decision: Decision, seen: Signals[float], idle: int) -> Sent:
    """Record what stands before and beside a request where it is sent."""
    return Sent(
        rtt_ms=math.nan if _unknown(decision.fleet, "rtt_ms", decision.chosen) else seen.rtt_ms,
        pending_requests=seen.running_requests - seen.decoding_requests,
        pending_uncached_tokens=seen.pending_uncached_tokens,
        running_requests=seen.running_requests,
        idle=idle,
        upload_rounds=seen.upload_rounds,
    )


def _unknown(fleet: Snapshot, column: str, index: int) -> bool:
    mask = fleet.unknown.get(column)
    return mask is not None and bool(mask[index])
