"""Asking again after a wrong answer: the client's half of the retry protocol, for the OpenAI SDK.

    from openai import OpenAI
    from epp.client import first_correct

    client = OpenAI(base_url="http://envoy:8080/v1", api_key="-", max_retries=0)
    found = first_correct(
        client.chat.completions, lambda answer: answer.choices[0].message.content == "42",
        model="chat", messages=[{"role": "user", "content": "..."}], temperature=0,
    )

Owns the attempts' state: which models have failed. It goes along with each attempt in a header; nothing is
kept anywhere else. Imports nothing of the SDK: any resource with ``with_raw_response.create`` will do. Of the
rest of this package it imports nothing, so that the file may be copied.
"""

from __future__ import annotations

import inspect
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

SERVED_HEADER = "x-epp-served-model"
UNTRIED_HEADER = "x-epp-untried-models"
TRIED_HEADER = "x-epp-tried-models"
DECISION_HEADER = "x-epp-decision-id"
MAX_ATTEMPTS = 10


class Resource(Protocol):
    """E.g. ``client.chat.completions``."""

    @property
    def with_raw_response(self) -> Any:
        """The same calls, with the response's headers."""
        ...


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt.

    Attributes:
        model: which model answered, as the picker tells it; ``""`` when it does not.
        decision_id: for `epp feedback`; ``""`` when it is not told.
        correct: the check's word.
        seconds: from sending to the whole answer.
    """

    model: str
    decision_id: str
    correct: bool
    seconds: float


@dataclass(slots=True)
class Found:
    """What came of it.

    Attributes:
        answer: the first correct answer, else the last one.
        attempts: in order.
    """

    answer: Any = None
    attempts: list[Attempt] = field(default_factory=list)

    @property
    def correct(self) -> bool:
        """Whether a correct answer was found."""
        return bool(self.attempts) and self.attempts[-1].correct

    @property
    def seconds(self) -> float:
        """Time to the first correct answer, or spent without one."""
        return sum(attempt.seconds for attempt in self.attempts)


class _Asking:
    """The attempts so far, and what the next one is sent with."""

    def __init__(self, options: Mapping[str, Any], *, max_attempts: int, repeat: bool) -> None:
        if max_attempts < 1:
            raise ValueError(f"max_attempts must be at least 1, not {max_attempts}")
        self.found = Found()
        self._options, self._max, self._repeat = dict(options), max_attempts, repeat
        self._headers = dict(self._options.pop("extra_headers", None) or {})
        self._tried: dict[str, None] = {}
        self._left = True
        self._started = 0.0

    @property
    def over(self) -> bool:
        attempts = len(self.found.attempts)
        return self.found.correct or attempts >= self._max or not (self._left or self._repeat)

    def options(self) -> dict[str, Any]:
        headers = dict(self._headers)
        if self._tried:
            headers[TRIED_HEADER] = ",".join(self._tried)
        self._started = time.monotonic()
        return {**self._options, "extra_headers": headers}

    def answered(self, raw: Any) -> Any:
        self.found.answer = raw.parse()
        return self.found.answer

    def judged(self, raw: Any, *, correct: bool, seconds: float) -> None:
        model = raw.headers.get(SERVED_HEADER, "")
        decision_id = raw.headers.get(DECISION_HEADER, "")
        self.found.attempts.append(Attempt(model, decision_id, correct, seconds))
        # A picker that tells nothing of models cannot say that none is left.
        self._left = raw.headers.get(UNTRIED_HEADER, "") != "0"
        if model:
            self._tried[model] = None

    def passed(self) -> float:
        return time.monotonic() - self._started


def first_correct(
    resource: Resource,
    check: Callable[[Any], bool],
    *,
    max_attempts: int = MAX_ATTEMPTS,
    repeat: bool = False,
    on_attempt: Callable[[Attempt], None] | None = None,
    **options: Any,
) -> Found:
    """Ask until an answer is correct, each time another model while there is one.

    Args:
        resource: a resource of the SDK, e.g. ``client.chat.completions``.
        check: whether an answer is correct.
        max_attempts: most attempts.
        repeat: go on when every model has been tried: of use only where answers are drawn (temperature > 0).
        on_attempt: told of every attempt, e.g. to send feedback.
        options: of ``create``; streams cannot be checked before they end and are not for this.

    Raises:
        Exception: whatever the SDK raises; an error is no wrong answer.
    """
    asking = _Asking(options, max_attempts=max_attempts, repeat=repeat)
    while not asking.over:
        raw = resource.with_raw_response.create(**asking.options())
        answer = asking.answered(raw)
        seconds = asking.passed()
        asking.judged(raw, correct=bool(check(answer)), seconds=seconds)
        if on_attempt is not None:
            on_attempt(asking.found.attempts[-1])
    return asking.found


async def first_correct_async(
    resource: Resource,
    check: Callable[[Any], bool | Awaitable[bool]],
    *,
    max_attempts: int = MAX_ATTEMPTS,
    repeat: bool = False,
    on_attempt: Callable[[Attempt], None] | None = None,
    **options: Any,
) -> Found:
    """`first_correct` for the asynchronous SDK; the check may be a coroutine function.

    Raises:
        Exception: whatever the SDK raises.
    """
    asking = _Asking(options, max_attempts=max_attempts, repeat=repeat)
    while not asking.over:
        raw = await resource.with_raw_response.create(**asking.options())
        answer = asking.answered(raw)
        seconds = asking.passed()
        verdict = check(answer)
        correct = bool(await verdict) if inspect.isawaitable(verdict) else bool(verdict)
        asking.judged(raw, correct=correct, seconds=seconds)
        if on_attempt is not None:
            on_attempt(asking.found.attempts[-1])
    return asking.found
