"""What is done with predictions: the best, the bounds, the floor of chance, the heuristic, the few homes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings

from epp.policies.lodestar import FALLBACKS, Lodestar
from epp.policies.registry import create, params_of
from epp.policies.session_affinity import session_places
from tests.kit.fleets import (
    fleet_view,
    fleets,
    request,
    requests,
    with_unknown,
)
from tests.kit.reward_models import linear_model, random_model

if TYPE_CHECKING:
    from epp.types import Ranking, RequestInfo, Snapshot

#: Predicts 10 ms for each request in an engine's batch.
BY_BATCH = linear_model({"engine_running": 10.0})
#: The same, and knows nothing of batches above 10 (up to the margin, 11.5).
UP_TO_TEN = linear_model({"engine_running": 10.0}, low={"engine_running": 0.0}, high={"engine_running": 10.0})


def ranked(policy: Lodestar, snapshot: Snapshot, ask: RequestInfo | None = None, **weights: float) -> Ranking:
    return policy.rank(ask or request(), snapshot, {**policy.default_weights(), **weights}, 7)


def best(ranking: Ranking) -> list[int]:
    return np.flatnonzero(ranking.costs == ranking.costs.min()).tolist()


def reasons(ranking: Ranking) -> list[str]:
    return [FALLBACKS[int(code)] for code in ranking.terms["fallback"]]


def heuristic(snapshot: Snapshot, ask: RequestInfo | None = None) -> list[float]:
    policy = create("prefix-cache-and-load")
    costs: list[float] = policy.rank(ask or request(), snapshot, policy.default_weights(), 7).costs.tolist()
    return costs


def test_the_lowest_prediction_is_picked_and_the_costs_are_the_predictions() -> None:
    ranking = ranked(Lodestar(BY_BATCH, explore=0.0), fleet_view(3, engine_running=[4, 2, 7]))
    assert ranking.costs.tolist() == [40.0, 20.0, 70.0]
    assert ranking.terms["predicted_ms"].tolist() == [40.0, 20.0, 70.0]
    assert ranking.terms["probability"].tolist() == [0.0, 1.0, 0.0]
    assert reasons(ranking) == [""] * 3


def test_felt_latency_counts_the_answer_too() -> None:
    model = linear_model({"engine_running": 10.0}, itl_weights={"engine_running": -1.0})
    snapshot = fleet_view(2, engine_running=[1, 3])
    ask = request(expected_output_tokens=100.0)
    assert best(ranked(Lodestar(model, explore=0.0), snapshot, ask)) == [0]
    felt = ranked(Lodestar(model, reward="felt", explore=0.0), snapshot, ask)
    assert felt.costs.tolist() == [10.0 - 100.0, 30.0 - 300.0]
    assert felt.terms["ttft_ms"].tolist() == [10.0, 30.0]
    assert felt.terms["itl_ms"].tolist() == [-1.0, -3.0]


FLEET = fleet_view(3, engine_running=[4, 2, 7], running_requests=[1, 5, 3], cached_tokens=[0, 0, 900])


@pytest.mark.parametrize(
    ("policy", "weights", "reason"),
    [
        (Lodestar(), {}, "no-model"),
        (Lodestar(BY_BATCH, min_samples=20_001), {}, "few-samples"),
        (Lodestar(BY_BATCH, withdrawn="stale"), {}, "stale"),
        (Lodestar(withdrawn="stale"), {}, "stale"),
        (Lodestar(BY_BATCH, withdrawn="mismatch"), {}, "mismatch"),
        (Lodestar(BY_BATCH, reward="felt"), {}, "mismatch"),
        (Lodestar(BY_BATCH), {"use_model": 0.0}, "switched-off"),
        (Lodestar(UP_TO_TEN), {}, "out-of-distribution"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_without_a_model_to_trust_the_heuristic_decides_and_says_why(
    policy: Lodestar, weights: dict[str, float], reason: str
) -> None:
    snapshot = FLEET
    if reason == "out-of-distribution":
        snapshot = fleet_view(
            3, engine_running=[40, 20, 70], running_requests=[1, 5, 3], cached_tokens=[0, 0, 9]
        )
    ranking = ranked(replace(policy, explore=0.0), snapshot, None, **weights)
    assert ranking.costs.tolist() == heuristic(snapshot)
    assert reasons(ranking) == [reason] * 3


class TestBounds:
    """Endpoints unlike the training's are the heuristic's to judge, one by one."""

    def test_one_that_the_heuristic_does_not_want_stands_behind_those_judged(self) -> None:
        snapshot = fleet_view(3, engine_running=[4, 20, 7], cached_tokens=[0, 0, 900])
        ranking = ranked(Lodestar(UP_TO_TEN, explore=0.0), snapshot, request(prompt_tokens=1000))
        assert best(ranking) == [0]
        assert ranking.costs.argmax() == 1
        assert reasons(ranking) == ["", "out-of-distribution", ""]

    def test_one_that_the_heuristic_wants_of_all_is_picked(self) -> None:
        snapshot = fleet_view(3, engine_running=[4, 20, 7], cached_tokens=[0, 900, 0])
        ranking = ranked(Lodestar(UP_TO_TEN, explore=0.0), snapshot, request(prompt_tokens=1000))
        assert best(ranking) == [1]
        assert ranking.terms["probability"].tolist() == [0.0, 1.0, 0.0]
        assert np.argsort(ranking.costs).tolist() == [1, 0, 2]

    def test_equals_of_the_heuristic_are_left_to_the_model_where_it_knows_one(self) -> None:
        snapshot = fleet_view(3, engine_running=[40, 9, 3])
        assert heuristic(snapshot) == [0.0, 0.0, 0.0]
        assert best(ranked(Lodestar(UP_TO_TEN, explore=0.0), snapshot)) == [2]

    def test_a_class_never_seen_is_foreign(self) -> None:
        model = linear_model({"engine_running": 1.0}, classes={"a30": 0.0, "v100": 50.0})
        snapshot = fleet_view(3, engine_running=[5, 5, 0], engine_classes=("a30", "v100", "h100"),
                           running_requests=[0, 0, 1])  # fmt: skip
        ranking = ranked(Lodestar(model, explore=0.0), snapshot)
        assert reasons(ranking) == ["", "", "out-of-distribution"]
        assert best(ranking) == [0]

    @given(ask=requests(), snapshot=fleets(min_size=2))
    def test_the_pick_is_the_best_judged_or_the_heuristics_own(
        self, ask: RequestInfo, snapshot: Snapshot
    ) -> None:
        ranking = ranked(Lodestar(UP_TO_TEN, explore=0.0, near_best=0.0, k=0), snapshot, ask)
        inside = [reason == "" for reason in reasons(ranking)]
        places = heuristic(snapshot, ask)
        for row in best(ranking):
            if inside[row]:
                assert (
                    snapshot.engine_running[row] <= snapshot.engine_running[inside].min() * (1 + 1e-6) + 1e-6
                )
            else:
                assert places[row] == 0.0


class TestSilence:
    """Endpoints of which something is not known."""

    FLEET = fleet_view(4, engine_running=[4, 2, 7, 3])

    def test_counts_as_the_worst_that_others_show_even_where_the_model_likes_that(self) -> None:
        likes = linear_model({"engine_running": -10.0})
        ranking = ranked(Lodestar(likes, explore=0.0), with_unknown(self.FLEET, "engine_running", 1))
        assert ranking.terms["predicted_ms"].tolist() == [-40.0, -30.0, -70.0, -30.0]
        assert best(ranking) == [2]

    def test_does_not_make_a_stranger_whom_the_heuristic_may_pick(self) -> None:
        snapshot = fleet_view(3, engine_running=[4, 2, 30], cached_tokens=[0, 900, 0])
        filled = with_unknown(snapshot, "engine_running", 1)  # as one that is beyond the bounds
        ask = request(prompt_tokens=1000)
        assert heuristic(filled, ask)[1] == 0.0
        assert best(ranked(Lodestar(UP_TO_TEN, explore=0.0), filled, ask)) == [0]


class TestChance:
    """The floor under every endpoint."""

    FLEET = fleet_view(4, engine_running=[4, 2, 7, 3])

    def test_draws_as_often_as_the_terms_say(self) -> None:
        policy, counts, explored = Lodestar(BY_BATCH, explore=0.2), Counter[int](), 0.0
        ranking = None
        for number in range(1500):
            ranking = ranked(policy, self.FLEET, request(f"d-{number}"))
            (pick,) = best(ranking)
            counts[pick] += 1
            explored += ranking.terms["explored"].sum()
            assert ranking.terms["explored"].sum() in (0.0, ranking.terms["explored"][pick])
        assert ranking is not None
        expected = ranking.terms["probability"]
        assert expected.tolist() == pytest.approx([0.05, 0.85, 0.05, 0.05])
        assert [counts[row] / 1500 for row in range(4)] == pytest.approx(expected.tolist(), abs=0.03)
        assert explored / 1500 == pytest.approx(0.2, abs=0.03)

    @settings(max_examples=30)
    @given(ask=requests(), snapshot=fleets())
    @pytest.mark.parametrize("policy", [Lodestar(), Lodestar(UP_TO_TEN), Lodestar(random_model())])
    def test_is_known_of_every_endpoint_whoever_decides(
        self, policy: Lodestar, ask: RequestInfo, snapshot: Snapshot
    ) -> None:
        ranking = ranked(policy, snapshot, ask)
        chances = ranking.terms["probability"]
        assert chances.sum() == pytest.approx(1.0)
        assert (chances >= 0.02 / len(snapshot) * 0.999).all()
        if not ranking.terms["explored"].any():
            (chance,) = set(chances[best(ranking)].tolist())
            assert chance == chances.max()

    def test_equals_share_it_also_below_zero(self) -> None:
        model = linear_model({"engine_running": 10.0}, offset=np.array([-500.0]))
        snapshot = fleet_view(3, engine_running=[0, 2, 20])
        ranking = ranked(Lodestar(model, explore=0.0, near_best=0.1), snapshot)
        assert ranking.terms["predicted_ms"].tolist() == [-500.0, -480.0, -300.0]
        assert best(ranking) == [0, 1]
        assert ranking.terms["probability"].tolist() == [0.5, 0.5, 0.0]


class TestHomes:
    """The few endpoints that a prefix may go to while the caches are full."""

    NAMES = tuple(f"10.0.0.{number}:8000" for number in range(6))

    def fleet(self, **columns: Any) -> Snapshot:
        told = {
            "engine_kv_usage": [0.9] * 6,
            "cached_tokens": [0, 0, 0, 0, 0, 500],
            "engine_running": range(6),
        }
        return fleet_view(6, names=self.NAMES, **{**told, **columns})

    def homes(self, key: str = "p") -> set[int]:
        return set(np.argsort(session_places(key, self.NAMES))[:2].tolist())

    def asked(self, key: str, **columns: Any) -> set[int]:
        """Who stands before all others."""
        ask = request(prompt_tokens=1000, prefix_key=key)
        costs = ranked(Lodestar(BY_BATCH, explore=0.0), self.fleet(**columns), ask).costs
        by_batch = 10.0 * np.arange(6)
        return set(np.flatnonzero(costs <= by_batch).tolist())

    def test_are_kept_to(self) -> None:
        for key in "pqrstu":
            asked = self.asked(key)
            assert asked == self.homes(key) | {5}
            ask = request(prompt_tokens=1000, prefix_key=key)
            assert best(ranked(Lodestar(BY_BATCH, explore=0.0), self.fleet(), ask)) == [min(asked)]

    def test_are_also_those_that_hold_the_prefix_already(self) -> None:
        for key in "pqrstu":
            held = [900.0, 0.0, 790.0, 810.0, 400.0, 0.0]
            assert self.asked(key, cached_tokens=held) == self.homes(key) | {0, 3}

    @pytest.mark.parametrize(
        ("columns", "fields"),
        [
            ({"engine_kv_usage": [0.7] * 6}, {}),
            ({"cached_tokens": [0, 0, 0, 0, 0, 100]}, {}),
            ({}, {"k": 0}),
            ({}, {"kv_saturated": 0.95}),
            ({}, {"worth_tokens": 600.0}),
        ],
    )
    def test_only_when_it_matters(self, columns: dict[str, Any], fields: dict[str, Any]) -> None:
        ask = request(prompt_tokens=1000, prefix_key="q")
        ranking = ranked(Lodestar(BY_BATCH, explore=0.0, **fields), self.fleet(**columns), ask)
        assert ranking.costs.tolist() == [0, 10, 20, 30, 40, 50]

    def test_give_way_when_they_are_loaded(self) -> None:
        full = [0.0] * 6
        for row in self.homes():
            full[row] = 50.0
        asked = self.asked("p", running_requests=full)
        assert len(asked) == 3
        assert not asked & self.homes()


class TestLargePools:
    """Where not every endpoint is asked."""

    def test_some_are_drawn_evenly_and_the_heuristics_own_is_among_them(self) -> None:
        snapshot = fleet_view(60, cached_tokens=[0] * 59 + [900])
        policy, asked = Lodestar(BY_BATCH, candidates=12, explore=0.0), np.zeros(60)
        for number in range(300):
            ranking = ranked(policy, snapshot, request(f"d-{number}", prompt_tokens=1000))
            given = np.array(reasons(ranking)) == ""
            assert 12 <= given.sum() <= 13
            assert given[59]
            assert all(given[row] for row in best(ranking))
            asked += given
        assert asked[:59] / 300 == pytest.approx(np.full(59, 0.2), abs=0.12)

    def test_the_best_of_those_asked_is_picked(self) -> None:
        snapshot = fleet_view(60, engine_running=range(60, 0, -1), running_requests=range(60, 0, -1))
        ranking = ranked(Lodestar(BY_BATCH, candidates=12, explore=0.0), snapshot)
        given = np.flatnonzero(np.array(reasons(ranking)) == "")
        assert best(ranking) == [int(given.max())]


def test_parameters_tell_a_model_by_its_version() -> None:
    policy = Lodestar(BY_BATCH, explore=0.1)
    assert params_of(policy) == {"model": BY_BATCH.version, "explore": 0.1}
    assert params_of(Lodestar()) == {}


ASK = request(prompt_tokens=1000)
PRICED = fleet_view(2, running_requests=[3, 1], uncached_tokens=[100, 1000])
WEIGHTS = {"running_requests": 10.0, "uncached_tokens": 0.0}


def test_what_a_request_takes_from_others_is_paid_beside_its_own_latency() -> None:
    model = linear_model(WEIGHTS, congestion_ms=0.05)
    ranking = ranked(Lodestar(model, explore=0.0), PRICED, ASK)
    assert ranking.terms["predicted_ms"].tolist() == [30.0, 10.0]
    assert ranking.terms["congestion_ms"].tolist() == pytest.approx([5.0, 50.0])
    assert ranking.costs.tolist() == pytest.approx([35.0, 60.0])


def test_without_a_price_the_best_for_the_request_alone_is_picked() -> None:
    ranking = ranked(Lodestar(linear_model(WEIGHTS), explore=0.0), PRICED, ASK)
    assert ranking.costs.tolist() == [30.0, 10.0]
    assert "congestion_ms" not in ranking.terms
