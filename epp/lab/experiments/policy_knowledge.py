"""Measure what `gorgo-ms` would gain by knowing more: its formula stays, true signals replace estimates.

Where engines lose hits, the simulator draws for each request and replica whether it finds nothing. The entry
that knows the lost hits, and the oracle, see the draws before they happen: no picker could.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from epp.keyed_uniform import keyed_uniform
from epp.lab.compare.measure import from_window
from epp.lab.compare.simulate import outcome_of
from epp.lab.conditions import SEED, STEADY_CELLS, condition
from epp.lab.experiment import Experiment
from epp.lab.sim.oracle import GreedyOracleTotal
from epp.lab.sim.run import run_window
from epp.lab.sim.scenario import WindowOptions
from epp.policies.base import Policy
from epp.policies.gorgo_ms import GorgoMs
from epp.types import NUMERIC_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epp.lab.sim.oracle import Oracle
    from epp.lab.sim.scenario import FleetSpec
    from epp.lab.sim.truth import Truth
    from epp.types import Ranking, RequestView, Snapshot

_CACHED, _UNCACHED, _HIT_RATIO = map(NUMERIC_COLUMNS.index, ("cached_tokens", "uncached_tokens", "hit_ratio"))
#: What is known beside the usual signals, by entry.
KNOWN: Mapping[str, frozenset[str]] = {
    "gorgo-ms": frozenset(),
    "knows which hits are lost": frozenset({"lost"}),
    "knows what caches hold": frozenset({"caches"}),
    "knows the length of answers": frozenset({"answer"}),
    "knows caches and answers": frozenset({"caches", "answer"}),
}
ORACLE = "oracle"


class Informed:
    """`GorgoMs` over true signals; an `epp.lab.sim.oracle.Oracle`.

    Args:
        fleet: the replicas, for how often each loses hits.
        known: of ``lost``, ``caches`` and ``answer``.
    """

    name = GorgoMs.name

    def __init__(self, fleet: FleetSpec, known: frozenset[str]) -> None:
        self._lost_share = {spec.address: spec.lost_hit_share for spec in fleet.replicas}
        self._known = known

    def shown(self, truth: Truth) -> InformedPolicy:
        """Return the policy over a fleet."""
        return InformedPolicy(truth, self._known, self._lost_share)


class InformedPolicy(Policy):
    """`GorgoMs` that replaces columns of the snapshot by what is true."""

    name = GorgoMs.name
    needs = GorgoMs.needs
    ties = GorgoMs.ties
    weight_specs = GorgoMs.weight_specs

    def __init__(self, truth: Truth, known: frozenset[str], lost_share: Mapping[str, float]) -> None:
        self._truth, self._known, self._lost_share = truth, known, lost_share
        self._policy = GorgoMs()

    def rank(self, request: RequestView, fleet: Snapshot, weights: Mapping[str, float], seed: int) -> Ranking:
        """Rank as `GorgoMs.rank` does, over what is true."""
        if "answer" in self._known and request.max_output_tokens is not None:
            # The simulated client's limit is the length that the answer will have.
            request = replace(request, expected_output_tokens=float(request.max_output_tokens))
        block = fleet.block.copy()
        if "caches" in self._known:
            block[_CACHED] = [self._truth.forecast(address).cached_tokens for address in fleet.endpoints]
            block[_HIT_RATIO] = 1.0
        elif "lost" in self._known:
            block[_HIT_RATIO] = [
                self._hit_ratio(address, ratio, seed)
                for address, ratio in zip(fleet.endpoints, block[_HIT_RATIO], strict=True)
            ]
        block[_UNCACHED] = request.prompt_tokens - block[_CACHED]
        return self._policy.rank(request, replace(fleet, block=block), weights, seed)

    def _hit_ratio(self, address: str, ratio: float, seed: int) -> float:
        share = self._lost_share[address]
        # The draw that `FleetSim.job` makes.
        if share and keyed_uniform(seed, f"{self._truth.index} {address}", "lost hit") < share:
            return 0.0
        return min(ratio / (1.0 - share), 1.0) if share else ratio


def run(cell: str, entry: str, seed: int) -> dict[str, float]:
    """Run one degree of knowledge on one load."""
    load, fleet = condition(cell)
    seed += SEED
    requests = load.source.requests(seed)
    options = WindowOptions(
        time_scale=load.pace, max_in_flight=load.max_in_flight, closed_loop=load.closed_loop
    )
    policy: Oracle = GreedyOracleTotal() if entry == ORACLE else Informed(fleet, KNOWN[entry])
    result = run_window(requests, fleet, policy, seed=seed, options=options)
    figures = outcome_of(load, seed, from_window(result, len(requests)), columns=False).figures
    return {
        "TTFT p95 ms": figures.ttft_ms.p95,
        "E2E p95 s": figures.e2e_ms.p95 / 1e3,
        "hit share": figures.true_hit_share,
    }


EXPERIMENT = Experiment(
    name="policy-knowledge",
    question="What would gorgo-ms gain by knowing more, and how near is it to a greedy oracle?",
    cells=STEADY_CELLS,
    entries=(*KNOWN, ORACLE),
    measures=("TTFT p95 ms", "E2E p95 s", "hit share"),
    run=run,
    seeds=4,
)
