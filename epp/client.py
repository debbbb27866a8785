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
from dataclasses import dataclass, field, replace
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
        """Return the calls that give the response's headers, too."""
        ...


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt.

    Attributes:
        model: which model answered, as the picker reports it; ``""`` when it does not.
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
        """Return whether a correct answer was found."""
        return bool(self.attempts) and self.attempts[-1].correct

    @property
    def seconds(self) -> float:
        """Return the time to the first correct answer, or spent without one."""
        return sum(attempt.seconds for attempt in self.attempts)


class _Asking:
    """The attempts so far, and what the next one is sent with."""

    def __init__(self, options: Mapping[str, Any], *, max_attempts: int, repeat: bool) -> None:
        self.found = Found()
        self._options, self._max, self._repeat = options, max_attempts, repeat
        self._tried: dict[str, None] = {}
        self._is_left = True
        self._started_s = 0.0

    def next(self) -> dict[str, Any] | None:
        """Return the options of the next attempt, None when there is none."""
        if self.found.correct or len(self.found.attempts) >= self._max or not (self._is_left or self._repeat):
            return None
        headers = dict(self._options.get("extra_headers") or {})
        if self._tried:
            headers[TRIED_HEADER] = ",".join(self._tried)
        self._started_s = time.monotonic()
        return {**self._options, "extra_headers": headers}

    def parsed(self, raw: Any) -> Any:
        """Take an answer, which is checked next."""
        model = raw.headers.get(SERVED_HEADER, "")
        self.found.answer = raw.parse()
        seconds = time.monotonic() - self._started_s
        self.found.attempts.append(Attempt(model, raw.headers.get(DECISION_HEADER, ""), False, seconds))
        # A picker that reports no models cannot say that none is left.
        self._is_left = raw.headers.get(UNTRIED_HEADER, "") != "0"
        if model:
            self._tried[model] = None
        return self.found.answer

    def judge(self, correct: object, on_attempt: Callable[[Attempt], None] | None) -> None:
        """Take the check's word on the last answer."""
        attempt = self.found.attempts[-1] = replace(self.found.attempts[-1], correct=bool(correct))
        if on_attempt is not None:
            on_attempt(attempt)


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
    while (sent := asking.next()) is not None:
        answer = asking.parsed(resource.with_raw_response.create(**sent))
        asking.judge(check(answer), on_attempt)
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
    while (sent := asking.next()) is not None:
        verdict = check(asking.parsed(await resource.with_raw_response.create(**sent)))
        asking.judge(await verdict if inspect.isawaitable(verdict) else verdict, on_attempt)
    return asking.found
