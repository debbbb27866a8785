"""Expected answers by model, and which prefixes many prompts part from."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.signals.model_means import BURST_S, FADE_S, PRIOR_TOKENS, AnswerLengths, FirstTokens, Popularity


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


def test_nothing_is_usual_before_there_were_enough() -> None:
    first = FirstTokens()
    for _ in range(19):
        first.observe("m", 300.0)
    assert first.usual_ms("m") == 0.0
    first.observe("m", 500.0)
    assert first.usual_ms("m") == pytest.approx(310.0)
    assert first.usual_ms("other") == 0.0


def test_a_shared_prefix_is_popular_and_a_conversation_is_not() -> None:
    popularity = Popularity()
    seen = []
    for number in range(4):
        seen.append(popularity.sharing(7, number * BURST_S))
        popularity.count(7, number * BURST_S)
    assert seen == pytest.approx([0.0, 1.0, 2.0, 3.0], rel=0.07)  # they fade a little meanwhile
    for block in (11, 12, 13):
        popularity.count(block, 0.0)
    assert popularity.sharing(14, 0.0) == 0.0


@given(st.lists(st.floats(0.0, 0.3), max_size=40))
def test_a_burst_counts_as_one_request_and_the_part_of_a_burst_that_it_took(starts_s: list[float]) -> None:
    popularity = Popularity()
    for start_s in sorted([0.0, *starts_s]):
        popularity.count(7, start_s)
    after_s = BURST_S + 0.3
    assert popularity.sharing(7, after_s) <= 1.0 + 0.3 / BURST_S
    assert popularity.sharing(8, after_s) == 0.0


def test_popularity_fades() -> None:
    popularity = Popularity()
    for number in range(100):
        popularity.count(7, number * BURST_S)
    assert popularity.sharing(7, 100 * BURST_S) > 20.0
    assert popularity.sharing(7, 100 * BURST_S + 5.0 * FADE_S) < 1.0
