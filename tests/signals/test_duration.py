"""Durations: the prior, what is learned, what is bounded."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.signals.duration import ANSWER_TOKENS, BOUND, ITL_MS, PREFILL_MS_PER_TOKEN, Asked, DurationModel

ANY = st.floats(allow_nan=True, allow_infinity=True)


def asked(endpoint: str = "a:1", model: str = "m", work: float = 1000.0, limit: int | None = None) -> Asked:
    return Asked(endpoint, model, 100.0, work, limit)


def test_with_nothing_seen_the_prior_speaks() -> None:
    expected = DurationModel().predict(asked())
    first_s = 0.1 + PREFILL_MS_PER_TOKEN
    assert expected.first_token_s == pytest.approx(first_s)
    assert expected.end_s == pytest.approx(first_s + (ANSWER_TOKENS - 1) * ITL_MS / 1e3)


def test_a_clients_limit_bounds_the_answer() -> None:
    model = DurationModel()
    assert model.predict(asked(limit=1)).end_s == model.predict(asked(limit=1)).first_token_s
    assert model.predict(asked(limit=0)).end_s == model.predict(asked(limit=1)).end_s
    assert model.predict(asked(limit=100_000)) == model.predict(asked())


def test_what_is_seen_replaces_the_prior() -> None:
    model = DurationModel()
    for _ in range(60):
        model.learn(asked(), ttft_ms=100.0 + 2000.0, itl_ms=10.0, answer_tokens=50)
    expected = model.predict(asked())
    assert expected.first_token_s == pytest.approx(2.1, rel=0.05)
    assert expected.end_s - expected.first_token_s == pytest.approx(0.49, rel=0.2)
    assert model.predict(asked("b:1")).first_token_s < 1.0, "another endpoint has rates of its own"
    assert model.predict(asked(model="n")).end_s > model.predict(asked()).end_s, "and a model its answers"
    model.forget("a:1")
    assert model.predict(asked()).first_token_s == DurationModel().predict(asked()).first_token_s


def test_it_follows_a_change() -> None:
    model = DurationModel()
    for itl_ms in [10.0] * 200 + [40.0] * 200:
        model.learn(asked(), ttft_ms=math.nan, itl_ms=itl_ms, answer_tokens=101)
    expected = model.predict(asked())
    assert expected.end_s - expected.first_token_s == pytest.approx(4.0, rel=0.05)


def test_of_a_request_served_elsewhere_only_what_holds_there_is_learned() -> None:
    model = DurationModel()
    for _ in range(100):
        model.learn(asked(), ttft_ms=60_000.0, itl_ms=300.0, answer_tokens=None, at="b:1")
    assert model.predict(asked()) == DurationModel().predict(asked())
    assert model.predict(asked("b:1")).end_s > model.predict(asked()).end_s


@given(st.lists(st.tuples(ANY, ANY, st.none() | st.integers(0, 10**9), ANY), max_size=30))
def test_nothing_that_is_seen_makes_a_lease_absurd(
    seen: list[tuple[float, float, int | None, float]],
) -> None:
    model = DurationModel()
    for ttft_ms, itl_ms, tokens, work in seen:
        model.learn(asked(work=work), ttft_ms=ttft_ms, itl_ms=itl_ms, answer_tokens=tokens)
    expected, prior = model.predict(asked()), DurationModel().predict(asked())
    assert 0.1 < expected.first_token_s <= prior.first_token_s * BOUND
    assert expected.first_token_s <= expected.end_s <= prior.end_s * BOUND**2


def test_names_of_models_are_bounded() -> None:
    model = DurationModel()
    for number in range(10_000):
        model.learn(asked(model=f"m{number}"), ttft_ms=1.0, itl_ms=1.0, answer_tokens=1)
    assert len(model._answer) <= 256
