"""Durations: the terms, what they rest on, and that they are learned as they are foretold."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from epp.signals.duration import Duration, foretell, network_ms, prefills
from epp.signals.rates import DEFAULT_PRIOR, Rates, RateTable
from epp.types import RequestView
from tests.kit.fleets import fleet_view

ANY = st.floats(allow_nan=True, allow_infinity=True)
RATES = tuple(one.name for one in fields(Rates))
REQUEST = RequestView("d", "m", 1000, 0, expected_output_tokens=101.0)


def duration(request: RequestView = REQUEST, **columns: float) -> Duration:
    values = {
        "rtt_ms": 100.0,
        "cached_tokens": 200.0,
        "hit_ratio": 1.0,
        "prefill_base_ms": 20.0,
        "prefill_ms_per_token": 0.5,
        "decode_base_ms": 10.0,
        "decode_ms_per_request": 2.0,
    } | columns
    both: dict[str, Any] = {name: [9e9, value] for name, value in values.items()}
    return foretell(request, fleet_view(2, **both), 1)


def test_every_term_counts() -> None:
    alone = duration()
    assert alone.first_token_s == pytest.approx(0.1 + 0.02 + 0.5 * 0.8)
    assert alone.end_s == pytest.approx(alone.first_token_s + 1.0)
    ahead = duration(pending_uncached_tokens=600.0, running_requests=4.0, decoding_requests=1.0)
    assert ahead.first_token_s == pytest.approx(0.1 + 0.02 * prefills(3.0) + 0.5 * 1.4)
    assert ahead.end_s - ahead.first_token_s == pytest.approx(1.8)
    assert duration(hit_ratio=0.5).first_token_s == pytest.approx(0.1 + 0.02 + 0.5 * 0.9)
    assert duration(hit_ratio=1.5, cached_tokens=1000.0).first_token_s == pytest.approx(0.12), "never below 0"


def test_long_bodies_take_round_trips_and_short_answers_no_steps() -> None:
    assert network_ms(100.0, 0) == 100.0
    assert network_ms(100.0, 3 * 14_600) == pytest.approx(240.0)
    for tokens in (0.0, 1.0):
        one = duration(replace(REQUEST, expected_output_tokens=tokens))
        assert one.end_s == one.first_token_s


def test_what_is_learned_is_foretold_and_an_endpoint_that_leaves_is_forgotten() -> None:
    rates = RateTable()
    rates.resize(2)
    rates.assign(0, "x")
    for number in range(400):
        tokens, running = float(number % 20 * 200), float(number % 8)
        rates.observe_prefill(
            0, ended_s=1.0, requests=prefills(0.0), tokens=tokens, ttft_ms=40.0 + 0.2 * tokens
        )
        rates.observe_decode(0, ended_s=1.0, beside=running, itl_ms=6.0 + 0.5 * running)
    known = {name: getattr(rates.of(0), name) for name in RATES}
    expected = duration(running_requests=4.0, decoding_requests=4.0, **known)
    assert expected.first_token_s == pytest.approx(0.1 + 0.04 + 0.2 * 0.8, rel=0.1)
    assert expected.end_s - expected.first_token_s == pytest.approx(0.8, rel=0.1)
    rates.forget(0)
    assert rates.describe({}) == {}
    assert not rates.observe_decode(0, ended_s=1.0, beside=1.0, itl_ms=5.0), "nobody is there to learn of"
    rates.assign(0, "y")
    assert rates.of(0) == DEFAULT_PRIOR


@given(st.lists(st.tuples(ANY, ANY, ANY), max_size=30))
def test_nothing_that_is_seen_makes_a_lease_absurd(seen: list[tuple[float, float, float]]) -> None:
    rates = RateTable()
    rates.resize(1)
    rates.assign(0, "x")
    for tokens, ttft_ms, itl_ms in seen:
        if not math.isnan(tokens) and tokens < 1e6:
            rates.observe_prefill(0, ended_s=1.0, requests=1.0, tokens=tokens, ttft_ms=ttft_ms)
        rates.observe_decode(0, ended_s=1.0, beside=1.0, itl_ms=itl_ms)
    block = rates.block()[:, 0]
    assert bool((np.isfinite(block) & (block > 0.0)).all())
    expected = duration(**dict(zip(RATES, block.tolist(), strict=True)))
    assert 0.1 < expected.first_token_s <= expected.end_s < 3600.0
