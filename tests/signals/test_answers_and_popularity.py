"""Expected answers by model, and which prefixes many prompts part from."""

from __future__ import annotations

import pytest

from epp.signals.answers import PRIOR_TOKENS, AnswerLengths
from epp.signals.popularity import FADE_S, Popularity


def test_a_model_without_answers_has_the_prior_within_the_clients_limit() -> None:
    answers = AnswerLengths()
    assert answers.expected("m") == PRIOR_TOKENS
    assert answers.expected("m", 16) == 16.0


def test_answers_are_learned_by_model() -> None:
    answers = AnswerLengths()
    for _ in range(300):
        answers.observe("short", 20)
        answers.observe("long", 900)
    assert answers.expected("short") == pytest.approx(20.0, abs=2.0)
    assert answers.expected("long") == pytest.approx(900.0, abs=10.0)
    assert answers.expected("long", 64) == 64.0


@pytest.mark.parametrize("tokens", [-1, 10**9])
def test_counts_that_no_engine_gives_teach_nothing(tokens: int) -> None:
    answers = AnswerLengths()
    answers.observe("m", tokens)
    assert answers.expected("m") == PRIOR_TOKENS


def test_names_that_clients_make_up_take_bounded_memory() -> None:
    answers = AnswerLengths()
    for index in range(3_000):
        answers.observe(f"m{index}", 10)
    assert answers.expected("m0") == PRIOR_TOKENS


def test_a_shared_prefix_is_popular_and_a_conversation_is_not() -> None:
    popularity = Popularity()
    assert [popularity.touch(7, 0.0) for _ in range(4)] == [0.0, 1.0, 2.0, 3.0]
    assert [popularity.touch(block, 0.0) for block in (11, 12, 13)] == [0.0, 0.0, 0.0]


def test_popularity_fades() -> None:
    popularity = Popularity()
    for _ in range(100):
        popularity.touch(7, 0.0)
    assert popularity.touch(7, 5.0 * FADE_S) < 1.0


def test_popularity_takes_bounded_memory() -> None:
    popularity = Popularity()
    popularity.touch(1, 0.0)
    for block in range(2, 30_000):
        popularity.touch(block, 0.0)
    assert popularity.touch(1, 0.0) == 0.0
