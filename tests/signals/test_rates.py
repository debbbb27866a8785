"""Rates learned from outcomes: right on clean data, calm on dirty data, and honest about having none."""

from __future__ import annotations

import itertools
import math

import pytest

from epp.keyed_uniform import keyed_uniform
from epp.signals.rates import DEFAULT_PRIOR, PRIORS, Rates, RateState, RateTable

#: When requests end: one a second.
_SECONDS = itertools.count(1.0)


def _noise(key: str, spread: float = 0.3) -> float:
    """A factor around 1 with a long right tail, keyed."""
    u = max(keyed_uniform(1, key, "u"), 1e-9)
    return math.exp(spread * math.sqrt(-2.0 * math.log(u)) * math.cos(6.283 * keyed_uniform(1, key, "v")))


def _table(classes: dict[int, str]) -> RateTable:
    table = RateTable()
    table.resize(8)
    for slot, engine_class in classes.items():
        table.assign(slot, engine_class)
    return table


def _feed(
    table: RateTable, slot: int, rates: Rates, count: int = 400, key: str = "", *, at_once: bool = False
) -> None:
    ended_s = next(_SECONDS)
    for index in range(count):
        ended_s = ended_s if at_once else next(_SECONDS)
        tokens = 50.0 + 12_000.0 * keyed_uniform(2, f"{slot}{key}{index}", "tokens") ** 2
        ttft_ms = rates.prefill_base_ms + rates.prefill_ms_per_token * tokens
        noise = _noise(f"{slot}{key}{index}")
        table.observe_prefill(slot, ended_s=ended_s, requests=1.0, tokens=tokens, ttft_ms=ttft_ms * noise)
        beside = 1.0 + 20.0 * keyed_uniform(2, f"{slot}{key}{index}", "beside")
        itl_ms = rates.decode_base_ms + rates.decode_ms_per_request * beside
        itl_ms *= _noise(f"{slot}{key}i{index}")
        table.observe_decode(slot, ended_s=ended_s, beside=beside, itl_ms=itl_ms)


def _half_as_fast(rates: Rates) -> Rates:
    return Rates(*(2.0 * value for value in rates))


def test_without_measurements_a_class_stays_on_its_prior_and_says_so() -> None:
    table = _table({0: "H100-SXM", 1: "something-new"})
    assert table.of(0) == PRIORS["h100"]
    assert table.of(1) == DEFAULT_PRIOR
    assert table.describe({0: "a:1", 1: "b:1"})["H100-SXM"].state is RateState.PRIORS


@pytest.mark.parametrize("ttft_ms", [math.nan, math.inf, -5.0, 0.0, 1e9])
def test_absurd_times_teach_nothing(ttft_ms: float) -> None:
    table = _table({0: "l40s"})
    table.observe_prefill(0, ended_s=1.0, requests=1.0, tokens=100.0, ttft_ms=ttft_ms)
    table.observe_decode(0, ended_s=1.0, beside=1.0, itl_ms=ttft_ms)
    assert table.of(0) == PRIORS["l40s"]


def test_classes_learn_their_own_rates_and_pool_their_endpoints() -> None:
    fast, slow = Rates(40.0, 0.015, 4.0, 0.5), Rates(90.0, 0.09, 10.0, 2.0)
    table = _table({0: "x", 1: "x", 2: "y", 3: "y"})
    for slot, rates in ((0, fast), (1, fast), (2, slow), (3, slow)):
        _feed(table, slot, rates)
    assert table.of(0) == table.of(1)
    assert table.of(2) == table.of(3)
    assert table.of(0).prefill_ms_per_token == pytest.approx(0.015, rel=0.2)
    assert table.of(2).prefill_ms_per_token == pytest.approx(0.09, rel=0.2)
    assert table.of(2).decode_ms_per_request == pytest.approx(2.0, rel=0.3)


