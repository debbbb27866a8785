"""Replicas that look keys up: as often right as they are said to be, always the same, nothing else changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from epp.apis.registry import PARSERS
from epp_lab.capability.questions import question
from epp_lab.sim.api import parse
from epp_lab.sim.lookup import Lookup

if TYPE_CHECKING:
    from epp_lab.sim.api import SimRequest

from epp.apis.language import language_of
from epp.types import SuccessCell

CHAT = PARSERS[0]


def asked(prompt: str) -> SimRequest:
    body = {"model": "chat", "messages": [{"role": "user", "content": prompt}]}
    return parse(CHAT, msgspec.json.encode(body))


@pytest.mark.parametrize("language", ["en", "ja", "zh"])
@pytest.mark.parametrize("tokens", [4096, 16_384])
def test_a_question_is_of_its_language_and_length(language: str, tokens: int) -> None:
    one = question(1, language, tokens)
    assert language_of(one.prompt.encode()) == language
    assert asked(one.prompt).prompt_tokens == pytest.approx(tokens, rel=0.1)
    assert one.prompt.count(one.value) == 1
    assert question(1, language, tokens) == one
    assert question(2, language, tokens).value != one.value


def test_answers_are_right_as_often_as_said_and_always_the_same() -> None:
    questions = [question(number, "en", 4096) for number in range(200)]
    for chance in (0.0, 0.3, 1.0):
        lookup = Lookup("m", {SuccessCell("en", 4096): chance})
        said = ["".join(lookup.words(asked(one.prompt))) for one in questions]
        assert sum(answer == one.value for answer, one in zip(said, questions, strict=True)) == pytest.approx(
            200 * chance, abs=25
        )
        assert all(answer in one.prompt for answer, one in zip(said, questions, strict=True))
        assert said[:5] == ["".join(lookup.words(asked(one.prompt))) for one in questions[:5]]
    assert Lookup("m", {}).words(asked(questions[0].prompt)) != [questions[0].value]
