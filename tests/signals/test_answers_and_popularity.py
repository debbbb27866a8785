"""Expected answers by model, and which prefixes many prompts part from."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.signals.answers import PRIOR_TOKENS, AnswerLengths
from epp.signals.popularity import BURST_S, FADE_S, Popularity


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
    seen = [popularity.touch(7, number * BURST_S) for number in range(4)]
    assert seen == pytest.approx([0.0, 1.0, 2.0, 3.0], rel=0.07)  # they fade a little meanwhile
    assert [popularity.touch(block, 0.0) for block in (11, 12, 13)] == [0.0, 0.0, 0.0]


@given(st.lists(st.floats(0.0, 0.3), max_size=40))
def test_a_burst_counts_as_one_request_and_the_part_of_a_burst_that_it_took(starts_s: list[float]) -> None:
    popularity = Popularity()
    for start_s in sorted([0.0, *starts_s]):
        popularity.touch(7, start_s)
    after_s = BURST_S + 0.3
    assert popularity.touch(7, after_s) <= 1.0 + 0.3 / BURST_S
    assert popularity.touch(8, after_s) == 0.0


def test_requests_that_keep_coming_count_by_the_time_that_they_take() -> None:
    few, many = Popularity(), Popularity()
    for number in range(600):
        many.touch(7, number * 0.1)
    for number in range(30):
        few.touch(7, number * BURST_S)
    assert many.touch(7, 60.0) == pytest.approx(few.touch(7, 60.0), rel=0.1)


def test_popularity_fades() -> None:
    popularity = Popularity()
    for number in range(100):
        popularity.touch(7, number * BURST_S)
    assert popularity.touch(7, 100 * BURST_S) > 20.0
    assert popularity.touch(7, 100 * BURST_S + 5.0 * FADE_S) < 1.0


def test_popularity_takes_bounded_memory() -> None:
    popularity = Popularity()
    popularity.touch(1, 0.0)
    for block in range(2, 30_000):
        popularity.touch(block, 0.0)
    assert popularity.touch(1, 9.0) == 0.0
    assert popularity.touch(29_999, 9.0) > 0.0
