"""Measure policies on real engines, and simulate the same load on the fleet that was calibrated from them.

`epp lab calibrate` writes the fleet; its addresses are where the engines are. Each measured run starts a
picker and an Envoy of its own before them, and sends prompts that no engine has seen. The load is short
chat of as many users as keep the calibrated fleet busy for a share of its time.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from epp.config.pool import EndpointSpec
from epp.records.files import read_records
from epp_lab.calibrate.command import look
from epp_lab.compare.fleets import fleet_named
from epp_lab.compare.load import run_load
from epp_lab.compare.measure import from_live
from epp_lab.compare.plan import PlanCell, Source
from epp_lab.compare.simulate import PolicyChoice, outcome_of, run_task
from epp_lab.conditions import SEED
from epp_lab.demo.stack import Stack
from epp_lab.experiment import Experiment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epp_lab.compare.measure import Figures
    from epp_lab.experiment import CellRun
    from epp_lab.sim.scenario import FleetSpec

WORKLOAD, WINDOW_S = "small-chat", 30.0
#: Share of the time that the fleet would compute, least-request placing everything.
PACES = {"light": 0.2, "busy": 0.5}
#: Of the workload's users: no fleet is full of so few.
_LIGHT_RATE = 0.25
ENTRIES = ("least-request", "session-affinity", "gorgo", "gorgo-ms")
MEASURES = ("TTFT p50 ms", "TTFT p95 ms", "E2E p50 ms", "E2E p95 ms")


def run(cell: str, entry: str, seed: int, *, fleet: str) -> dict[str, float]:
    """Run one policy, measured or simulated.

    Args:
        cell: which of both, and the pace.
        entry: the policy.
        seed: of the load.
        fleet: file of the calibrated fleet.
    """
    how, pace = cell.split(" / ")
    spec = fleet_named(fleet)
    source = Source(workload=WORKLOAD, until_s=WINDOW_S, rate=_rate(spec, PACES[pace]))
    load = PlanCell(pace, source)
    if how == "simulated":
        figures = run_task(load, spec, PolicyChoice(entry), SEED + seed).figures
        first_share = figures.share[0]
    else:
        figures, first_share = asyncio.run(_measured(load, spec, entry, SEED + seed))
    return {
        "TTFT p50 ms": figures.ttft_ms.p50,
        "TTFT p95 ms": figures.ttft_ms.p95,
        "E2E p50 ms": figures.e2e_ms.p50,
        "E2E p95 ms": figures.e2e_ms.p95,
        "hits": figures.true_hit_share,
        "first replica": first_share,
        "requests": figures.requests,
        "failed": figures.errors,
    }


def _rate(fleet: FleetSpec, busy_share: float) -> float:
    """Return how many times the workload's users keep the fleet busy for a share of the time."""
    light = PlanCell("light", Source(workload=WORKLOAD, rate=_LIGHT_RATE), warmup_s=0.0)
    figures = run_task(light, fleet, PolicyChoice("least-request"), SEED).figures
    return _LIGHT_RATE * busy_share / float(np.mean(figures.busy_share))


async def _measured(load: PlanCell, fleet: FleetSpec, policy: str, seed: int) -> tuple[Figures, float]:
    """Send the load through a new picker; its figures, and the share of decisions of the first replica."""
    new = time.time_ns()
    requests = [
        replace(request, block_ids=tuple(new + block for block in request.block_ids))
        for request in load.source.requests(seed)
    ]
    engines = {
        spec.address: EndpointSpec(
            address=spec.address, region=spec.region, engine_class=spec.engine_class.name
        )
        for spec in fleet.replicas
    }
    address = fleet.replicas[0].address
    engine = await look(f"http://{address}", {})
    with tempfile.TemporaryDirectory() as place:
        async with Stack(Path(place), (), {"policy": {"name": policy}}, endpoints=engines) as stack:
            options = stack.load_options(model=engine.model, extra_body={"ignore_eos": True})
            results = await run_load(requests, options)
        records = [r for r in read_records(Path(place, "records")) if r["kind"] == "decision"]
    picks = [record["endpoints"][record["chosen"]] == address for record in records]
    return outcome_of(load, seed, from_live(results, len(requests))).figures, float(np.mean(picks))


def _orders(runs: Sequence[CellRun]) -> str:
    """Lay out the order of the policies by measure, the lowest geometric mean first."""
    logs: dict[str, dict[str, list[float]]] = {}
    for measure in MEASURES:
        for run in runs:
            found = logs.setdefault(f"| {measure} | {run.cell} |", {})
            found.setdefault(run.entry, []).append(np.log(run.value(measure)))
    lines = ["| measure | cell | order |", "|---|---|---|"]
    for row, found in logs.items():
        lines.append(f"{row} {', '.join(sorted(found, key=lambda entry: np.mean(found[entry])))} |")
    return "\n".join(lines)


EXPERIMENT = Experiment(
    question="Does the simulator rank policies as real engines do?",
    cells=tuple(f"{how} / {pace}" for pace in PACES for how in ("measured", "simulated")),
    entries=ENTRIES,
    measures=(*MEASURES, "hits", "first replica", "requests", "failed"),
    run=run,
    seeds=4,
    ranges=("hits", "first replica", "requests", "failed"),
    minutes=1.5,
    summary=_orders,
    takes_fleet=True,
)
