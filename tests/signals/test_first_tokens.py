"""Usual times to first token by model."""

from __future__ import annotations

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
