"""Published behaviour that shows only over many requests: herding, spreading, sticking, drawing."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from epp.policies.balancing import LeastLoad, LeastRequest
from epp.policies.prefix_cache import PrefixCache
from epp.policies.session_affinity import PrefixHash, SessionAffinity, SessionAffinityBounded
from epp_lab.baselines.dynamo import Dynamo
from epp_lab.baselines.session_affinity_hash256 import SessionAffinityHash256
from tests.kit.arrivals import burst
from tests.kit.fleets import fleet_view, permuted, request

DIFFERENT = [f"prompt {i}" for i in range(60)]
SAME = ["system prompt"] * 60


def hottest(picks: list[int]) -> int:
    return max(Counter(picks).values())


def test_stale_counts_herd_between_scrapes_and_live_ones_do_not() -> None:
    # One request is there at the first scrape, so that the others do not tie.
    herded = burst(LeastRequest(counts="engine"), DIFFERENT, endpoints=3, scrape_every=20)
    assert hottest(herded[20:40]) >= 10, "at most two endpoints tie for least at a scrape"
    assert len(set(herded[40:])) == 1, "all of an interval goes to the one that looked least loaded"
    for live in (LeastRequest(), LeastLoad()):
        assert hottest(burst(live, DIFFERENT, endpoints=3)) == 20


def test_a_shared_prefix_stays_with_its_holder_until_the_scrape_or_the_live_count_tells() -> None:
    stale = burst(PrefixCache(counts="engine"), SAME, endpoints=3, scrape_every=30)
    assert len(set(stale[:30])) == 1, "30 requests, and nobody noticed"
    assert len(set(stale[30:])) > 1
    live = burst(PrefixCache(), SAME, endpoints=3)
    assert hottest(live) <= 20 + 9, "an endpoint is never more than one over the imbalance of 8 ahead"
    assert len(set(live)) == 3


def test_modulo_moves_most_sessions_when_an_endpoint_leaves_and_rendezvous_only_its_own() -> None:
    whole = fleet_view(5)
    smaller = permuted(whole, [0, 1, 2, 3])
    moved = Counter[str]()
    for number in range(1000):
        key = f"{number:016x}"
        ask = request(affinity_key=key, prefix_key=key)
        for policy in (SessionAffinityHash256(), SessionAffinity()):
            before = whole.endpoints[int(policy.rank(ask, whole, {}, 0).costs.argmin())]
            after = smaller.endpoints[int(policy.rank(ask, smaller, {}, 0).costs.argmin())]
            moved[policy.name] += before != after
    # Chances 4/5 and 1/5; standard deviation 13.
    assert moved["session-affinity-hash256"] > 730
    assert moved["session-affinity"] < 270


@pytest.mark.parametrize("overflow", ["next", "least"])
def test_bounded_affinity_keeps_everybody_under_the_bound_at_every_step(overflow: str) -> None:
    policy = SessionAffinityBounded(overflow=overflow)  # type: ignore[arg-type]  # a word from the table above
    picks = burst(policy, ["hot"] * 60 + DIFFERENT, endpoints=4)
    counts = Counter[int]()
    for total, pick in enumerate(picks):
        counts[pick] += 1
        assert counts[pick] <= math.ceil(1.25 * (total + 1) / 4)


def test_overflow_of_a_session_stays_together_or_goes_to_the_least_loaded() -> None:
    ask = request(affinity_key="chat", prefix_key="chat")
    order = np.argsort(SessionAffinity().rank(ask, fleet_view(4), {}, 0).costs).tolist()
    running = np.zeros(4)
    running[order] = [30, 6, 5, 4]  # the home is full; the session's next place is the busiest of the others
    snapshot = fleet_view(4, running_requests=running)
    weights = SessionAffinityBounded.default_weights()
    following = SessionAffinityBounded().rank(ask, snapshot, weights, 0).costs
    assert np.argsort(following).tolist() == [order[1], order[2], order[3], order[0]]
    for balancing in (SessionAffinityBounded(overflow="least"), PrefixHash()):
        costs = balancing.rank(ask, snapshot, weights, 0).costs
        assert np.argsort(costs).tolist() == [order[3], order[2], order[1], order[0]]
    slack = SessionAffinityBounded().rank(ask, snapshot, {**weights, "slack_requests": 30.0}, 0).costs
    assert int(slack.argmin()) == order[0], "slack is room"


def test_dynamo_draws_from_the_softmax_of_its_costs() -> None:
    policy = Dynamo()
    snapshot = fleet_view(3, uncached_tokens=[160, 160, 160], queued_tokens=[0, 160, 320])
    weights = {**policy.default_weights(), "temperature": 0.7}
    picks = Counter(
        int(policy.rank(request(f"d-{i}", prompt_tokens=160), snapshot, weights, 0).costs.argmin())
        for i in range(6000)
    )
    # Costs 20, 30, 40 blocks, 20 apart at most: -cost / (T * 20).
    shares = np.exp(-np.array([0, 10, 20]) / (0.7 * 20))
    shares /= shares.sum()
    for index, share in enumerate(shares.tolist()):
        deviation = math.sqrt(6000 * share * (1 - share))
        assert abs(picks[index] - 6000 * share) < 5 * deviation
    cold = policy.rank(request(prompt_tokens=160), snapshot, policy.default_weights(), 0)
    assert cold.costs.tolist() == [20, 30, 40]
    assert not cold.terms["noise"].any()
