from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.learn.tuner.search import Measured, Search

BOUNDS = {"a": (0.05, 2.0), "b": (0.0, 5.0), "fixed": (1.0, 1.0)}
START = {"a": 0.5, "b": 0.1, "fixed": 1.0, "unknown": 7.0}
LOW = {"a": 0.2, "b": 1.0}


def cost(weights: dict[str, float]) -> float:
    """Lowest at `LOW`: 30 % up at the start."""
    return sum(0.05 * math.log(max(weights[name], 1e-4) / low) ** 2 for name, low in LOW.items())


def searched(seed: int, budget: int, noise: float = 0.03) -> Search:
    rng = np.random.default_rng(seed)
    search = Search(START, BOUNDS, seed=seed)
    while not search.stop(budget=budget):
        search.tell(cost(search.ask()) + noise * float(rng.normal()))
    return search


INCUMBENT = {"a": 0.5, "b": 0.1, "fixed": 1.0}


def test_it_finds_the_lowest_among_noise() -> None:
    assert cost(START) > 0.1
    regrets = [cost(searched(seed, 120).recommend()) for seed in range(12)]
    assert float(np.median(regrets)) < 0.02


def reread(search: Search) -> Search:
    found = msgspec.json.decode(msgspec.json.encode(search.measured), type=Measured)
    return Search(found.start, found.bounds, seed=found.seed, costs=found.costs)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**40), st.integers(1, 40))
def test_persisted_and_read_back_it_goes_on_the_same(seed: int, cut: int) -> None:
    search = searched(seed, cut)
    again = reread(search)
    assert again.ask() == search.ask() == search.ask()
    assert again.recommend() == search.recommend()
    for name, (low, high) in BOUNDS.items():
        assert low <= search.ask()[name] <= high


def test_a_single_weight_can_be_tuned() -> None:
    search = Search({"a": 0.5}, {"a": (0.05, 2.0)}, seed=4)
    while not search.stop(budget=80):
        search.tell(math.log(search.ask()["a"] / 0.2) ** 2)
    assert search.recommend()["a"] == pytest.approx(0.2, rel=0.2)
