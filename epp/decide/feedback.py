"""What an outcome teaches: tokens in a model's bytes, and how far the prefix index can be believed.

Owns which outcomes teach what. The stores that learn own how.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from epp.signals.calibration import Finished

if TYPE_CHECKING:
    from collections.abc import Callable

    from epp.decide.in_flight import InFlight
    from epp.decide.records import Outcome
    from epp.signals.fleet import Fleet

#: Ends at which an engine has done all of a request's work.
_DONE = frozenset({"completed", "retried-elsewhere", "stream-end", "unobserved"})
_FIRST_ERROR = 400


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
    if ask.prompt is None:
        return
    if usage.prompt_tokens is not None and ask.text_bytes and learn is not None:
        learn(ask.model, ask.text_bytes, usage.prompt_tokens)
    slot = fleet.slot_of(outcome.where)
    if slot is None or outcome.cause not in _DONE or (outcome.status or 0) >= _FIRST_ERROR:
        return
    counted = ask.prompt.prompt_tokens
    as_picked = outcome.where == entry.endpoint
    expected = entry.expected_tokens if as_picked else 0.0
    if usage.cached_tokens is not None and as_picked and counted:
        scale = 1.0 if usage.prompt_tokens is None else usage.prompt_tokens / counted
        fleet.calibration.cached(slot, expected * scale, float(usage.cached_tokens))
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
