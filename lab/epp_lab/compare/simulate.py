"""Run cells in worker processes: one task is one policy on one load under one seed.

Results do not depend on the number of workers: a task is a pure function of its values. Tuning searches a
policy's weights by such tasks.
"""

from __future__ import annotations

import math
import multiprocessing
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from epp.errors import EppError
from epp.policies.gorgo import GorgoHillclimb
from epp.policies.lodestar import Lodestar
from epp_lab.compare.hillclimb import hillclimb
from epp_lab.compare.learned import LEARNERS, Learning, Lesson, run_learned
from epp_lab.compare.measure import METRICS, Figures, PolicyRun, figures, from_window
from epp_lab.compare.plan import TUNING_SEED
from epp_lab.sim.oracle import ORACLES
from epp_lab.sim.run import policy_named, run_window
from epp_lab.sim.scenario import EVENTS
from epp_lab.tuner.hillclimb import EsPaper
from epp_lab.tuner.search import Search

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from epp.policies.base import Policy, WeightSpec
    from epp_lab.compare.plan import PlanCell
    from epp_lab.compare.stats import Floats
    from epp_lab.sim.scenario import FleetSpec, RegionMode

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
        pickers: how many pickers run it.
        regions: how they cooperate, of a fleet of regions (`PickerOptions.regions`).
        queue: requests may wait in the picker.
        events: how it hears of engines' KV caches, a name of `EVENTS`.
    """

    name: str
    weights: Mapping[str, float] = field(default_factory=dict)
    params: Mapping[str, object] = field(default_factory=dict)
    pickers: int = 1
    regions: RegionMode = "regions"
    queue: bool = False
    events: str = "off"

    @property
    def label(self) -> str:
        """The policy, its pickers where they are several or do not forward, its queue and events if any."""
        name = self.name if self.pickers == 1 else f"{self.name}, {self.pickers} pickers"
        name = f"{name}, queue" if self.queue else name
        name = name if self.events == "off" else f"{name}, events {self.events}"
        return name if self.regions == "regions" else f"{name}, {self.regions}"


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


def run_task(cell: PlanCell, fleet: FleetSpec, policy: PolicyChoice, seed: int) -> Outcome:
    """Run one policy on one load under one seed, which is the seed of load, network and decisions.

    Raises:
        EppError: there is no load, or the policy does not run on the fleet.
    """
    requests = cell.source.requests(seed)
    pickers = replace(cell.reports.pickers, count=policy.pickers, regions=policy.regions)
    options = replace(cell.reports, time_scale=cell.pace, max_in_flight=cell.max_in_flight, pickers=pickers)
    options = replace(options, events=EVENTS[policy.events])
    options = options.with_queue() if policy.queue else options
    weights, lesson = policy.weights, None
    if fleet.regions is not None and policy.name in (GorgoHillclimb.name, *LEARNERS):
        raise EppError(f"{policy.name}: does not run on a fleet of regions")
    if policy.name == GorgoHillclimb.name:
        result = hillclimb(requests, fleet, EsPaper(seed), seed=seed, options=options).run()
    elif isinstance(chosen := policy_named(policy.name, policy.params), Lodestar):
        learning = Learning(LEARNERS[policy.name])
        result, lesson = run_learned(
            requests, fleet, chosen, learning, weights=weights, seed=seed, options=options
        )
        lesson.chosen.clear()  # a line a request: too much to send to another process
    else:
        result = run_window(requests, fleet, chosen, weights, seed=seed, options=options)
    return replace(outcome_of(cell, seed, from_window(result, len(requests))), lesson=lesson)


def outcome_of(cell: PlanCell, seed: int, run: PolicyRun) -> Outcome:
    """Sum up a run of a cell; what counts are requests whose nominal send times are past the warm-up."""
    requests = cell.source.requests(seed)
    warmup_ms = cell.warmup(requests) * 1000.0
    mask = np.array([r.at_ms * cell.pace >= warmup_ms for r in requests], dtype=bool)
    latencies = {metric: run.columns[metric][mask] for metric in METRICS}
    return Outcome(figures(run, requests, mask, pace=cell.pace), latencies)


def completed(
    work: Callable[..., _R], tasks: Sequence[tuple[Any, ...]], *, workers: int
) -> Iterator[tuple[int, _R]]:
    """Yield positions and results of tasks as they are over; the first error stops the rest.

    Args:
        work: a function of a module, so that workers can find it.
        tasks: its arguments, picklable.
        workers: processes; 1 runs everything in this one.

    Raises:
        EppError: a worker process was ended from outside.
    """
    if workers <= 1 or len(tasks) <= 1:
        for at, task in enumerate(tasks):
            yield at, work(*task)
        return
    # Not forked: a fork of a process that has threads (progress bars have) may hang.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(workers, len(tasks)), mp_context=context) as pool:
        futures = {pool.submit(work, *task): at for at, task in enumerate(tasks)}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BrokenProcessPool as error:
            raise EppError(
                "a worker process was ended from outside; fewer workers need less memory"
            ) from error
        finally:
            pool.shutdown(cancel_futures=True)


# ---- tuning ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tuned:
    """The best weights that a search found, what they and the start cost, and how many were tried."""

    policy: str
    weights: Mapping[str, float]
    objective_at_defaults: float
    objective: float
    tried: int


def tunable(name: str) -> bool:
    """Check that a policy has weights to tune; one that learns has its heuristic's, or finds its own."""
    return name not in (*ORACLES, GorgoHillclimb.name) and name not in LEARNERS and bool(_specs(name))


def objective(run: Figures) -> float:
    """Price a run: ``(ln TTFT p95 + ln E2E p95) / 2 + 10 * share of failed requests``; lower is better.

    E2E stands beside TTFT: TTFT alone is won by sending everything to the nearest replica (source [G]).
    """
    if not run.requests or math.isnan(run.e2e_ms.p95):
        return math.inf
    latency = (math.log(run.ttft_ms.p95) + math.log(run.e2e_ms.p95)) / 2.0
    return latency + _ERROR_PRICE * run.errors / run.requests


def tune(cell: PlanCell, fleet: FleetSpec, policy: PolicyChoice, budget: int) -> Tuned:
    """Search for the best weights on the cell's tuning source; equal arguments give equal weights.

    Args:
        cell: what it is tuned for.
        fleet: the replicas.
        policy: the policy; weights in it are where the search starts, its defaults the others.
        budget: how many different weights are tried, the start included.
    """
    specs = _specs(policy.name)
    cell = replace(cell, source=cell.tuning or cell.source)
    start = {name: spec.default for name, spec in specs.items()} | dict(policy.weights)
    search = Search(start, {name: (spec.low, spec.high) for name, spec in specs.items()}, seed=0)
    found: list[tuple[float, dict[str, float]]] = []
    known: dict[tuple[float, ...], float] = {}
    while not search.stop(budget=budget):
        weights = search.ask()
        key = tuple(weights.values())
        if key not in known:
            tried = replace(policy, weights=weights)
            runs = [run_task(cell, fleet, tried, TUNING_SEED + number) for number in range(TUNING_SEEDS)]
            known[key] = sum(objective(run.figures) for run in runs) / TUNING_SEEDS
        search.tell(known[key])
        found.append((known[key], weights))
    best_cost, best = min(found, key=lambda one: one[0])
    return Tuned(policy.name, best, found[0][0], best_cost, len(known))


def _specs(name: str) -> Mapping[str, WeightSpec]:
    policy: Policy = policy_named(name)  # type: ignore[assignment]  # oracles are sorted out before
    return policy.weight_specs
