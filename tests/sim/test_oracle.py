from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from epp.lab.sim.engine_class import L40S_X2
from epp.lab.sim.fleet import FleetSim
from epp.lab.sim.oracle import ORACLES, GreedyOracleTotal, Oracle
from epp.lab.sim.run import policy_named, policy_names, run_window
from epp.lab.sim.scenario import Event, FleetSpec, Happening, regional_fleet
from epp.lab.sim.truth import Truth
from epp.lab.workloads.art_chat import DEMO, generate
from epp.policies.base import Policy
from tests.kit.simfleet import options, request, still_fleet

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from epp.lab.sim.scenario import WindowRequest
    from epp.lab.sim.truth import Forecast
    from epp.types import Ranking, RequestView, Snapshot

LOSSY = FleetSpec(tuple(replace(r, lost_hit_share=0.3) for r in regional_fleet(L40S_X2).replicas))


class Foresees(Policy):
    """Picks by the total's formula and remembers what was foreseen of each pick."""

    name = "foresees"

    def __init__(self) -> None:
        self.seen: dict[int, dict[str, Forecast]] = {}
        self.ttft_ms: dict[int, dict[str, float]] = {}

    def shown(self, truth: Truth) -> Policy:
        self._truth = truth
        return self

    def rank(
        self,
        request: RequestView,
        fleet: Snapshot,
        weights: Mapping[str, float],  # noqa: ARG002 - the contract's
        seed: int,  # noqa: ARG002 - the contract's
    ) -> Ranking:
        index = int(request.decision_id[1:])
        self.seen[index] = {name: self._truth.forecast(name) for name in fleet.endpoints}
        self.ttft_ms[index] = {name: self._truth.ttft_ms(name) for name in fleet.endpoints}
        return GreedyOracleTotal().shown(self._truth).rank(request, fleet, {}, 0)


def foresee(
    load: Sequence[WindowRequest], fleet: FleetSpec
) -> tuple[Foresees, dict[int, tuple[float, float, int, str]]]:
    policy = Foresees()
    result = run_window(load, fleet, policy, seed=1, options=options(retries=0))
    outcomes = {
        r.index: (r.ttft_ms or 0.0, r.e2e_ms, r.cached_tokens, r.endpoint) for r in result.requests if r.ok
    }
    return policy, outcomes


def test_what_is_foreseen_comes_true_when_nothing_else_comes() -> None:
    # Far enough apart for every answer to end before the next request, but for the last: many at once.
    load = [request(n * 3_000.0, family=n % 3, prompt_tokens=95, output_tokens=30) for n in range(12)]
    policy, outcomes = foresee(load, still_fleet(2))
    for index, (ttft_ms, e2e_ms, cached, endpoint) in outcomes.items():
        foreseen = policy.seen[index][endpoint]
        assert foreseen.ttft_ms == pytest.approx(ttft_ms)
        assert foreseen.e2e_ms == pytest.approx(e2e_ms)
        assert (foreseen.cached_tokens, foreseen.inflicted_ms) == (cached, 0.0)
        assert policy.ttft_ms[index] == {n: f.ttft_ms for n, f in policy.seen[index].items()}


def test_the_last_of_a_burst_is_foreseen_though_others_are_on_their_way() -> None:
    load = [request(n * 7.0, family=n, prompt_tokens=60, output_tokens=20) for n in range(9)]
    policy, outcomes = foresee(load, LOSSY_STILL)
    ttft_ms, e2e_ms, cached, endpoint = outcomes[8]
    foreseen = policy.seen[8][endpoint]
    assert foreseen.ttft_ms == pytest.approx(ttft_ms)
    assert foreseen.e2e_ms == pytest.approx(e2e_ms)
    assert foreseen.cached_tokens == cached
    assert foreseen.inflicted_ms > 0.0


LOSSY_STILL = FleetSpec(tuple(replace(r, lost_hit_share=0.5) for r in still_fleet(2).replicas))


def test_inflicted_time_is_what_the_others_lose() -> None:
    # One decoding alone: a step of 2 ms each. A second prompt of 100 tokens stops it for 110 ms, and while
    # both decode its steps take 3 ms.
    first = request(0.0, prompt_tokens=10, output_tokens=200)
    second = request(300.0, prompt_tokens=100, output_tokens=11, family=1)
    policy, _ = foresee([first, second], still_fleet())
    assert policy.seen[1]["r0:1"].inflicted_ms == pytest.approx(110.0 + 10 * 1.0)


def test_a_replica_that_is_down_is_the_last_choice() -> None:
    fleet = still_fleet(2, events=[Event(0.5, "r0:1", Happening.DIE)])
    load = [request(n * 300.0, family=n) for n in range(2, 30)]
    for name in ORACLES:
        result = run_window(load, fleet, name, options=options(retries=0))
        assert {r.endpoint for r in result.requests} == {"r1:1"}


@pytest.mark.parametrize(
    ("oracle", "metric"),
    [
        ("greedy-oracle-ttft", "ttft_ms"),
        ("greedy-oracle-total", "ttft_ms"),
        ("greedy-oracle-total", "e2e_ms"),
    ],
)
def test_an_oracle_is_better_than_chance(oracle: str, metric: str) -> None:
    load = generate(DEMO, 4)
    means = {}
    for policy in (oracle, "random"):
        results = run_window(load, LOSSY, policy, seed=1).requests
        means[policy] = sum(getattr(r, metric) for r in results) / len(results)
    assert means[oracle] < 0.9 * means["random"]


def test_what_is_remembered_of_the_others_is_what_looking_again_would_find() -> None:
    load = generate(DEMO, 6)[:150]

    class LooksTwice(Foresees):
        def rank(
            self, request: RequestView, fleet: Snapshot, weights: Mapping[str, float], seed: int
        ) -> Ranking:
            index = int(request.decision_id[1:])
            for name in fleet.endpoints:
                again = Truth(self._truth._sim)
                again.index = index
                assert self._truth.forecast(name) == again.forecast(name)
            return GreedyOracleTotal().shown(self._truth).rank(request, fleet, weights, seed)

    names = [spec.address for spec in LOSSY.replicas]
    events = (
        Event(4.0, names[1], Happening.SLOW, 2.0),
        Event(6.0, names[0], Happening.DIE),
        Event(7.0, names[0], Happening.REVIVE),
    )
    fleet = replace(LOSSY, events=events)
    result = run_window(load, fleet, LooksTwice(), seed=1, options=options(retries=2, timeout_s=4.0))
    assert any(r.error == "timeout" for r in result.requests)
    assert len({r.endpoint for r in result.requests if r.ok}) == len(names)


def test_oracles_are_not_for_serving() -> None:
    assert set(ORACLES) <= set(policy_names())
    oracle = policy_named("greedy-oracle-ttft")
    assert isinstance(oracle, Oracle)
    assert not hasattr(oracle, "rank")


def test_looking_ahead_changes_nothing() -> None:
    load = generate(DEMO, 5)[:100]

    class Peeks(Foresees):
        def rank(
            self, request: RequestView, fleet: Snapshot, weights: Mapping[str, float], seed: int
        ) -> Ranking:
            super().rank(request, fleet, weights, seed)
            blind: Policy = policy_named("least-request")  # type: ignore[assignment]  # no oracle
            return blind.rank(request, fleet, {}, seed)

        name = "least-request"

    left = FleetSim(load, LOSSY, Peeks(), weights={}, seed=1, options=options()).run()
    right = run_window(load, LOSSY, "least-request", seed=1, options=options())
    assert left.digest() == right.digest()
