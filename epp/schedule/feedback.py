"""What an outcome teaches: bytes per token, lengths of answers, what engines and the ways to them are like.

Owns what is remembered of a request until then, and which outcomes teach what. The stores that learn own how.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec import Struct

from epp.apis.usage import NO_USAGE, Usage
from epp.schedule.decision import FAILED_ANSWER, FIRST_ERROR, Outcome, Source, usage_sources, with_itl
from epp.signals.duration import prefills
from epp.types import UPLOAD_ROUNDS, Role, network_ms

if TYPE_CHECKING:
    from collections.abc import Callable

    from epp.apis.failure import AnswerFailure
    from epp.schedule.decision import Leg
    from epp.signals.datastore import Datastore
    from epp.signals.engine_caches import SentPrefix
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


class SentLeg(Struct, frozen=True):
    """One leg of a decision, as it was sent.

    Attributes:
        slot: of its endpoint.
        endpoint: its address.
        reservation: its key in the ledger.
        cached_tokens: what was expected to be cached there.
        distance_tokens: what `PrefixIndex.insert` said of its prompt, NaN where nothing was inserted.
        state: of the endpoint.
        role: what it does.
        transfer_ms: expected from its prefill to the first token: the transfer, and the start of the decode.
        prefix: what its events said of the prompt and what is credited, None where they say nothing.
    """

    slot: int
    endpoint: str
    reservation: str
    cached_tokens: float
    distance_tokens: float
    state: Sent
    role: Role = Role.WHOLE
    transfer_ms: float = 0.0
    prefix: SentPrefix | None = None


@dataclass(slots=True)
class InFlight:
    """What is remembered of a request until its outcome is reported.

    The last of its ``legs`` answers it. ``confirmed`` once the prefix index knows how much of its prompt the
    engine had.
    """

    legs: tuple[SentLeg, ...]
    request: RequestInfo
    picked_s: float
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
    failure: AnswerFailure | None = None
    model: str = ""

    @property
    def tells_hits(self) -> bool:
        """Whether the count of cached tokens says what its engine had cached, and not what was sent there."""
        return self.request.tells_hits and self.leg.role is Role.WHOLE

    @property
    def leg(self) -> SentLeg:
        """The leg that answers."""
        return self.legs[-1]

    @property
    def workers(self) -> dict[Role, str]:
        """Who did a part for that one, by role, who prefilled first."""
        return {leg.role: leg.endpoint for leg in self.legs[-2::-1]}

    @property
    def prefill(self) -> SentLeg:
        """The leg that prefills."""
        return next((leg for leg in self.legs if leg.role is Role.PREFILL), self.leg)

    @property
    def where(self) -> str:
        """Who answers, as far as is known."""
        return self.served or self.leg.endpoint


def outcome_of(decision_id: str, entry: InFlight, cause: str, now_s: float) -> Outcome:
    """Make the outcome of what the stream, and the call at the first token, have reported."""
    if entry.failure is not None and (entry.status or 0) < FIRST_ERROR:
        cause = FAILED_ANSWER
    ttft_ms = (entry.first_token_s - entry.picked_s) * 1e3
    stream = Source.STREAM
    sources = {"cause": stream, "e2e_ms": stream}
    seen = ("served", "status", "chunks", "response_bytes")
    sources |= {name: stream for name in seen if getattr(entry, name) not in ("", None)}
    if not math.isnan(ttft_ms):
        sources["ttft_ms"] = entry.first_source
    if entry.usage != NO_USAGE:
        sources |= usage_sources(entry.usage, stream)
    outcome = Outcome(
        id=decision_id,
        endpoint=entry.leg.endpoint,
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
        answers=entry.request.answers,
        failure=entry.failure,
        model=entry.model,
        came_back=bool(entry.request.came_s),
        workers=entry.workers,
        sources=sources,
    )
    return with_itl(outcome, (entry.last_chunk_s - entry.first_token_s) * 1e3, Source.STREAM)


def sent_of(leg: Leg, among: Snapshot, seen: Signals[float], idle: int) -> Sent:
    """Record what stands before and beside a leg where it is sent."""
    return Sent(
        rtt_ms=math.nan if _unknown(among, "rtt_ms", leg.index) else seen.rtt_ms,
        pending_requests=seen.running_requests - seen.decoding_requests,
        pending_uncached_tokens=seen.pending_uncached_tokens,
        running_requests=seen.running_requests,
        idle=idle,
        upload_rounds=seen.upload_rounds,
    )


def _unknown(snapshot: Snapshot, column: str, index: int) -> bool:
    mask = snapshot.unknown.get(column)
    return mask is not None and bool(mask[index])


#: Ends at which an engine has done all of a request's work.
DONE = frozenset({"completed", "retried-elsewhere", "stream-end", "unobserved"})
#: APIs whose requests are one prompt.
_ONE_PROMPT = frozenset({"openai-chat", "anthropic-messages"})
#: More than any model's context or batch holds.
_ABSURD_TOKENS = 100_000_000
#: Share of a time to first token that is the engine's at least, however slow the network seems.
_LEAST = 0.1
#: Tokens of the shortest answer that tells a time between tokens.
_LEAST_ANSWER = 8


def is_absurd(entry: InFlight, usage: Usage, datastore: Datastore) -> bool:
    """Tell whether an engine's counts cannot be: below 0, or more than the model's context holds.

    Each of several choices may be as long as the context. The counts of several prompts are sums, and so are
    those of a server-side loop of tools (OpenAI responses): only `_ABSURD_TOKENS` bounds them, as it does
    where the context is not known.
    """
    slot = datastore.slot_of(entry.where) if entry.request.api in _ONE_PROMPT else None
    limit = (None if slot is None else datastore.context_tokens(slot)) or _ABSURD_TOKENS
    prompt, answers, cached = usage.prompt_tokens or 0, usage.completion_tokens or 0, usage.cached_tokens or 0
    if min(prompt, answers, cached) < 0:
        return True
    return max(prompt, cached) > limit or answers > limit * entry.request.answers


def with_cached(slot: int, api: str, usage: Usage, datastore: Datastore) -> Usage:
    """What an engine told, with the cached tokens that it leaves out where they are 0.

    vLLM and SGLang do that, and not to tell them at all is the default of both: left out is none from a
    process that told them in another answer of the same API, and unknown from any other.
    """
    if usage.prompt_tokens is None:
        return usage
    cached = datastore.calibration.cached_or_left_out(slot, api, usage.cached_tokens)
    if cached == usage.cached_tokens:
        return usage
    return Usage(usage.prompt_tokens, usage.completion_tokens, cached)


def learn_from(
    entry: InFlight, outcome: Outcome, datastore: Datastore, learn: Callable[[RequestInfo, int], None] | None
) -> None:
    """Hand what is known of a finished request to whoever learns from it.

    Args:
        entry: the request.
        outcome: how it ended.
        datastore: its signals learn.
        learn: told of the request and the engine's count of tokens.
    """
    request, usage = entry.request, outcome.usage
    if not request.prompt_tokens or outcome.empty or outcome.failure is not None:
        return
    # SGLang's own API counts the prompt anew for each choice.
    if usage.prompt_tokens is not None and request.text_bytes and request.choices == 1 and learn is not None:
        learn(request, usage.prompt_tokens)
    slot = datastore.slot_of(outcome.where)
    if slot is None or outcome.cause not in DONE or (outcome.status or 0) >= FIRST_ERROR:
        return
    usage = with_cached(slot, request.api, usage, datastore)
    answer, counted = _answer(outcome), request.prompt_tokens
    if answer is not None:
        datastore.answers.observe(request.model, answer)
    as_picked = outcome.where == entry.leg.endpoint
    if as_picked and outcome.attempts in {None, 1}:  # of several tries nobody knows which one it was of
        sent, timing = entry.leg.state, entry.connection
        if timing is not None:
            body_bytes = request.body_bytes
            datastore.paths.observe(slot, sent.idle, timing, rtt_ms=sent.rtt_ms, body_bytes=body_bytes)
        if outcome.streamed:
            _rates(slot, entry, outcome, usage, datastore)
    if usage.cached_tokens is not None and as_picked and entry.tells_hits:
        whole = counted if usage.prompt_tokens is None else usage.prompt_tokens
        expected = entry.leg.cached_tokens * whole / counted
        datastore.calibration.observe(slot, expected, float(min(usage.cached_tokens, whole)))


def _rates(slot: int, entry: InFlight, outcome: Outcome, usage: Usage, datastore: Datastore) -> None:
    """How long the first token and the answer took, against what stood before and beside them."""
    sent, answer, prefill = entry.leg.state, _answer(outcome), entry.prefill
    ttft_ms, e2e_ms = outcome.sent_ttft_ms, outcome.sent_e2e_ms  # without its client's upload
    ended_s = entry.picked_s + e2e_ms / 1e3
    if not math.isnan(ttft_ms) and not math.isnan(sent.rtt_ms):
        before = prefill.state
        datastore.rates.observe_prefill(
            prefill.slot if prefill is not entry.leg else slot,
            ended_s=ended_s,
            requests=prefills(before.pending_requests),
            tokens=_uncached(entry, usage, datastore, prefill.slot) + before.pending_uncached_tokens,
            ttft_ms=max(ttft_ms - _network_ms(entry, sent) - prefill.transfer_ms, _LEAST * ttft_ms),
            busy=before.running_requests,
        )
    itl_ms = outcome.itl_ms
    if math.isnan(itl_ms) and answer is not None and answer > 1:
        itl_ms = (e2e_ms - ttft_ms) / (answer - 1)
    if answer is not None and answer >= _LEAST_ANSWER and not math.isnan(itl_ms):
        beside = sent.running_requests + entry.request.sequences - 1
        datastore.rates.observe_decode(slot, ended_s=ended_s, beside=beside, itl_ms=itl_ms)


def _network_ms(entry: InFlight, sent: Sent) -> float:
    """The network's part of its first token, by what its connection was like where that is told."""
    timing, body_bytes = entry.connection, entry.request.body_bytes
    rounds = min(UPLOAD_ROUNDS, sent.upload_rounds)
    if timing is None or not timing.is_new:
        return network_ms(sent.rtt_ms, body_bytes, rounds)
    connect_ms = sent.rtt_ms if math.isnan(timing.connect_ms) else timing.connect_ms
    return network_ms(sent.rtt_ms, body_bytes, rounds, connect_ms=connect_ms, cold=1.0)


def _answer(outcome: Outcome) -> int | None:
    """Tokens of one of its answers as the engine told them, else the pieces in which a stream came.

    Engines send a token a piece. Where pieces held several, the answer seems shorter and its tokens slower by
    one and the same factor, so that the time expected of the next one is right.
    """
    told = outcome.usage.completion_tokens
    told = outcome.chunks if told is None and outcome.streamed else told
    return None if told is None else told // outcome.answers


def _uncached(entry: InFlight, usage: Usage, datastore: Datastore, slot: int) -> float:
    """The prompt's uncached tokens as the engine told them, else as believed."""
    prompt_tokens = entry.request.prompt_tokens
    if usage.cached_tokens is not None and entry.tells_hits:
        whole = usage.prompt_tokens or prompt_tokens
        return prompt_tokens * max(1.0 - usage.cached_tokens / whole, 0.0) if whole else 0.0
    return datastore.calibration.to_prefill(slot, prompt_tokens, entry.prefill.cached_tokens)
