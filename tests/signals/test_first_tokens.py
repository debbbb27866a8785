"""Usual times to first token by model."""

from __future__ import annotations

import math

import pytest

from epp.signals.first_tokens import FirstTokens


def test_nothing_is_usual_before_there_were_enough() -> None:
    first = FirstTokens()
    for _ in range(19):
        first.observe("m", 300.0)
    assert first.usual_ms("m") == 0.0
    first.observe("m", 500.0)
    assert first.usual_ms("m") == pytest.approx(310.0)
    assert first.usual_ms("other") == 0.0


def test_the_mean_follows_the_last_hundred_or_so() -> None:
    first = FirstTokens()
    for _ in range(1000):
        first.observe("m", 300.0)
    for _ in range(100):
        first.observe("m", 1300.0)
    assert first.usual_ms("m") == pytest.approx(300.0 + 1000.0 * (1 - 0.99**100))


@pytest.mark.parametrize("none", [0.0, -1.0, math.inf, math.nan])
def test_what_is_no_time_teaches_nothing(none: float) -> None:
    first = FirstTokens()
    for _ in range(30):
        first.observe("m", none)
    assert first.usual_ms("m") == 0.0


def test_names_that_clients_make_up_take_bounded_memory() -> None:
    first = FirstTokens()
    for _ in range(20):
        first.observe("old", 10.0)
    for index in range(1_000):
        first.observe(f"m{index}", 10.0)
    assert first.usual_ms("old") == 0.0
