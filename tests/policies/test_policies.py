"""Each formula against a table worked out by hand."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from epp.policies.balancing import Random, RoundRobin
from epp.policies.base import Ties
from epp.policies.gorgo import Gorgo
from epp.policies.session_affinity import SessionAffinity
from tests.kit.fleets import fleet_view, permuted, request

if TYPE_CHECKING:
    from epp.types import Snapshot

NO_WEIGHTS: dict[str, float] = {}


def test_gorgo_is_the_published_sum_with_the_published_weights() -> None:
    snapshot = fleet_view(
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
    ranking = policy.rank(request(), snapshot, policy.default_weights(), 0)
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
    ("sequence", "expected"),
    [(0, [0, 1, 2]), (1, [2, 0, 1]), (2, [1, 2, 0]), (3, [0, 1, 2]), (3 * 2**80 + 2, [1, 2, 0])],
)
def test_round_robin_turns(sequence: int, expected: list[float]) -> None:
    ask = request(sequence=sequence)
    assert RoundRobin().rank(ask, fleet_view(3), NO_WEIGHTS, 0).costs.tolist() == expected


def test_random_is_uniform_and_each_decision_draws_anew() -> None:
    snapshot = fleet_view(4)
    picks = Counter(
        int(Random().rank(request(f"d-{i}"), snapshot, NO_WEIGHTS, 0).costs.argmin()) for i in range(4000)
    )
    # 4000 draws of chance 1/4: standard deviation 27; 150 is more than five of them.
    assert all(abs(picks[i] - 1000) < 150 for i in range(4))


def home(key: str, snapshot: Snapshot) -> str:
    costs = SessionAffinity().rank(request(f"d-{key}", affinity_key=key), snapshot, NO_WEIGHTS, 0).costs
    return snapshot.endpoints[int(costs.argmin())]


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


def test_without_a_session_affinity_balances() -> None:
    snapshot = fleet_view(3, running_requests=[4, 0, 2])
    ranking = SessionAffinity().rank(request(), snapshot, NO_WEIGHTS, 0)
    assert ranking.costs.tolist() == [4, 0, 2]
