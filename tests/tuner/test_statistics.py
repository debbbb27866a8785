from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.learn.tuner import betting
from epp.learn.tuner.discoveries import gamma, level
from epp.learn.tuner.histogram import NEVER, count, quantile, quantile_bounds

ALPHA = 0.05


def block_differences(rng: np.random.Generator, n: int, shift: float) -> list[float]:
    """Differences of exceedance rates of blocks: bursts make both rates swing together."""
    load = np.exp(rng.normal(0.0, 0.6, n))
    rates = np.clip(np.stack([0.05 * load, (0.05 + shift) * load]), 0.0, 1.0)
    first, second = rng.binomial(120, rates) / 120.0
    return [float(d) for d in second - first]


def test_looking_after_every_block_rarely_finds_what_is_not_there() -> None:
    rng = np.random.default_rng(1)
    found = 0
    for _ in range(400):
        values = block_differences(rng, 150, 0.0)
        wealth = betting._log_wealth(betting.clip(values, 0.25), 0.0, 0.25)
        found += wealth.max() >= -math.log(ALPHA)
    assert found / 400 <= ALPHA


def test_a_fixed_test_looked_at_as_often_would_be_wrong() -> None:
    """What the betting test is for: the same looks with a t-test find nothing in far more rows."""
    rng = np.random.default_rng(1)
    found = 0
    for _ in range(200):
        values = np.array(block_differences(rng, 150, 0.0))
        n = np.arange(1, 151)
        mean = np.cumsum(values) / n
        spread = np.sqrt(np.maximum(np.cumsum(values**2) / n - mean**2, 1e-12))
        found += bool((mean[10:] / spread[10:] * np.sqrt(n[10:]) < -1.645).any())
    assert found / 200 > 3 * ALPHA


def test_a_real_improvement_is_found() -> None:
    rng = np.random.default_rng(2)
    found = sum(
        betting.log_e_below(block_differences(rng, 300, -0.012), bound=0.25) > -math.log(ALPHA)
        for _ in range(60)
    )
    assert found >= 54


def test_bounds_cover_the_mean_at_all_times() -> None:
    rng = np.random.default_rng(3)
    wrong = 0
    for _ in range(200):
        values = rng.choice([-0.2, 0.0, 0.25], p=[0.3, 0.5, 0.2], size=120)  # mean -0.01
        low, high = betting.interval(values.tolist(), alpha=0.1, bound=0.25)
        wrong += not low <= -0.01 <= high
    assert wrong / 200 <= 0.1


def test_bounds_hold_where_the_next_depends_on_the_past() -> None:
    """Martingale differences whose size follows the last one's: dependent, mean zero given the past."""
    rng = np.random.default_rng(4)
    wrong = 0
    for _ in range(200):
        size, values = 0.05, []
        for _ in range(120):
            value = size * (1 if rng.random() < 0.5 else -1)
            values.append(value)
            size = 0.2 if value > 0 else 0.03
        wrong += betting.upper_bound(values, alpha=0.05, bound=0.25) < 0.0
    assert wrong / 200 <= 0.05


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(-0.4, 0.4), min_size=1, max_size=40))
def test_bounds_and_tests_agree(values: list[float]) -> None:
    low, high = betting.interval(values, alpha=0.1, bound=0.25)
    assert -0.25 <= low <= high <= 0.25
    upper = betting.upper_bound(values, alpha=0.05, bound=0.25)
    shorter = betting.upper_bound(values[:-1], alpha=0.05, bound=0.25)
    assert upper <= shorter + 1e-6  # it never widens again
    assert betting.lower_bound([-v for v in values], alpha=0.05, bound=0.25) == pytest.approx(-upper)
    if betting.log_e_below(values, bound=0.25) >= math.log(20.0):
        assert upper <= 1e-6


def test_no_values_say_nothing() -> None:
    assert betting.interval([], alpha=0.05, bound=0.3) == (-0.3, 0.3)
    assert betting.log_e_below([]) == 0.0


@settings(max_examples=50)
@given(st.lists(st.floats(0.1, 1e6), min_size=1, max_size=60), st.floats(0.01, 0.99))
def test_quantiles_are_within_a_bin(values: list[float], q: float) -> None:
    histogram: dict[int, int] = {}
    for value in values:
        count(histogram, value)
    exact = sorted(values)[max(1, math.ceil(q * len(values) - 1e-9)) - 1]
    assert quantile(histogram, q) == pytest.approx(exact, rel=0.0101)


def test_what_never_came_is_above_everything() -> None:
    histogram: dict[int, int] = {}
    for value in [100.0] * 18 + [math.nan] * 2:
        count(histogram, value)
    assert histogram[NEVER] == 2
    assert quantile(histogram, 0.9) == pytest.approx(100.0, rel=0.0101)
    assert quantile(histogram, 0.95) == math.inf
    assert math.isnan(quantile({}, 0.5))


def test_quantile_bounds_cover_at_all_times() -> None:
    rng = np.random.default_rng(5)
    truth, wrong = math.exp(0.8 * 1.6448536), 0
    for _ in range(120):
        histogram: dict[int, int] = {}
        outside = False
        for number, value in enumerate(np.exp(rng.normal(0.0, 0.8, 800)), 1):
            count(histogram, float(value))
            if number % 40 == 0:
                low, high = quantile_bounds(histogram, 0.95, alpha=0.1)
                outside |= not low <= truth <= high
        wrong += outside
    assert wrong / 120 <= 0.1
    low, high = quantile_bounds(histogram, 0.95, alpha=0.1)
    assert 0.5 * truth < low < high


def test_the_budget_of_false_promotions_is_spent_once() -> None:
    assert sum(gamma(t) for t in range(1, 100_000)) == pytest.approx(1.0, abs=0.1)
    assert sum(gamma(t) for t in range(1, 1_000_000)) < 1.0
    assert level(0.05, 3, 0) < level(0.05, 3, 1) < level(0.05, 2, 1)
    with pytest.raises(ValueError, match="from 1"):
        gamma(0)


def test_false_promotions_stay_within_the_budget() -> None:
    """Rows of candidates, some good, most not; e-values as a likelihood ratio would give them."""
    rng = np.random.default_rng(6)
    shares = []
    for _ in range(600):
        promotions = false = 0
        for t in range(1, 41):
            good = rng.random() < 0.2
            z = rng.normal(4.0 if good else 0.0)
            e = math.exp(4.0 * z - 8.0)
            if e >= 1.0 / level(0.05, t, promotions):
                promotions += 1
                false += not good
        shares.append(false / max(1, promotions))
    assert float(np.mean(shares)) <= 0.05
