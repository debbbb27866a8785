"""Does taking prefill apart dissolve the tension between TTFT and E2E? The hypothesis of source [G]'s blog.

Nine workers that do all of each request, or six that prefill and three that decode, in one region or three of
each kind's a third. What is set beside each other are weights of `gorgo-ms`: the first two seeds find those
with the least TTFT p95 and those with the least E2E p95, the others judge how much later answers end under
the first. The load is Mooncake's conversations, from the folder of ``EPP_TRACES``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from epp_lab.compare.fleets import pd_fleet
from epp_lab.experiment import CellRun, Experiment, ratio_text
from epp_lab.experiments.pairs import conversation, measures
from epp_lab.sim.engine_class import H100_8B
from epp_lab.sim.network import NetworkPath
from epp_lab.sim.run import run_window
from epp_lab.sim.scenario import REGION_RTT_MS, FleetSpec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from epp_lab.compare.stats import Floats

SEED, TUNING_SEEDS = 5200, 2
#: Of the trace, and rate of links in Gb/s.
_PACE, _LINK_GBPS = 3.8, 100.0


class Cell(NamedTuple):
    """In how many regions the workers are, and whether prefill is apart."""

    regions: int
    apart: bool


CELLS: Mapping[str, Cell] = {
    f"{'one region' if regions == 1 else 'three regions'} {'apart' if apart else 'whole'}": Cell(
        regions, apart
    )
    for regions in (1, 3)
    for apart in (False, True)
}
NEAR = "near first"
WEIGHTS: Mapping[str, Mapping[str, float]] = {
    "as shipped": {},
    "own first token": {"prefill_weight": 1.0, "stall_weight": 0.05, "decode_weight": 0.2},
    NEAR: {
        "network_weight": 4.0,
        "prefill_weight": 1.0,
        "waiting_weight": 0.5,
        "stall_weight": 0.05,
        "decode_weight": 0.2,
    },
    "waiting": {"waiting_weight": 6.0},
    "decode": {"decode_weight": 3.0},
    "stall and decode": {"stall_weight": 1.0, "decode_weight": 2.0},
}


def fleet(cell: Cell) -> FleetSpec:
    """Make the workers: a third of each kind in each region, where there are three."""
    spec = pd_fleet(H100_8B, *((6, 3) if cell.apart else (0, 9)), _LINK_GBPS)
    if cell.regions == 1:
        return spec
    regions = list(REGION_RTT_MS.items())
    return FleetSpec(
        tuple(
            replace(one, region=regions[at % 3][0], network=NetworkPath(regions[at % 3][1]))
            for at, one in enumerate(spec.replicas)
        )
    )


def run(cell: str, entry: str, seed: int) -> dict[str, float]:
    """Run one arrangement under one set of weights."""
    asked = CELLS[cell]
    requests, options = conversation(_PACE, SEED + seed)
    result = run_window(requests, fleet(asked), "gorgo-ms", WEIGHTS[entry], seed=SEED + seed, options=options)
    return measures(result)


def tension(runs: Sequence[CellRun]) -> str:
    """Tell what the best TTFT costs in E2E, by cell, on seeds that found neither."""
    found = {run.key: run for run in runs}
    seeds = sorted({run.seed for run in runs})
    tuning, judging = seeds[:TUNING_SEEDS], seeds[TUNING_SEEDS:]

    def logs(cell: str, entry: str, measure: str, of: Sequence[int]) -> Floats:
        return np.log([found[cell, entry, seed].value(measure) for seed in of])

    heads = (
        "cell",
        "least TTFT p95",
        "least E2E p95",
        "E2E p95, first / second",
        "TTFT p95",
        f"E2E p95, {NEAR}",
    )
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for cell in dict.fromkeys(run.cell for run in runs):
        ttft, e2e = (
            min(WEIGHTS, key=lambda entry: float(logs(cell, entry, measure, tuning).mean()))
            for measure in ("TTFT p95 ms", "E2E p95 ms")
        )
        row = [cell, ttft, e2e]
        for one, measure in ((ttft, "E2E p95 ms"), (ttft, "TTFT p95 ms"), (NEAR, "E2E p95 ms")):
            row.append(ratio_text(logs(cell, one, measure, judging) - logs(cell, e2e, measure, judging)))
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


EXPERIMENT = Experiment(
    question="Does taking prefill apart dissolve the tension between TTFT and E2E?",
    cells=CELLS,
    entries=tuple(WEIGHTS),
    run=run,
    seeds=8,
    minutes=4,
    summary=tension,
)