def test_an_endpoint_twice_as_slow_is_told_apart_and_forgiven() -> None:
    rates = PRIORS["l40s"]
    half = _half_as_fast(rates)
    table = _table(dict.fromkeys(range(3), "l40s"))
    for part in range(8):
        for slot in range(3):
            _feed(table, slot, half if slot == 0 else rates, count=20, key=str(part))
    assert table.of(0).prefill_ms_per_token > 1.5 * table.of(1).prefill_ms_per_token
    assert list(table.describe({0: "a:1", 1: "b:1", 2: "c:1"})["l40s"].slow) == ["a:1"]
    for part in range(8, 20):
        for slot in range(3):
            _feed(table, slot, rates, count=20, key=str(part))
    assert table.of(0) == table.of(1)


def test_a_class_that_is_asked_no_more_returns_to_its_priors() -> None:
    prior = PRIORS["l40s"]
    crawling = Rates(*(10.0 * value for value in prior))
    table = _table({0: "l40s", 1: "h100"})
    _feed(table, 0, crawling)
    learned = table.of(0)
    assert learned.prefill_ms_per_token > 5.0 * prior.prefill_ms_per_token
    _feed(table, 1, PRIORS["h100"], count=400)
    assert table.of(0) == learned, "800 samples of others are not long"
    _feed(table, 1, PRIORS["h100"], count=5_000, key="long")
    assert table.of(0).prefill_ms_per_token < 1.5 * prior.prefill_ms_per_token
    assert table.of(0).decode_base_ms < 1.5 * prior.decode_base_ms
    _feed(table, 0, crawling, count=100, key="again")
    assert table.of(0).prefill_ms_per_token > 3.0 * prior.prefill_ms_per_token, "and learned again"


def test_an_endpoint_alone_in_its_class_is_told_when_it_becomes_slower_and_when_it_is_well_again() -> None:
    rates = PRIORS["h100"]
    half = _half_as_fast(rates)
    table = _table({0: "h100"})
    _feed(table, 0, rates)
    well = table.of(0)
    _feed(table, 0, half, count=60, key="slow")
    assert list(table.describe({0: "a:1"})["h100"].slow) == ["a:1"]
    assert table.of(0).prefill_ms_per_token > 1.5 * well.prefill_ms_per_token
    _feed(table, 0, rates, count=80, key="well")
    assert not table.describe({0: "a:1"})["h100"].slow
    assert table.of(0).prefill_ms_per_token == pytest.approx(well.prefill_ms_per_token, rel=0.25)


def test_one_stall_that_delays_a_whole_batch_tells_nobody_slow() -> None:
    rates = PRIORS["l40s"]
    table = _table(dict.fromkeys(range(3), "l40s"))
    for slot in range(3):
        _feed(table, slot, rates)
    crawling = Rates(*(5.0 * value for value in rates))
    _feed(table, 0, crawling, count=200, key="stall", at_once=True)
    assert not table.describe(dict.fromkeys(range(3), "a:1"))["l40s"].slow
    _feed(table, 0, crawling, count=50, key="slow")
    assert table.describe(dict.fromkeys(range(3), "a:1"))["l40s"].slow


def test_who_is_slow_until_first_tokens_alone_is_far_and_not_slow() -> None:
    rates = PRIORS["l40s"]
    far = rates._replace(prefill_base_ms=3 * rates.prefill_base_ms, prefill_ms_per_token=0.2)
    table = _table(dict.fromkeys(range(3), "l40s"))
    for part in range(30):
        for slot in range(3):
            _feed(table, slot, rates if slot else far, count=5, key=str(part))
        assert len({table.of(slot) for slot in range(3)}) == 1


def test_measurements_that_fit_no_engine_are_told_as_such() -> None:
    table = _table({0: "h100"})
    for index in range(3_000):
        table.observe_decode(0, ended_s=1.0, beside=float(index % 9), itl_ms=9_000.0)
    assert table.describe({0: "a:1"})["h100"].state is RateState.AT_BOUND
    for index in range(6_000):
        table.observe_decode(0, ended_s=1.0, beside=float(index % 9), itl_ms=5.0 + 0.8 * (index % 9))
    assert table.describe({0: "a:1"})["h100"].state is RateState.MEASURED
