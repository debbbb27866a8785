"""A request between its decision and its outcome: what it asked, what was promised, what was seen.

Owns what the stream and the first token's call tell, put together as an `Outcome`; who else is told of a
request is not known here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec import Struct

from epp.apis.usage import NO_USAGE, Usage
from epp.schedule.decision import Outcome, Source, usage_sources, with_itl

if TYPE_CHECKING:
    from epp.apis.types import MeasuredPrompt
    from epp.schedule.decision import Decision
    from epp.schedule.subset import Subset
    from epp.signals.paths import Travelled
    from epp.types import Signals, Snapshot


class Ask(Struct, frozen=True):
    """What a request asks, after parsing and measuring.

    Attributes:
        model: public model name, ``""`` when there is none.
        prompt: the measured prompt, None for requests without one.
        body_bytes: size of the body.
        max_output_tokens: the client's output limit.
        affinity_key: what session affinity keys on, as it may be recorded.
        session: the client's session as it may be recorded, ``""`` when it names none.
        regions: regions allowed, None for any.
        subset: endpoints that the gateway allows, None for any.
        api: parser name.
        opaque: the body was not understood, so the prompt cannot be priced.
        stream: the client asked for an event stream.
        text_bytes: canonical bytes that the prompt's token count was estimated from, 0 where it was counted
            or no ratio can be learned from it (`epp.apis.canonical.text_bytes`).
        language: of the prompt (`epp.apis.language`).
        task: as the client names it.
        tried_models: models that the client says it has tried.
        choices: how many answers to the prompt it asks for.
    """

    model: str = ""
    prompt: MeasuredPrompt | None = None
    body_bytes: int = 0
    max_output_tokens: int | None = None
    affinity_key: str = ""
    session: str = ""
    regions: frozenset[str] | None = None
    subset: Subset | None = None
    api: str = ""
    opaque: bool = False
    stream: bool = False
    text_bytes: int = 0
    language: str = ""
    task: str = ""
    tried_models: tuple[str, ...] = ()
    choices: int = 1


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
    """What is remembered of a request until its outcome is told.

    ``confirmed`` once the prefix index knows how much of its prompt the engine had.
    """

    slot: int
    endpoint: str
    ask: Ask
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
    travelled: Travelled | None = None
    streamed: bool | None = None

    @property
    def prompt(self) -> MeasuredPrompt | None:
        """The measured prompt."""
        return self.ask.prompt


def outcome_of(decision_id: str, entry: InFlight, cause: str, now_s: float) -> Outcome:
    """What the stream, and the call at the first token, have told."""
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
        generates=entry.prompt is not None and entry.ask.max_output_tokens != 0,
        served=entry.served,
        chunks=entry.chunks,
        response_bytes=entry.response_bytes,
        streamed=entry.ask.stream if entry.streamed is None else entry.streamed,
        sources=sources,
    )
    return with_itl(outcome, (entry.last_chunk_s - entry.first_token_s) * 1e3, Source.STREAM)


def sent_of(decision: Decision, seen: Signals[float], idle: int) -> Sent:
    """What stands before and beside a request where it is sent."""
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
