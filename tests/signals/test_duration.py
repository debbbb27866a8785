"""Durations: the terms, what they rest on, and that they are learned as they are predicted."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from epp.signals.duration import Duration, network_ms, predict_duration, prefills
from epp.types import RequestInfo
from tests.kit.fleets import fleet_view

REQUEST = RequestInfo("d", "m", 1000, 0, expected_output_tokens=101.0)


def duration(request: RequestInfo = REQUEST, **columns: float) -> Duration:
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
    return predict_duration(request, fleet_view(2, **both), 1)


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
