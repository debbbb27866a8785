"""gorgo-ms: each term by hand, and the trades it is for."""

from __future__ import annotations

import math
from typing import Any

import pytest

from epp.policies.gorgo_ms import GorgoMs
from tests.kit.fleets import fleet_view, request

TERMS = ("network", "prefill", "waiting", "stall", "decode")
RATES: dict[str, float] = {
    "prefill_base_ms": 80.0,
    "prefill_ms_per_token": 0.06,
    "decode_base_ms": 7.0,
    "decode_ms_per_request": 1.5,
}


def _terms(policy: GorgoMs, columns: dict[str, list[float]], **asked: Any) -> dict[str, list[float]]:
    count = len(next(iter(columns.values())))
    values: dict[str, Any] = {name: [value] * count for name, value in RATES.items()} | columns
    snapshot = fleet_view(count, **values)
    ask = request(**{"prompt_tokens": 4000, "body_bytes": 14_600, "expected_output_tokens": 100.0} | asked)
    ranking = policy.rank(ask, snapshot, policy.default_weights(), 0)
    return {**{name: term.tolist() for name, term in ranking.terms.items()}, "cost": ranking.costs.tolist()}


def test_every_term_is_a_time_by_hand() -> None:
    terms = _terms(
        GorgoMs(),
        {
            "rtt_ms": [100.0],
            "cached_tokens": [1000.0],
            "uncached_tokens": [3000.0],
            "pending_uncached_tokens": [2000.0],
            "running_requests": [5.0],
            "decoding_requests": [3.0],
        },
    )
    own_ms = 0.06 * 3000 + 80
    assert terms["network"] == pytest.approx([100.0 * (1 + 0.7 * math.log2(2.0))])
    assert terms["prefill"] == pytest.approx([3 * own_ms])
    assert terms["waiting"] == pytest.approx([2 * (0.06 * 2000 + 0.5 * 80 * 2)])
    assert terms["stall"] == pytest.approx([0.25 * own_ms * 5])
    assert terms["decode"] == pytest.approx([100 * (7.0 + 1.5 * 5)])
    assert terms["cost"] == pytest.approx([sum(terms[name][0] for name in TERMS)])


URGENT: dict[str, list[float]] = {
    "rtt_ms": [100.0, 20.0],
    "cached_tokens": [1000.0, 0.0],
    "uncached_tokens": [3000.0, 4000.0],
    "pending_uncached_tokens": [0.0, 2000.0],
    "running_requests": [2.0, 4.0],
    "decoding_requests": [2.0, 2.0],
}


def test_who_waits_long_anyway_pays_more_for_the_time_to_the_first_token() -> None:
    plain = _terms(GorgoMs(), URGENT)
    least_ms = 170.0 + 0.06 * 3000 + 80  # the first one; the other one has 34 + 320 + 200 ms
    for usual_ms, share in (
        (least_ms, 1.0),
        (least_ms / 2, 2.0),
        (4 * least_ms, 0.25),
        (1e9, 0.05),
        (1.0, 20),
    ):
        terms = _terms(GorgoMs(), URGENT, usual_first_token_ms=usual_ms)
        for name, felt in (("network", 1), ("prefill", 1), ("waiting", 1), ("stall", 0), ("decode", 0)):
            priced = [value * (share**0.5 if felt else 1.0) for value in plain[name]]
            assert terms[name] == pytest.approx(priced), (name, usual_ms)
        summed = [sum(terms[name][row] for name in TERMS) for row in (0, 1)]
        assert terms["cost"] == pytest.approx(summed)
    same = _terms(GorgoMs(urgency_power=0.0), URGENT, usual_first_token_ms=1.0)
    assert same == plain


def test_hits_count_as_far_as_the_engine_keeps_them() -> None:
    columns = {
        "cached_tokens": [3000.0, 3000.0],
        "uncached_tokens": [1000.0, 1000.0],
        "hit_ratio": [1.0, 0.5],
    }
    kept, lost = _terms(GorgoMs(), columns)["prefill"]
    assert lost - kept == pytest.approx(3 * 0.06 * 1500)
    believed = _terms(GorgoMs(discount_hits=False), columns)["prefill"]
    assert believed[0] == believed[1]


def test_a_copy_of_a_prefix_that_many_share_costs_little_more_than_its_own_time() -> None:
    columns = {"cached_tokens": [3000.0, 0.0], "uncached_tokens": [1000.0, 4000.0]}
    private = _terms(GorgoMs(), columns)["prefill"]
    shared = _terms(GorgoMs(), columns, prefix_sharing=1000.0)["prefill"]
    assert private[1] - private[0] == pytest.approx(3 * 0.06 * 3000)
    assert shared[1] - shared[0] == pytest.approx(0.06 * 3000, rel=0.05)
    fixed = _terms(GorgoMs(popular=0.0), columns, prefix_sharing=1000.0)["prefill"]
    assert fixed == private


COLD: dict[str, list[float]] = {
    "rtt_ms": [200.0, 200.0, 200.0],
    "cold_chance": [0.0, 0.5, 1.0],
    "connect_ms": [210.0, 210.0, 210.0],
    "upload_rounds": [0.2, 0.2, 0.2],
}


def test_a_cold_connection_is_priced_apart_and_body_bytes_on_each() -> None:
    doublings = math.log2(1 + 72_000 / 14_600)
    warm, half, cold = _terms(GorgoMs(), COLD, body_bytes=72_000)["network"]
    assert warm == pytest.approx(200.0 * (1 + 0.2 * doublings))
    assert cold == pytest.approx(210.0 + 200.0 * (1 + doublings)), "the connect and all of slow start"
    assert half == pytest.approx((warm + cold) / 2)
    warm, _, cold = _terms(GorgoMs(), COLD, body_bytes=2_000)["network"]
    assert cold - warm == pytest.approx(210.0), "a short body fits into the first flight"


def test_without_a_word_on_connections_prices_are_what_they_were() -> None:
    columns: dict[str, list[float]] = {"rtt_ms": [20.0, 200.0]}
    seen = {**columns, "connect_ms": [30.0, 220.0]}
    before = _terms(GorgoMs(price_cold=False), columns, body_bytes=72_000)
    assert _terms(GorgoMs(), columns, body_bytes=72_000) == before
    assert _terms(GorgoMs(), seen, body_bytes=72_000) == before, "no chance of a cold one"
    for told in (COLD, {**COLD, "upload_rounds": [0.9] * 3}):
        off = _terms(GorgoMs(price_cold=False), told, body_bytes=72_000)["network"]
        assert off == pytest.approx([200.0 * (1 + 0.7 * math.log2(1 + 72_000 / 14_600))] * 3)
