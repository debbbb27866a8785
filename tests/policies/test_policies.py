"""Each formula against a table worked out by hand."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pytest

from epp.policies.base import Ties
from epp.policies.gorgo import Gorgo
from epp.policies.least_request import LeastRequest
from epp.policies.random import Random
from epp.policies.round_robin import RoundRobin
from epp.policies.session_affinity import SessionAffinity
from tests.kit.fleets import fleet_view, permuted, request

if TYPE_CHECKING:
    from epp.types import Snapshot

NO_WEIGHTS: dict[str, float] = {}


def test_gorgo_is_the_published_sum_with_the_published_weights() -> None:
    fleet = fleet_view(
        3,
        rtt_ms=[20, 102, 211],
        uncached_tokens=[18_000, 1_000, 18_000],
        queued_tokens=[0, 40_000, 1_000],
        # None of these is in the paper's formula.
        running_requests=[9, 9, 0],
        pending_uncached_tokens=[7, 0, 7],
        engine_waiting=[5, 0, 0],
    )
    policy = Gorgo()
    ranking = policy.rank(request(), fleet, policy.default_weights(), 0)
    expected = [
        0.276 * 20 + 1.0 * 18_000 + 0.5 * 0,
        0.276 * 102 + 1.0 * 1_000 + 0.5 * 40_000,
        0.276 * 211 + 1.0 * 18_000 + 0.5 * 1_000,
    ]
    assert ranking.costs.tolist() == pytest.approx(expected)
    assert ranking.terms["rtt"].tolist() == pytest.approx([0.276 * 20, 0.276 * 102, 0.276 * 211])
    assert ranking.terms["queue"].tolist() == [0, 20_000, 500]
    assert policy.ties is Ties.BAND


@pytest.mark.parametrize(
    ("weights", "best"),
    [
        ({"rtt_weight": 50.0, "prefill_weight": 1.0, "queue_weight": 0.5}, 0),
        ({"rtt_weight": 0.0, "prefill_weight": 1.0, "queue_weight": 0.0}, 1),
        ({"rtt_weight": 0.0, "prefill_weight": 0.0, "queue_weight": 1.0}, 2),
    ],
)
def test_gorgo_follows_its_weights(weights: dict[str, float], best: int) -> None:
    fleet = fleet_view(3, rtt_ms=[20, 102, 211], uncached_tokens=[4000, 0, 4000], queued_tokens=[500, 500, 0])
    assert int(Gorgo().rank(request(), fleet, weights, 0).costs.argmin()) == best


@pytest.mark.parametrize(
    ("ours", "running", "waiting", "expected"),
    [
        ([3, 1, 2], [0, 0, 0], [0, 0, 0], [3, 1, 2]),  # no engine reports
        ([1, 1, 1], [8, 0, 0], [0, 0, 0], [8, 1, 1]),  # another picker's traffic shows
        ([1, 1, 1], [2, 2, 2], [3, 0, 9], [5, 2, 11]),  # requests waiting inside count
        ([7, 0, 0], [1, 1, 1], [0, 0, 0], [7, 1, 1]),  # a burst since the last scrape counts
    ],
)
def test_least_request_takes_the_larger_count(
    ours: list[float], running: list[float], waiting: list[float], expected: list[float]
) -> None:
    fleet = fleet_view(3, running_requests=ours, engine_running=running, engine_waiting=waiting)
    assert LeastRequest().rank(request(), fleet, NO_WEIGHTS, 0).costs.tolist() == expected


@pytest.mark.parametrize(
    ("sequence", "expected"),
    [(0, [0, 1, 2]), (1, [2, 0, 1]), (2, [1, 2, 0]), (3, [0, 1, 2]), (3 * 2**80 + 2, [1, 2, 0])],
)
def test_round_robin_turns(sequence: int, expected: list[float]) -> None:
    ask = request(sequence=sequence)
    assert RoundRobin().rank(ask, fleet_view(3), NO_WEIGHTS, 0).costs.tolist() == expected


def test_round_robin_goes_by_the_order_given() -> None:
    fleet = permuted(fleet_view(3), [2, 0, 1])
    costs = RoundRobin().rank(request(sequence=0), fleet, NO_WEIGHTS, 0).costs
    assert fleet.endpoints[int(costs.argmin())] == "10.0.0.2:8000"


def test_random_is_uniform_and_each_decision_draws_anew() -> None:
    fleet = fleet_view(4)
    picks = Counter(
        int(Random().rank(request(f"d-{i}"), fleet, NO_WEIGHTS, 0).costs.argmin()) for i in range(4000)
    )
    # 4000 draws of chance 1/4: standard deviation 27; 150 is more than five of them.
    assert all(abs(picks[i] - 1000) < 150 for i in range(4))


def test_random_follows_seed_and_decision() -> None:
    fleet = fleet_view(5)
    draws = {
        (seed, key): tuple(Random().rank(request(key), fleet, NO_WEIGHTS, seed).costs.tolist())
        for seed in (0, 1)
        for key in ("a", "b")
    }
    assert len(set(draws.values())) == 4


def home(key: str, fleet: Snapshot) -> str:
    costs = SessionAffinity().rank(request(f"d-{key}", affinity_key=key), fleet, NO_WEIGHTS, 0).costs
    return fleet.endpoints[int(costs.argmin())]


def test_session_affinity_keeps_a_session_whatever_the_load_and_the_decision() -> None:
    busy = fleet_view(5, running_requests=[9, 0, 5, 1, 3], queued_tokens=[0, 9, 9, 9, 9])
    policy = SessionAffinity()
    first = policy.rank(request("d-1", affinity_key="chat 1", sequence=1), fleet_view(5), NO_WEIGHTS, 0)
    later = policy.rank(request("d-2", affinity_key="chat 1", sequence=8), busy, NO_WEIGHTS, 99)
    assert first.costs.tolist() == later.costs.tolist()
    assert sorted(first.costs.tolist()) == [0, 1, 2, 3, 4]


def test_session_affinity_spreads_sessions_and_moves_only_those_of_an_endpoint_that_left() -> None:
    whole, keys = fleet_view(5), [f"session {i}" for i in range(1000)]
    smaller = permuted(whole, [0, 1, 3, 4])
    before = {key: home(key, whole) for key in keys}
    # 1000 sessions of chance 1/5: standard deviation 13; 70 is more than five of them.
    assert all(abs(count - 200) < 70 for count in Counter(before.values()).values())
    gone = whole.endpoints[2]
    for key in keys:
        if before[key] != gone:
            assert home(key, smaller) == before[key]
    moved = Counter(home(key, smaller) for key in keys if before[key] == gone)
    assert len(moved) == 4, "the sessions of one endpoint scatter over all others"


def test_session_affinity_falls_back_in_the_sessions_own_order() -> None:
    whole = fleet_view(4)
    costs = SessionAffinity().rank(request(affinity_key="k"), whole, NO_WEIGHTS, 0).costs
    order = np.argsort(costs).tolist()
    rest = permuted(whole, order[1:])
    assert home("k", rest) == whole.endpoints[order[1]]


def test_without_a_session_affinity_balances() -> None:
    fleet = fleet_view(3, running_requests=[4, 0, 2])
    ranking = SessionAffinity().rank(request(), fleet, NO_WEIGHTS, 0)
    assert ranking.costs.tolist() == [4, 0, 2]
