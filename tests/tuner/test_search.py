from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.learn.tuner.es_paper import EsPaper
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


def test_it_begins_with_the_incumbent() -> None:
    search = Search(START, BOUNDS, seed=1)
    assert search.ask() == search.recommend() == INCUMBENT


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


def test_what_cannot_be_measured_counts_as_worst() -> None:
    search = Search(START, BOUNDS, seed=7)
    for number in range(60):
        bad = search.ask()["a"] > 0.5
        search.tell((math.inf, math.nan)[number % 2] if bad else cost(search.ask()))
    assert search.recommend()["a"] <= 0.5


def test_a_single_weight_can_be_tuned() -> None:
    search = Search({"a": 0.5}, {"a": (0.05, 2.0)}, seed=4)
    while not search.stop(budget=80):
        search.tell(math.log(search.ask()["a"] / 0.2) ** 2)
    assert search.recommend()["a"] == pytest.approx(0.2, rel=0.2)


# -- the published one ------------------------------------------------------------------------------------


def told(es: EsPaper, values: list[float]) -> list[int]:
    """Samples at which the live weights changed."""
    return [number for number, value in enumerate(values, 1) if es.tell(value)]


def test_the_paper_starts_fires_and_hops_as_published() -> None:
    es = EsPaper(seed=1)
    assert es.weights == {"rtt_weight": 0.5, "queue_weight": 0.1}
    assert told(es, [1000.0 + i for i in range(400)])[:4] == [128, 160, 192, 224]
    assert told(EsPaper(seed=1, window=64), [1000.0 + i for i in range(200)])[:3] == [64, 96, 128]
    assert es.history[0][2] == -(1000.0 + round(0.95 * 127)) / 1000.0


def test_the_paper_stays_in_its_box_and_adapts_sigma() -> None:
    es = EsPaper(seed=2)
    for number in range(3000):
        es.tell(3000.0 - number * 0.9)  # ever better: everything is accepted
        assert 0.05 <= es.weights["rtt_weight"] <= 2.0
        assert 0.05 <= es.weights["queue_weight"] <= 0.5
    assert es.sigma > 1e3  # no ceiling: the fault that put candidates on the faces of the box
    falling = EsPaper(seed=2)
    told(falling, [1000.0 + number for number in range(3000)])
    assert falling.stopped
    assert falling.weights == falling.best
