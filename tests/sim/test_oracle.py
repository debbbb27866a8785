from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from epp.policies.base import Policy
from epp.policies.registry import create
from epp_lab.sim.engine_class import L40S_X2
from epp_lab.sim.fleet import FleetSim
from epp_lab.sim.oracle import GreedyOracleTotal
from epp_lab.sim.run import run_window
from epp_lab.sim.scenario import FleetSpec, regional_fleet
from epp_lab.workloads.art_chat import DEMO, generate
from tests.kit.simfleet import options, request, still_fleet

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from epp.types import Ranking, RequestInfo, Snapshot
    from epp_lab.compare.trace import TraceRequest
    from epp_lab.sim.fleet import Forecast, Truth

LOSSY = FleetSpec(tuple(replace(r, lost_hit_share=0.3) for r in regional_fleet(L40S_X2).replicas))


class Foresees(Policy):
    """Picks by the total's formula and remembers what was foreseen of each pick."""

    name = "foresees"

    def __init__(self) -> None:
        self.seen: dict[int, dict[str, Forecast]] = {}

    def show(self, truth: Truth) -> Policy:
        self._truth = truth
        return self

    def rank(
        self,
        request: RequestInfo,
        snapshot: Snapshot,
        weights: Mapping[str, float],  # noqa: ARG002 - the contract's
        seed: int,  # noqa: ARG002 - the contract's
    ) -> Ranking:
        index = int(request.decision_id[1:])
        self.seen[index] = {name: self._truth.forecast(name) for name in snapshot.endpoints}
        return GreedyOracleTotal(self._truth).rank(request, snapshot, {}, 0)


def foresee(
    load: Sequence[TraceRequest], fleet: FleetSpec
) -> tuple[Foresees, dict[int, tuple[float, float, int, str]]]:
    policy = Foresees()
    result = run_window(load, fleet, policy.show, seed=1, options=options())
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


def test_inflicted_time_is_what_the_others_lose() -> None:
    # One decoding alone: a step of 2 ms each. A second prompt of 100 tokens stops it for 110 ms, and while
    # both decode its steps take 3 ms.
    first = request(0.0, prompt_tokens=10, output_tokens=200)
    second = request(300.0, prompt_tokens=100, output_tokens=11, family=1)
    policy, _ = foresee([first, second], still_fleet())
    assert policy.seen[1]["r0:1"].inflicted_ms == pytest.approx(110.0 + 10 * 1.0)


def test_looking_ahead_changes_nothing() -> None:
    load = generate(DEMO, 5)[:100]

    class Peeks(Foresees):
        def rank(
            self, request: RequestInfo, snapshot: Snapshot, weights: Mapping[str, float], seed: int
        ) -> Ranking:
            super().rank(request, snapshot, weights, seed)
            return create("least-request").rank(request, snapshot, {}, seed)

        name = "least-request"

    left = FleetSim(load, LOSSY, Peeks().show, weights={}, seed=1, options=options()).run()
    right = run_window(load, LOSSY, "least-request", seed=1, options=options())
    assert left.digest() == right.digest()
