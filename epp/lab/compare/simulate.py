"""Running cells: one task is one policy on one load under one seed; tasks run in worker processes.

Owns the pool and the order of tasks. Results do not depend on the number of workers: a task is a pure
function of its values, and what comes back is put in the order that was asked for.
"""

from __future__ import annotations

import multiprocessing
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

from epp.errors import EppError
from epp.lab.compare.learned import Learning, Lesson, run_learned
from epp.lab.compare.measure import METRICS, Figures, Run, counted, figures, from_window
from epp.lab.sim.run import policy_named, run_window
from epp.lab.sim.scenario import FleetSpec, WindowOptions
from epp.policies.lodestar import Lodestar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from epp.lab.compare.plan import Cell

    Floats = NDArray[np.float64]

_T = TypeVar("_T")
_R = TypeVar("_R")


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
    """One policy on one load under one seed.

    Attributes:
        cell: the load.
        fleet: the replicas.
        policy: the policy.
        seed: of the load, the network and the decisions.
        columns: bring back each request's latencies too.
    """

    cell: Cell
    fleet: FleetSpec
    policy: PolicyChoice
    seed: int
    columns: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a task brings back.

    Attributes:
        figures: what the run is summed up to.
        latencies: per metric, the column of counted requests, and when each ended (``end_ms``, since the
            start of the run); empty unless asked for.
        lesson: what a policy learned meanwhile, None for those that do not.
    """

    figures: Figures
    latencies: Mapping[str, Floats]
    lesson: Lesson | None = None


def run_task(task: Task) -> Outcome:
    """Run one task here.

    Raises:
        EppError: there is no load, or it is without an end, or its blocks are larger than a cache.
    """
    cell = task.cell
    requests = cell.source.requests(task.seed)
    cell.check_length(requests)
    block, room = (
        requests[0].block_tokens,
        min(r.engine_class.kv_capacity_tokens for r in task.fleet.replicas),
    )
    if block > room:
        raise EppError(f"{cell.name}: its blocks of {block:,} tokens fit into no cache of {room:,}")
    options = WindowOptions(
        time_scale=cell.pace,
        max_in_flight=cell.max_in_flight,
        closed_loop=cell.closed_loop,
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
        lesson.chosen.clear()  # a line a request: too much to travel, and the sentences need none of it
    else:
        result = run_window(requests, task.fleet, policy, weights, seed=task.seed, options=options)
    outcome = outcome_of(cell, task.seed, from_window(result, len(requests)), columns=task.columns)
    return replace(outcome, lesson=lesson)


def outcome_of(cell: Cell, seed: int, run: Run, *, columns: bool) -> Outcome:
    """Sum up a run of a cell."""
    requests = cell.source.requests(seed)
    mask = counted(requests, warmup_s=cell.warmup(requests), time_scale=cell.pace)
    summed = figures(run, requests, mask, time_scale=cell.pace)
    latencies = {}
    if columns:
        latencies = {metric: run.latency(metric)[mask] for metric in METRICS}
        latencies["end_ms"] = (run.due_ms + run.e2e_ms)[mask]
    return Outcome(summed, latencies)


def run_all(
    work: Callable[[_T], _R],
    tasks: Sequence[_T],
    *,
    workers: int,
    on_done: Callable[[int], None] | None = None,
) -> list[_R]:
    """Results in the order of the tasks.

    Args:
        work: a function of a module, so that workers can find it.
        tasks: picklable values.
        workers: processes; 1 runs everything here.
        on_done: called with the number of tasks done so far.

    Raises:
        EppError: a worker process was ended from outside.
    """
    if workers <= 1 or len(tasks) <= 1:
        results = []
        for task in tasks:
            results.append(work(task))
            if on_done is not None:
                on_done(len(results))
        return results
    # Not forked: a fork of a process that has threads (progress bars have) may hang.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(workers, len(tasks)), mp_context=context) as pool:
        futures = [pool.submit(work, task) for task in tasks]
        pending = set(futures)
        try:
            while pending:
                done, pending = wait(pending, return_when=FIRST_COMPLETED)
                for future in done:
                    future.result()  # the first error stops the rest
                if on_done is not None:
                    on_done(len(futures) - len(pending))
        except BrokenProcessPool as error:
            raise EppError(
                "a worker process was ended from outside: killed by somebody, or by the system for its"
                " memory; fewer --workers need less"
            ) from error
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        return [future.result() for future in futures]
