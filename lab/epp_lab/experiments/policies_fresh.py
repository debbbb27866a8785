"""Compare policies on recorded traces that no weight of theirs was chosen on.

Loads, windows, fleets, rates and entries were written down before any policy had met them. Traces come from
the folder of ``EPP_TRACES``, a window for each seed. Requests of Azure's (it has no prefix data: nothing is
shared) and Mooncake's (prompts up to 24k tokens) come at their recorded times, quicker or slower, from a
point of the trace that is drawn; windows may overlap. Agents of Claude Code and LMCache run sessions that are
drawn, in closed loop.

A rate is a share of what a fleet could compute by its constants alone: each uncached token of a prompt, as if
nothing that the trace shares were ever lost, and answers decoded sixteen at a time. No run was needed for it.
The cells with answers of 2,000 tokens are a known weak spot and no fresh load.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from msgspec.structs import replace as with_values

from epp.keyed_uniform import keyed_uniform
from epp.policies.gorgo_ms import GorgoMs
from epp.types import NUMERIC_COLUMNS
from epp_lab.compare.fleets import LLM_D_SCRAPE_S, fleet_named
from epp_lab.compare.measure import figures, from_window
from epp_lab.compare.plan import Source
from epp_lab.compare.simulate import PolicyChoice
from epp_lab.experiment import Experiment
from epp_lab.experiments.policies import CANDIDATE, standings
from epp_lab.experiments.queue import MAGAGENT, agents, trace_file
from epp_lab.sim.run import policy_named, run_window
from epp_lab.sim.scenario import FleetSpec, WindowOptions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from epp.policies.base import Weights
    from epp.types import Ranking, RequestInfo, Snapshot
    from epp_lab.compare.trace import TraceRequest

SEED = 4800
#: How long requests are sent; the first part does not count. Long answers take longer to fill the engines.
WINDOW_S, WARMUP_S = 300.0, 60.0
_LONGER, _LONG_ANSWER = 3.0, 2_000
_TRACE_S = 3_500.0
#: What fills one L40Sx2: a pace of the trace, or agents.
FULL = {"azure": 0.48, "mooncake": 0.45, "claude-code": 14.0, "lmcache": 7.8, "long answers": 0.065}
_AGENTS = {"claude-code": "claude_code_sessions", "lmcache": MAGAGENT}
#: Fleets, and how many L40Sx2 they are worth.
FLEETS = {"three regions": ("paper-exact", 3.0), "one region": ("l40s-x2@2*4", 4.0), "mixed": ("mixed", 3.6)}
#: The longest context of the agents' sessions, and an answer.
_CONTEXT_TOKENS = 140_000


class Load(NamedTuple):
    """A load by its name, a fleet, and what part of it is asked for."""

    name: str
    fleet: str
    rate: float


_LONG = {f"long answers / mixed / {rate}": Load("long answers", "mixed", rate) for rate in (0.7, 0.9, 1.1)}
CELLS: Mapping[str, Load] = {
    f"{name} / {fleet} / {rate}": Load(name, fleet, rate)
    for name, fleet, rate in product(("azure", "mooncake", *_AGENTS), FLEETS, (0.4, 0.7))
} | _LONG
#: What `gorgo-ms` would be for a mean: stalls at their price, answers of others slowed, no urgency.
MEAN = "gorgo-ms for the mean"
_LIBRARY = {"cache_threshold": 0.5, "balance_abs": 32.0, "balance_rel": 1.1}
VARIANTS: Mapping[str, PolicyChoice] = {
    "sglang-cache-aware-library": PolicyChoice("sglang-cache-aware", weights=_LIBRARY),
    MEAN: PolicyChoice(CANDIDATE, weights={"stall_weight": 1.0}),
}
ENTRIES = (
    *(CANDIDATE, MEAN, "preble-e2", "lmetric", "sglang-cache-aware-library", "mooncake", "dynamo", "llm-d"),
    *("session-affinity-bounded", "least-request", "gorgo"),
)
_SLOWED = NUMERIC_COLUMNS.index("decode_ms_per_request")


class ForTheMean(GorgoMs):
    """`GorgoMs` without urgency, for which each answer beside this one is slowed as much as this one is."""

    def __init__(self) -> None:
        super().__init__(urgency_power=0.0)

    def rank(self, request: RequestInfo, snapshot: Snapshot, weights: Weights, seed: int) -> Ranking:
        """Rank with twice the time that a request adds to each token."""
        block = snapshot.block.copy()
        block[_SLOWED] *= 2.0
        return GorgoMs.rank(self, request, with_values(snapshot, block=block), weights, seed)


def fleet_of(cell: Load) -> FleetSpec:
    """Return a fleet whose engines take the agents' contexts."""
    fleet = fleet_named(FLEETS[cell.fleet][0])
    replicas = (
        replace(one, engine_class=replace(one.engine_class, context_tokens=_CONTEXT_TOKENS))
        for one in fleet.replicas
    )
    return replace(fleet, replicas=tuple(replicas))


