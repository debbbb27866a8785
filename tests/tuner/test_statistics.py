from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp_lab.tuner.tally import count, quantile
from epp_lab.tuner.verdict import Bets, promotion_level

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
    for _ in range(200):
        values = block_differences(rng, 150, 0.0)
        wealth = Bets(values, 0.25).log_wealth()
        found += wealth.max() >= -math.log(ALPHA)
    assert found / 200 <= ALPHA


def test_a_real_improvement_is_found() -> None:
    rng = np.random.default_rng(2)
    found = sum(Bets(block_differences(rng, 300, -0.012), 0.25).log_e() > -math.log(ALPHA) for _ in range(30))
    assert found >= 27


def test_bounds_cover_the_mean_at_all_times() -> None:
    rng = np.random.default_rng(3)
    wrong = 0
    for _ in range(200):
        values = rng.choice([-0.2, 0.0, 0.25], p=[0.3, 0.5, 0.2], size=120)  # mean -0.01
        low, high = Bets(values, 0.25).interval(0.05)
        wrong += not low <= -0.01 <= high
    assert wrong / 200 <= 0.1


@given(st.lists(st.floats(-0.4, 0.4), min_size=1, max_size=40))
def test_bounds_and_tests_agree(values: list[float]) -> None:
    low, high = Bets(values, 0.25).interval(0.05)
    assert -0.25 <= low <= high <= 0.25
    upper = Bets(values, 0.25).upper(0.05)
    shorter = Bets(values[:-1], 0.25).upper(0.05)
    assert upper <= shorter + 1e-6  # it never widens again
    if Bets(values, 0.25).log_e() >= math.log(20.0):
        assert upper <= 1e-6


@given(st.lists(st.floats(0.1, 1e6), min_size=1, max_size=60), st.floats(0.01, 0.99))
def test_quantiles_are_within_a_bin(values: list[float], q: float) -> None:
    histogram: dict[int, int] = {}
    for value in values:
        count(histogram, value)
    exact = sorted(values)[max(1, math.ceil(q * len(values) - 1e-9)) - 1]
    assert quantile(histogram, q) == pytest.approx(exact, rel=0.0101)


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
            if e >= 1.0 / promotion_level(0.05, t, promotions=promotions):
                promotions += 1
                false += not good
        shares.append(false / max(1, promotions))
    assert float(np.mean(shares)) <= 0.05
