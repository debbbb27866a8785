"""What an outcome teaches: bytes per token, lengths of answers, what engines and the ways to them are like.

Owns which outcomes teach what. The stores that learn own how.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from epp.apis.usage import Usage
from epp.signals.calibration import Finished
from epp.signals.duration import cold_ms, network_ms, prefills

if TYPE_CHECKING:
    from collections.abc import Callable

    from epp.schedule.decision import Outcome
    from epp.schedule.in_flight import InFlight, Sent
    from epp.signals.fleet import Fleet

#: Ends at which an engine has done all of a request's work.
DONE = frozenset({"completed", "retried-elsewhere", "stream-end", "unobserved"})
_FIRST_ERROR = 400
#: APIs whose requests are one prompt.
_ONE_PROMPT = frozenset({"openai-chat", "anthropic-messages"})
#: More than any model's context or batch holds.
_ABSURD_TOKENS = 100_000_000
#: Share of a time to first token that is the engine's at least, however slow the network seems.
_LEAST = 0.1
#: Tokens of the shortest answer that tells a time between tokens.
_LEAST_ANSWER = 8


def is_absurd(entry: InFlight, usage: Usage, fleet: Fleet) -> bool:
    """Tell whether an engine's counts cannot be: below 0, or more than the model's context holds.

    Each of several choices may be as long as the context. The counts of several prompts are sums, and so are
    those of a server-side loop of tools (OpenAI responses): only `_ABSURD_TOKENS` bounds them, as it does
    where the context is not known.
    """
    slot = fleet.slot_of(entry.served or entry.endpoint) if entry.ask.api in _ONE_PROMPT else None
    limit = (None if slot is None else fleet.context_tokens(slot)) or _ABSURD_TOKENS
    prompt, answers, cached = usage.prompt_tokens or 0, usage.completion_tokens or 0, usage.cached_tokens or 0
    if min(prompt, answers, cached) < 0:
        return True
    return max(prompt, cached) > limit or answers > limit * entry.ask.choices


def with_cached(slot: int, api: str, usage: Usage, fleet: Fleet) -> Usage:
    """What an engine told, with the cached tokens that it leaves out where they are 0.

    vLLM and SGLang do that, and not to tell them at all is the default of both: left out is none from a
    process that told them in another answer of the same API, and unknown from any other.
    """
    if usage.prompt_tokens is None:
        return usage
    cached = fleet.calibration.cached_or_left_out(slot, api, usage.cached_tokens)
    if cached == usage.cached_tokens:
        return usage
    return Usage(usage.prompt_tokens, usage.completion_tokens, cached)


def learn_from(
    entry: InFlight, outcome: Outcome, fleet: Fleet, learn: Callable[[str, int, int], None] | None
) -> None:
    """Hand what is known of a finished request to whoever learns from it.

    Args:
        entry: the request.
        outcome: how it ended.
        fleet: its signals learn.
        learn: told of model, canonical bytes and the engine's count of tokens.
    """
    ask, usage = entry.ask, outcome.usage
    if ask.prompt is None or outcome.empty:
        return
    if usage.prompt_tokens is not None and ask.text_bytes and learn is not None:
        learn(ask.model, ask.text_bytes, usage.prompt_tokens)
    slot = fleet.slot_of(outcome.where)
    if slot is None or outcome.cause not in DONE or (outcome.status or 0) >= _FIRST_ERROR:
        return
    usage = with_cached(slot, ask.api, usage, fleet)
    _path(slot, entry, outcome, fleet)
    _rates(slot, entry, outcome, usage, fleet)
    counted = ask.prompt.prompt_tokens
    as_picked = outcome.where == entry.endpoint
    expected = entry.expected_tokens if as_picked else 0.0
    if usage.cached_tokens is not None and as_picked and counted:
        whole = counted if usage.prompt_tokens is None else usage.prompt_tokens
        fleet.calibration.cached(slot, expected * whole / counted, float(min(usage.cached_tokens, whole)))
    fleet.calibration.finished(
        slot,
        Finished(
            model=ask.model,
            text_bytes=ask.text_bytes,
            prompt_tokens=counted,
            expected_tokens=expected,
            told=usage.prompt_tokens is not None,
            cached_told=usage.cached_tokens is not None,
        ),
    )


def _path(slot: int, entry: InFlight, outcome: Outcome, fleet: Fleet) -> None:
    """What its connection tells of the path; of several tries nobody knows which one it was of."""
    sent, told = entry.sent, entry.travelled
    if sent is not None and told is not None and outcome.where == entry.endpoint and _first_try(outcome):
        body_bytes = entry.ask.body_bytes
        fleet.paths.observe(slot, sent.idle, told, rtt_ms=sent.rtt_ms, body_bytes=body_bytes)


def _first_try(outcome: Outcome) -> bool:
    return outcome.attempts in {None, 1}


def _rates(slot: int, entry: InFlight, outcome: Outcome, usage: Usage, fleet: Fleet) -> None:
    """How long the first token and the answer took, against what stood before and beside them."""
    sent, answer = entry.sent, _answer(outcome)
    if answer is not None:
        fleet.answers.observe(entry.ask.model, answer)
    if sent is None or outcome.where != entry.endpoint or not outcome.streamed or not _first_try(outcome):
        return
    ttft_ms, e2e_ms = outcome.sent_ttft_ms, outcome.sent_e2e_ms  # without its client's upload
    ended_s = entry.picked_s + e2e_ms / 1e3
    if not math.isnan(ttft_ms) and not math.isnan(sent.rtt_ms):
        fleet.rates.observe_prefill(
            slot,
            ended_s=ended_s,
            requests=prefills(sent.pending_requests),
            tokens=_uncached(entry, usage, fleet, slot) + sent.pending_uncached_tokens,
            ttft_ms=max(ttft_ms - _network_ms(entry, sent), _LEAST * ttft_ms),
            busy=sent.running_requests,
        )
    itl_ms = outcome.itl_ms
    if math.isnan(itl_ms) and answer is not None and answer > 1:
        itl_ms = (e2e_ms - ttft_ms) / (answer - 1)
    if answer is not None and answer >= _LEAST_ANSWER and not math.isnan(itl_ms):
        fleet.rates.observe_decode(slot, ended_s=ended_s, beside=sent.running_requests, itl_ms=itl_ms)


def _network_ms(entry: InFlight, sent: Sent) -> float:
    """The network's part of its first token, by what its connection was like where that is told."""
    told, body_bytes = entry.travelled, entry.ask.body_bytes
    if told is None:
        return network_ms(sent.rtt_ms, body_bytes)
    if told.anew:
        return cold_ms(sent.rtt_ms, body_bytes, sent.rtt_ms if math.isnan(told.opened_ms) else told.opened_ms)
    return network_ms(sent.rtt_ms, body_bytes, sent.upload_rounds)


def _answer(outcome: Outcome) -> int | None:
    """Tokens of the answer as the engine told them, else the pieces in which a stream came.

    Engines send a token a piece. Where pieces held several, the answer seems shorter and its tokens slower by
    one and the same factor, so that the time expected of the next one is right.
    """
    told = outcome.usage.completion_tokens
    return outcome.chunks if told is None and outcome.streamed else told


def _uncached(entry: InFlight, usage: Usage, fleet: Fleet, slot: int) -> float:
    """The prompt's uncached tokens as the engine told them, else as believed."""
    prompt_tokens = 0 if entry.prompt is None else entry.prompt.prompt_tokens
    if usage.cached_tokens is not None:
        whole = usage.prompt_tokens or prompt_tokens
        return prompt_tokens * max(1.0 - usage.cached_tokens / whole, 0.0) if whole else 0.0
    return fleet.calibration.to_prefill(slot, prompt_tokens, entry.expected_tokens)
