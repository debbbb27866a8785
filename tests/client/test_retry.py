"""The client's half of the retry protocol, against a resource that answers as it is told."""

from __future__ import annotations

from typing import Any

import pytest

from epp.client import TRIED_HEADER, Attempt, Found, first_correct, first_correct_async


class Raw:
    def __init__(self, text: str, headers: dict[str, str]) -> None:
        self.text, self.headers = text, headers

    def parse(self) -> str:
        return self.text


class Models:
    """A pool of models behind a picker that sends each request to the first that was not tried."""

    def __init__(self, answers: dict[str, str], *, tells: bool = True) -> None:
        self.answers, self.tells = answers, tells
        self.asked: list[dict[str, Any]] = []

    @property
    def with_raw_response(self) -> Models:
        return self

    def create(self, **options: Any) -> Raw:
        self.asked.append(options)
        tried = options["extra_headers"].get(TRIED_HEADER, "").split(",")
        chosen, *left = [name for name in self.answers if name not in tried] or list(self.answers)[:1]
        if not self.tells:
            return Raw(self.answers[chosen], {})
        headers = {"x-epp-served-model": chosen, "x-epp-untried-models": str(len(left))}
        return Raw(self.answers[chosen], {**headers, "x-epp-decision-id": f"d-{len(self.asked)}"})


class AsyncModels(Models):
    @property
    def with_raw_response(self) -> AsyncModels:
        return self

    async def create(self, **options: Any) -> Raw:  # type: ignore[override]  # the SDK's two faces
        return super().create(**options)


def is_42(answer: str) -> bool:
    return answer == "42"


def test_each_attempt_names_those_that_failed() -> None:
    models = Models({"a": "1", "b": "2", "c": "42", "d": "42"})
    told: list[Attempt] = []
    found = first_correct(models, is_42, on_attempt=told.append, model="m", extra_headers={"x-own": "1"})
    assert (found.correct, found.answer) == (True, "42")
    assert [attempt.model for attempt in found.attempts] == ["a", "b", "c"]
    assert [attempt.decision_id for attempt in told] == ["d-1", "d-2", "d-3"]
    assert [options["extra_headers"] for options in models.asked] == [
        {"x-own": "1"},
        {"x-own": "1", TRIED_HEADER: "a"},
        {"x-own": "1", TRIED_HEADER: "a,b"},
    ]
    assert all(options["model"] == "m" for options in models.asked)
    assert found.seconds == sum(attempt.seconds for attempt in found.attempts)


def test_it_ends_when_no_model_is_left_and_goes_on_when_told_to() -> None:
    answers = {"a": "1", "b": "2"}
    found = first_correct(Models(answers), is_42)
    assert (found.correct, len(found.attempts), found.answer) == (False, 2, "2")
    assert len(first_correct(Models(answers), is_42, repeat=True, max_attempts=7).attempts) == 7


def test_a_picker_that_tells_nothing_is_asked_until_the_limit() -> None:
    models = Models({"a": "1"}, tells=False)
    found = first_correct(models, is_42, max_attempts=4)
    assert [attempt.model for attempt in found.attempts] == [""] * 4
    assert all(TRIED_HEADER not in options["extra_headers"] for options in models.asked)


def test_errors_are_the_callers() -> None:
    class Broken(Models):
        def create(self, **options: Any) -> Raw:
            raise ConnectionError(f"gone with {options}")

    with pytest.raises(ConnectionError):
        first_correct(Broken({}), is_42)
    assert not Found().correct


async def test_the_asynchronous_form_does_the_same() -> None:
    async def check(answer: str) -> bool:
        return is_42(answer)

    for judge in (is_42, check):
        models = AsyncModels({"a": "1", "b": "42"})
        found = await first_correct_async(models, judge, model="m")
        assert [attempt.model for attempt in found.attempts] == ["a", "b"]
        assert found.correct
