"""Measure what `gorgo-ms` would gain by knowing more: its formula stays, true signals replace estimates.

Where engines lose hits, the simulator draws for each request and replica whether it finds nothing. Entries
that know what caches hold, and the oracle, see the draws before they happen: no picker could.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from epp.policies.base import Policy
from epp.policies.gorgo_ms import GorgoMs
from epp.types import NUMERIC_COLUMNS
from epp_lab.compare.measure import from_window
from epp_lab.compare.simulate import outcome_of
from epp_lab.conditions import CELLS, SEED, condition
from epp_lab.experiment import Experiment
from epp_lab.experiments.policies import shown
from epp_lab.sim.oracle import GreedyOracleTotal
from epp_lab.sim.run import run_window
from epp_lab.sim.scenario import WindowOptions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epp.types import Ranking, RequestInfo, Snapshot
    from epp_lab.sim.fleet import Oracle, Truth

_CACHED, _UNCACHED, _HIT_RATIO = map(NUMERIC_COLUMNS.index, ("cached_tokens", "uncached_tokens", "hit_ratio"))
#: What is known beside the usual signals, by entry.
KNOWN: Mapping[str, frozenset[str]] = {
    "gorgo-ms": frozenset(),
    "knows what caches hold": frozenset({"caches"}),
    "knows the length of answers": frozenset({"answer"}),
    "knows caches and answers": frozenset({"caches", "answer"}),
}
ORACLE = "oracle"


class InformedPolicy(Policy):
    """`GorgoMs` that replaces columns of the snapshot by what is true."""

    name = GorgoMs.name
    needs = GorgoMs.needs
    ties = GorgoMs.ties
    weight_specs = GorgoMs.weight_specs

    def __init__(self, truth: Truth, known: frozenset[str]) -> None:
        self._truth, self._known = truth, known
        self._policy = GorgoMs()

    def rank(
        self, request: RequestInfo, snapshot: Snapshot, weights: Mapping[str, float], seed: int
    ) -> Ranking:
        """Rank as `GorgoMs.rank` does, over what is true."""
        if "answer" in self._known:
            request = replace(request, expected_output_tokens=float(self._truth.answer_tokens()))
        if "caches" in self._known:
            block = snapshot.block.copy()
            block[_CACHED] = [self._truth.forecast(address).cached_tokens for address in snapshot.endpoints]
            block[_HIT_RATIO] = 1.0
            block[_UNCACHED] = request.prompt_tokens - block[_CACHED]
            snapshot = replace(snapshot, block=block)
        return self._policy.rank(request, snapshot, weights, seed)


def run(cell: str, entry: str, seed: int) -> dict[str, float]:
    """Run one degree of knowledge on one load."""
    load, fleet = condition(cell)
    seed += SEED
    requests = load.source.requests(seed)
    options = WindowOptions(time_scale=load.pace, max_in_flight=load.max_in_flight)

    def informed(truth: Truth) -> Policy:
        return InformedPolicy(truth, KNOWN[entry])

    policy: Oracle = GreedyOracleTotal if entry == ORACLE else informed
    result = run_window(requests, fleet, policy, seed=seed, options=options)
    return shown(outcome_of(load, seed, from_window(result, len(requests))).figures)


EXPERIMENT = Experiment(
    question="What would gorgo-ms gain by knowing more, and how near is it to a greedy oracle?",
    cells=CELLS,
    entries=(*KNOWN, ORACLE),
    run=run,
    minutes=8,
    seeds=4,
)
