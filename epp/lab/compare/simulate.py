"""Run cells in worker processes: one task is one policy on one load under one seed.

Results do not depend on the number of workers: a task is a pure function of its values, and what comes back
is put in the order that was asked for. Tuning searches a policy's weights by such tasks.
"""

from __future__ import annotations

import math
import multiprocessing
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

from epp.errors import EppError
from epp.lab.compare.learned import Learning, Lesson, run_learned
from epp.lab.compare.measure import METRICS, Figures, Run, counted, figures, from_window
from epp.lab.compare.plan import TUNING_SEED
from epp.lab.sim.oracle import ORACLES
from epp.lab.sim.run import policy_named, run_window
from epp.lab.sim.scenario import FleetSpec, WindowOptions
from epp.learn.tuner.search import Search
from epp.policies.lodestar import Lodestar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from epp.lab.compare.plan import Cell
    from epp.policies.base import Policy, WeightSpec

    Floats = NDArray[np.float64]

_T = TypeVar("_T")
_R = TypeVar("_R")
TUNING_SEEDS = 2
_ERROR_PRICE = 10.0


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """A policy as it is run.

    Attributes:
        name: registered policy or yardstick.
        weights: those that differ from its defaults.
        params: parameters that differ from its defaults.
        learning: how it learns during the run, for a policy that does.
    """

    name: str
    weights: Mapping[str, float] = field(default_factory=dict)
    params: Mapping[str, object] = field(default_factory=dict)
    learning: Learning | None = None


@dataclass(frozen=True, slots=True)
class Task:
    """One policy on one load under one seed, which is the seed of load, network and decisions."""

    cell: Cell
    fleet: FleetSpec
    policy: PolicyChoice
    seed: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a task.

    Attributes:
        figures: what the run is summed up to.
        latencies: per metric, the column of counted requests.
        lesson: what a policy learned meanwhile, None for those that do not.
    """

    figures: Figures
    latencies: Mapping[str, Floats]
    lesson: Lesson | None = None


def run_task(task: Task) -> Outcome:
    """Run one task in this process.

    Raises:
        EppError: there is no load, or its blocks are larger than a cache.
    """
    cell = task.cell
    requests = cell.source.requests(task.seed)
    block = requests[0].block_tokens
    room = min(r.engine_class.kv_capacity_tokens for r in task.fleet.replicas)
    if block > room:
        raise EppError(f"{cell.name}: its blocks of {block:,} tokens fit into no cache of {room:,}")
    options = WindowOptions(
        time_scale=cell.pace,
        max_in_flight=cell.max_in_flight,
        report_usage=cell.reports.usage,
        report_cached_tokens=cell.reports.cached_tokens,
        report_delay_ms=cell.reports.delay_ms,
        report_connections=cell.reports.connections,
    )
    policy, weights = policy_named(task.policy.name, task.policy.params), task.policy.weights
    lesson = None
    if isinstance(policy, Lodestar):
        learning = task.policy.learning or Learning()
        result, lesson = run_learned(
            requests, task.fleet, policy, learning, weights=weights, seed=task.seed, options=options
        )
        lesson.chosen.clear()  # a line a request: too much to send to another process
    else:
        result = run_window(requests, task.fleet, policy, weights, seed=task.seed, options=options)
    return replace(outcome_of(cell, task.seed, from_window(result, len(requests))), lesson=lesson)


def outcome_of(cell: Cell, seed: int, run: Run) -> Outcome:
    """Sum up a run of a cell."""
    requests = cell.source.requests(seed)
    mask = counted(requests, warmup_s=cell.warmup(requests), pace=cell.pace)
    latencies = {metric: run.columns[metric][mask] for metric in METRICS}
    return Outcome(figures(run, requests, mask, pace=cell.pace), latencies)


def run_all(
    work: Callable[[_T], _R],
    tasks: Sequence[_T],
    *,
    workers: int,
    on_done: Callable[[int], None] = lambda _: None,
) -> list[_R]:
    """Return results in the order of the tasks.

    Args:
        work: a function of a module, so that workers can find it.
        tasks: picklable values.
        workers: processes; 1 runs everything in this one.
        on_done: called with the number of tasks done so far.

    Raises:
        EppError: a worker process was ended from outside.
    """
    if workers <= 1 or len(tasks) <= 1:
        results = []
        for task in tasks:
            results.append(work(task))
            on_done(len(results))
        return results
    # Not forked: a fork of a process that has threads (progress bars have) may hang.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(workers, len(tasks)), mp_context=context) as pool:
        futures = [pool.submit(work, task) for task in tasks]
        try:
            for done, future in enumerate(as_completed(futures), 1):
                future.result()  # the first error stops the rest
                on_done(done)
        except BrokenProcessPool as error:
            raise EppError(
                "a worker process was ended from outside; fewer --workers need less memory"
            ) from error
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        return [future.result() for future in futures]


# ---- tuning ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TuningTask:
    """Tune one policy for one cell, on the cell's tuning source.

    Attributes:
        cell: what it is tuned for.
        fleet: the replicas.
        policy: the policy; weights in it are where the search starts.
        budget: how many different weights are tried, the start included.
    """

    cell: Cell
    fleet: FleetSpec
    policy: PolicyChoice
    budget: int


@dataclass(frozen=True, slots=True)
class Tuned:
    """The best weights that a search found, what they and the start cost, and how many were tried."""

    policy: str
    weights: Mapping[str, float]
    objective_at_defaults: float
    objective: float
    tried: int


def tunable(name: str) -> bool:
    """Check that a policy has weights to tune; one that learns has its heuristic's, and switches."""
    return name not in ORACLES and name != Lodestar.name and bool(_specs(name))


def objective(run: Figures) -> float:
    """Price a run: ``(ln TTFT p95 + ln E2E p95) / 2 + 10 * share of failed requests``; lower is better.

    E2E stands beside TTFT: TTFT alone is won by sending everything to the nearest replica (source [G]).
    """
    if not run.requests or math.isnan(run.e2e_ms.p95):
        return math.inf
    latency = (math.log(run.ttft_ms.p95) + math.log(run.e2e_ms.p95)) / 2.0
    return latency + _ERROR_PRICE * run.errors / run.requests


def tune(task: TuningTask) -> Tuned:
    """Search for the best weights from the policy's defaults; equal tasks give equal weights."""
    specs = _specs(task.policy.name)
    start = {name: spec.default for name, spec in specs.items()} | dict(task.policy.weights)
    search = Search(start, {name: (spec.low, spec.high) for name, spec in specs.items()}, seed=0)
    found: list[tuple[float, dict[str, float]]] = []
    known: dict[tuple[float, ...], float] = {}
    while not search.stop(budget=task.budget):
        weights = search.ask()
        key = tuple(weights.values())
        known[key] = cost = known[key] if key in known else _cost(task, weights)
        search.tell(cost)
        found.append((cost, weights))
    best_cost, best = min(found, key=lambda one: one[0])
    return Tuned(task.policy.name, best, found[0][0], best_cost, len(known))


def _specs(name: str) -> Mapping[str, WeightSpec]:
    policy: Policy = policy_named(name)  # type: ignore[assignment]  # oracles are sorted out before
    return policy.weight_specs


def _cost(task: TuningTask, weights: Mapping[str, float]) -> float:
    cell = replace(task.cell, source=task.cell.tuning or task.cell.source)
    policy = replace(task.policy, weights=weights)
    seeds = range(TUNING_SEED, TUNING_SEED + TUNING_SEEDS)
    return sum(objective(run_task(Task(cell, task.fleet, policy, seed)).figures) for seed in seeds) / len(
        seeds
    )
