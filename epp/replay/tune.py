"""Tuning a policy's weights by simulation, with one budget and one objective for every policy.

Owns the search and what it minimises. The search is simple on purpose and the same for all: the defaults
first, then half of the budget on weights drawn around the bounds, then one weight at a time around the best,
with steps that shrink when nothing is found. Randomness is keyed by (seed, policy, step); equal arguments
give equal weights. Loads tuned on are never judged on (`epp.replay.plan`).

Objective: mean over the tuning seeds of ``(ln TTFT p95 + ln E2E p95) / 2 + 10 * share of failed requests``;
lower is better. E2E stands beside TTFT because TTFT alone is won by sending everything to the nearest replica
(source [G]).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from epp.keyed_uniform import keyed_uniform
from epp.policies.lodestar import Lodestar
from epp.replay.plan import TUNING_SEED
from epp.replay.simulate import Task, run_task
from epp.sim.oracle import ORACLES
from epp.sim.run import policy_named

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epp.policies.base import Policy, WeightSpec
    from epp.replay.measure import Figures
    from epp.replay.plan import Cell
    from epp.replay.simulate import PolicyChoice
    from epp.sim.scenario import FleetSpec

TUNING_SEEDS = 2
_ERROR_PRICE = 10.0
_FIRST_STEP = 2.0  # factor by which a weight is moved at first
_LAST_STEP = 1.1
# A weight whose lowest value is 0 is drawn down to this part of its default, or of its highest value.
_ZERO_SPAN = 1e-3
_ZERO_SHARE = 0.1


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
    """Whether a policy has weights to tune; one that learns has its heuristic's, and switches."""
    return name not in ORACLES and name != Lodestar.name and bool(_specs(name))


def objective(figures: Figures) -> float:
    """What one run costs; see the module."""
    if not figures.requests or math.isnan(figures.e2e_ms.p95):
        return math.inf
    latency = (math.log(figures.ttft_ms.p95) + math.log(figures.e2e_ms.p95)) / 2.0
    return latency + _ERROR_PRICE * figures.errors / figures.requests


def tune(task: TuningTask) -> Tuned:
    """Search; deterministic."""
    specs = _specs(task.policy.name)
    start = {name: spec.default for name, spec in specs.items()} | dict(task.policy.weights)
    best, best_cost = start, _cost(task, start)
    start_cost, tried = best_cost, 1
    while tried < 1 + (task.budget - 1) // 2:
        candidate = _drawn(specs, task, tried)
        cost = _cost(task, candidate)
        tried += 1
        if cost < best_cost:
            best, best_cost = candidate, cost
    step, turn, failures = _FIRST_STEP, 0, 0
    names = list(specs)
    while tried < task.budget:
        name, up = names[(turn // 2) % len(names)], turn % 2 == 0
        turn += 1
        candidate = best | {name: _moved(best[name], specs[name], step if up else 1.0 / step)}
        failures += 1
        if candidate != best:
            cost = _cost(task, candidate)
            tried += 1
            if cost < best_cost:
                best, best_cost, failures = candidate, cost, 0
                turn -= 1  # on in the same direction
        if failures >= 2 * len(names):
            if step <= _LAST_STEP:
                break
            step, failures = max(_LAST_STEP, step**0.5), 0
    return Tuned(task.policy.name, best, start_cost, best_cost, tried)


def _specs(name: str) -> Mapping[str, WeightSpec]:
    policy: Policy = policy_named(name)  # type: ignore[assignment]  # oracles are sorted out before
    return policy.weight_specs


def _cost(task: TuningTask, weights: Mapping[str, float]) -> float:
    cell = replace(task.cell, source=task.cell.tuning or task.cell.source)
    policy = replace(task.policy, weights=weights)
    seeds = range(TUNING_SEED, TUNING_SEED + TUNING_SEEDS)
    runs = [run_task(Task(cell, task.fleet, policy, seed)).figures for seed in seeds]
    return sum(objective(run) for run in runs) / len(runs)


def _drawn(specs: Mapping[str, WeightSpec], task: TuningTask, number: int) -> dict[str, float]:
    """Log-uniform between the bounds, some zeros where zero is allowed."""
    out = {}
    for name, spec in specs.items():
        key = f"{task.policy.name} {number}"
        low = spec.low if spec.low > 0 else _ZERO_SPAN * (spec.default or spec.high)
        value = low * (spec.high / low) ** keyed_uniform(task.seed, key, name)
        if spec.low <= 0.0 and keyed_uniform(task.seed, key, f"{name} zero") < _ZERO_SHARE:
            value = spec.low
        out[name] = value
    return out


def _moved(value: float, spec: WeightSpec, factor: float) -> float:
    if value == 0.0 and factor > 1.0:
        return min(spec.high, _ZERO_SPAN * (spec.default or spec.high) * 10.0)
    return min(spec.high, max(spec.low, value * factor))