@lru_cache(maxsize=1)
def load(cell: Load, seed: int) -> tuple[Sequence[TraceRequest], float, float]:
    """Make a load's requests, what their times are multiplied by, and how long they are sent."""
    amount = FULL[cell.name] * FLEETS[cell.fleet][1] * cell.rate
    if cell.name in _AGENTS:
        return agents(_AGENTS[cell.name], round(amount), seed, WINDOW_S), 1.0, WINDOW_S
    window_s = WINDOW_S * (_LONGER if cell.name == "long answers" else 1.0)
    stretch_s = window_s * amount
    from_s = (_TRACE_S - stretch_s) * keyed_uniform(seed, "window", "from")
    mooncake = cell.name == "mooncake"
    trace = trace_file("mooncake_conversation") if mooncake else trace_file("azure2023_conv", "csv")
    requests = Source(trace=str(trace), from_s=from_s, until_s=stretch_s).requests(seed)
    if cell.name == "long answers":
        requests = tuple(replace(one, output_tokens=_LONG_ANSWER) for one in requests)
    return requests, 1.0 / amount, window_s


def run(cell: str, entry: str, seed: int) -> dict[str, float]:
    """Run one policy on one load."""
    asked, seed = CELLS[cell], SEED + seed
    requests, pace, window_s = load(asked, seed)
    chosen = VARIANTS.get(entry) or PolicyChoice(entry)
    policy = ForTheMean() if entry == MEAN else policy_named(chosen.name)
    fleet, options = fleet_of(asked), WindowOptions(time_scale=pace)
    if entry == "llm-d":
        fleet = replace(fleet, scrape_interval_s=LLM_D_SCRAPE_S)
    result = run_window(requests, fleet, policy, chosen.weights, seed=seed, options=options)
    at_s = np.array([one.at_ms for one in requests]) * pace / 1e3
    due = (at_s >= WARMUP_S * window_s / WINDOW_S) & (at_s <= window_s)
    found = figures(from_window(result, len(requests)), requests, due, pace=pace)
    latencies = {
        f"{name} {statistic} ms": found.value(metric, statistic)
        for name, metric in (("TTFT", "ttft_ms"), ("E2E", "e2e_ms"))
        for statistic in ("p50", "p95", "p99", "mean")
    }
    return latencies | {"hit share": found.true_hit_share, "failed": float(found.errors)}


EXPERIMENT = Experiment(
    question="How do policies compare with gorgo-ms on traces that nothing was tuned on?",
    cells=CELLS,
    entries=ENTRIES,
    run=run,
    measures=("TTFT p95 ms", "E2E p95 ms", "hit share", "failed"),
    ranges=("failed",),
    seeds=3,
    on_request=(*_LONG,),
    minutes=10,
    summary=standings,
)
