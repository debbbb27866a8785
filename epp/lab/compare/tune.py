"""Tuning a policy's weights by simulation, with one budget and one objective for every policy.

The search is the tuner's (`epp.learn.tuner.search`), from the policy's defaults; of all weights measured the
best
are taken. Loads tuned on are never judged on (`epp.lab.compare.plan`).

Objective: mean over the tuning seeds of ``(ln TTFT p95 + ln E2E p95) / 2 + 10 * share of failed requests``;
lower is better. E2E stands beside TTFT because TTFT alone is won by sending everything to the nearest replica
(source [G]).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from epp.lab.compare.plan import TUNING_SEED
from epp.lab.compare.simulate import Task, run_task
from epp.lab.sim.oracle import ORACLES
from epp.lab.sim.run import policy_named
from epp.learn.tuner.search import Search
from epp.policies.lodestar import Lodestar

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epp.lab.compare.measure import Figures
    from epp.lab.compare.plan import Cell
    from epp.lab.compare.simulate import PolicyChoice
    from epp.lab.sim.scenario import FleetSpec
    from epp.policies.base import Policy, WeightSpec

TUNING_SEEDS = 2
_ERROR_PRICE = 10.0


@dataclass(frozen=True, slots=True)
class TuningTask:
    """Tune one policy for one cell.

    Attributes:
        cell: what it is tuned for; its ``tuning`` source is what it is tuned on.
        fleet: the replicas.
        policy: the policy; weights in it are where the search starts.
        budget: how many different weights are tried, the start included.
        seed: of the search.
    """

    cell: Cell
    fleet: FleetSpec
    policy: PolicyChoice
    budget: int
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Tuned:
    """What a search found.

    Attributes:
        policy: name.
        weights: the best found.
        start: objective of the start.
        best: objective of the best.
        tried: different weights tried.
    """

    policy: str
    weights: Mapping[str, float]
    start: float
    best: float
    tried: int


def tunable(name: str) -> bool:
    """Check that a policy has weights to tune; one that learns has its heuristic's, and switches."""
    return name not in ORACLES and name != Lodestar.name and bool(_specs(name))


def objective(figures: Figures) -> float:
    """Price one run; see the module."""
    if not figures.requests or math.isnan(figures.e2e_ms.p95):
        return math.inf
    latency = (math.log(figures.ttft_ms.p95) + math.log(figures.e2e_ms.p95)) / 2.0
    return latency + _ERROR_PRICE * figures.errors / figures.requests


def tune(task: TuningTask) -> Tuned:
    """Search for the best weights; equal tasks give equal weights."""
    specs = _specs(task.policy.name)
    start = {name: spec.default for name, spec in specs.items()} | dict(task.policy.weights)
    search = Search(start, {name: (spec.low, spec.high) for name, spec in specs.items()}, seed=task.seed)
    found: list[tuple[float, dict[str, float]]] = []
    known: dict[tuple[float, ...], float] = {}
    while not search.stop(budget=task.budget):
        weights = search.ask()
        key = tuple(weights.values())
        known[key] = cost = known[key] if key in known else _cost(task, weights)
        search.tell(cost)
        found.append((cost, weights))
    best_cost, best = min(found, key=lambda one: one[0])
    return Tuned(task.policy.name, best, start=found[0][0], best=best_cost, tried=len(known))


def _specs(name: str) -> Mapping[str, WeightSpec]:
    policy: Policy = policy_named(name)  # type: ignore[assignment]  # oracles are sorted out before
    return policy.weight_specs


def _cost(task: TuningTask, weights: Mapping[str, float]) -> float:
    cell = replace(task.cell, source=task.cell.tuning or task.cell.source)
    policy = replace(task.policy, weights=weights)
    seeds = range(TUNING_SEED, TUNING_SEED + TUNING_SEEDS)
    runs = [run_task(Task(cell, task.fleet, policy, seed)).figures for seed in seeds]
    return sum(objective(run) for run in runs) / len(runs)
