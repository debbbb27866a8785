"""Durations: the terms, what they rest on, and that they are learned as they are predicted."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from epp.policies.gorgo_ms import GorgoMs
from epp.signals.duration import Duration, predict_duration, prefills
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
    assert duration(prefill_base_ms=0.0, prefill_ms_per_token=0.0).first_token_s == 0.1
    long = replace(REQUEST, body_bytes=3 * 14_600)
    assert duration(long, prefill_base_ms=0.0, prefill_ms_per_token=0.0).first_token_s == pytest.approx(0.24)
    for tokens in (0.0, 1.0):
        one = duration(replace(REQUEST, expected_output_tokens=tokens))
        assert one.end_s == one.first_token_s


@pytest.mark.parametrize("body_bytes", [0, 2_000, 14_600, 14_601, 72_000])
@pytest.mark.parametrize("cold_chance", [0.0, 0.3, 1.0])
def test_the_network_is_predicted_as_it_is_priced(body_bytes: int, cold_chance: float) -> None:
    request = replace(REQUEST, body_bytes=body_bytes)
    columns: dict[str, Any] = {"rtt_ms": [205.0], "connect_ms": [190.0], "cold_chance": [cold_chance]}
    snapshot = fleet_view(1, upload_rounds=[0.4], **columns)
    policy = GorgoMs(urgency_power=0.0)
    weights = {name: spec.default for name, spec in policy.weight_specs.items()}
    priced_ms = policy.rank(request, snapshot, weights, 0).terms["network"][0]
    assert predict_duration(request, snapshot, 0).first_token_s * 1e3 == pytest.approx(priced_ms)
