"""How long a request will take: what leases end by when nobody sees the response.

Owns what was learned from requests that were seen. A request's time is the round trip, the prefill of the
uncached tokens that stand before its first token (they explain TTFT best: R2 0.714 against 0.625 for all
queued tokens, design section 7), and one decode step per token of its answer. Each rate is a ratio of two
decayed sums that begin as a prior worth a few requests: with nothing seen the prior speaks, after some
dozens of requests it is not heard any more, and no rate leaves `BOUND` times the prior in either direction,
so that no odd outcome makes a lease last for hours.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass

PREFILL_MS_PER_TOKEN = 0.3
"""Prior: some 3,000 tokens a second, between an L40S pair's and an H100's."""
ITL_MS = 30.0
"""Prior: a decode step of a loaded engine."""
ANSWER_TOKENS = 256.0
"""Prior of an answer's length, where the client's limit is not lower."""
BOUND = 30.0
"""A rate stays within this factor of its prior."""

_DECAY = 0.98  # an estimate rests on the last fifty requests
_PRIOR_REQUESTS = 4.0
_PRIOR_WORK_TOKENS = 1000.0
_PRIOR_STEPS = 64.0
_MAX_MODELS = 256


@dataclass(frozen=True, slots=True)
class Asked:
    """What is known of a request when it is sent.

    Attributes:
        endpoint: address picked.
        model: name of the model, ``""`` for none.
        rtt_ms: round trip to the endpoint.
        work_tokens: uncached tokens that stand before its first token, its own among them.
        max_output_tokens: the client's limit.
    """

    endpoint: str
    model: str
    rtt_ms: float
    work_tokens: float
    max_output_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Duration:
    """Seconds after the pick, the first not later than the second."""

    first_token_s: float
    end_s: float


class _Ratio:
    """``sum(y) / sum(x)``, decayed, beginning as a prior."""

    __slots__ = ("_prior", "_x", "_y")

    def __init__(self, prior: float, weight: float) -> None:
        self._prior = prior
        self._x, self._y = weight, weight * prior

    @property
    def value(self) -> float:
        return min(max(self._y / self._x, self._prior / BOUND), self._prior * BOUND)

    def add(self, x: float, y: float) -> None:
        if x > 0.0 and math.isfinite(y) and y >= 0.0:
            self._x = self._x * _DECAY + x
            self._y = self._y * _DECAY + y


class DurationModel:
    """Learns rates per endpoint and answer lengths per model; memory is bounded by both."""

    def __init__(self) -> None:
        self._prefill: dict[str, _Ratio] = {}
        self._itl: dict[str, _Ratio] = {}
        self._answer: OrderedDict[str, _Ratio] = OrderedDict()

    def predict(self, asked: Asked) -> Duration:
        """When the first token and the end of an answer are to be expected."""
        rtt_ms = asked.rtt_ms if math.isfinite(asked.rtt_ms) else 0.0
        prefill = self._prefill.get(asked.endpoint)
        itl = self._itl.get(asked.endpoint)
        answer = self._answer.get(asked.model)
        tokens = ANSWER_TOKENS if answer is None else answer.value
        if asked.max_output_tokens is not None:
            tokens = min(tokens, float(max(asked.max_output_tokens, 1)))
        per_token = PREFILL_MS_PER_TOKEN if prefill is None else prefill.value
        first_ms = rtt_ms + per_token * max(asked.work_tokens, 1.0)
        decode_ms = max(tokens - 1.0, 0.0) * (ITL_MS if itl is None else itl.value)
        return Duration(first_ms / 1e3, (first_ms + decode_ms) / 1e3)

    def learn(
        self, asked: Asked, *, ttft_ms: float, itl_ms: float, answer_tokens: int | None, at: str = ""
    ) -> None:
        """Take what was seen of a request; what was not seen is NaN or None.

        Args:
            asked: as it was predicted from.
            ttft_ms: from the pick to the first token.
            itl_ms: mean time between tokens.
            answer_tokens: length of the whole answer; None also for one that was cut short.
            at: address that really served; the pick when empty.
        """
        if not at or at == asked.endpoint:  # of another endpoint nothing was foretold
            rtt_ms = asked.rtt_ms if math.isfinite(asked.rtt_ms) else 0.0
            prefill = self._prefill.setdefault(
                asked.endpoint, _Ratio(PREFILL_MS_PER_TOKEN, _PRIOR_WORK_TOKENS)
            )
            prefill.add(max(asked.work_tokens, 1.0), max(ttft_ms - rtt_ms, 0.0))
        if answer_tokens is not None:
            self._learn_answer(asked.model, answer_tokens)
        if math.isfinite(itl_ms):
            steps = float((answer_tokens or 2) - 1)
            itl = self._itl.setdefault(at or asked.endpoint, _Ratio(ITL_MS, _PRIOR_STEPS))
            itl.add(steps, itl_ms * steps)

    def forget(self, endpoint: str) -> None:
        """The endpoint left or restarted as another."""
        self._prefill.pop(endpoint, None)
        self._itl.pop(endpoint, None)

    def _learn_answer(self, model: str, tokens: int) -> None:
        answer = self._answer.get(model)
        if answer is None:
            if len(self._answer) >= _MAX_MODELS:
                self._answer.popitem(last=False)
            answer = self._answer[model] = _Ratio(ANSWER_TOKENS, _PRIOR_REQUESTS)
        self._answer.move_to_end(model)
        answer.add(1.0, float(tokens))
