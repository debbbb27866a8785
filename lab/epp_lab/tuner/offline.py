"""Rehearse on records: `epp tune --offline`, and the child process of a running tuner.

A running tuner rehearses in a process of its own, because a simulation takes minutes and memory.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from epp_lab.sim.scenario import WindowOptions
from epp_lab.tuner.calibrate import CalibrationError, calibrate, newest_records
from epp_lab.tuner.rehearse import WINDOW_REQUESTS, Stage, budget_after, change, proposal, rehearse
from epp_lab.tuner.search import Search
from epp_lab.tuner.tuner import Found

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from multiprocessing.connection import Connection

    from epp_lab.tuner.calibrate import Deployment
    from epp_lab.tuner.rehearse import Rehearsed
    from epp_lab.tuner.search import Measured
    from epp_lab.tuner.setup import Setup
    from epp_lab.tuner.state import TunerState

#: Measurements in the simulator for each candidate.
BUDGET = 120
_NICE = 10
_SPAWN = multiprocessing.get_context("spawn")


@dataclass(frozen=True, slots=True)
class Task:
    """A rehearsal to be made.

    Attributes:
        setup: what is configured.
        seed: of the search.
        budget: measurements.
        pins: weights that the operator fixed; they win over the incumbent's.
        incumbent: in force; as newly recorded when empty.
        measured: an earlier search, to go on from.
        refused: weights that live trials did not promote.
        looks: candidates sought in a row, this one included.
    """

    setup: Setup
    seed: int
    budget: int
    pins: Mapping[str, float]
    incumbent: dict[str, float] = field(default_factory=dict)
    measured: Measured | None = None
    refused: list[dict[str, float]] = field(default_factory=list)
    looks: int = 1


def task_of(setup: Setup, state: TunerState, *, budget: int) -> Task:
    """Build the task of a tuner in this state."""
    return Task(
        setup,
        seed=setup.rules.settings.seed + state.number + state.fruitless,
        budget=budget_after(budget, state.fruitless),
        incumbent={**setup.rules.starting, **state.incumbent},
        pins=state.pins,
        measured=state.measured,
        refused=state.refused,
        looks=1 + state.fruitless,
    )


def perform(task: Task) -> tuple[Found, Rehearsed, Deployment]:
    """Calibrate, search, judge.

    Raises:
        EppError: there are no records, or too few.
    """
    setup = task.setup
    decisions, outcomes = newest_records(setup.records, setup.policy)
    try:
        deployment = calibrate(decisions, outcomes)
    except CalibrationError as error:
        raise CalibrationError(f"{setup.records}, policy {setup.policy}: {error}") from error
    incumbent = {**(task.incumbent or deployment.weights), **task.pins}
    bounds = {name: span for name, span in setup.rules.bounds.items() if name not in task.pins}
    search = _search(task, incumbent, bounds)
    rehearsed = rehearse(
        Stage(deployment, WindowOptions(config=setup.config), task.seed, WINDOW_REQUESTS),
        search,
        incumbent,
        budget=task.budget,
        goal=setup.rules.settings.goal,
        looks=task.looks,
    )
    weights, reason = proposal(rehearsed, bounds, task.refused)
    return Found(weights, reason, search.measured), rehearsed, deployment


def _search(task: Task, incumbent: Mapping[str, float], bounds: Mapping[str, tuple[float, float]]) -> Search:
    """Return the earlier search where it was about the same question, else a new one."""
    search, before = Search(incumbent, bounds, seed=task.seed), task.measured
    asked = search.measured
    if before is None or (before.start, before.bounds) != (asked.start, asked.bounds):
        return search
    if len(before.costs) >= 4 * task.budget:
        return search
    return Search(before.start, before.bounds, seed=before.seed, costs=before.costs)


def _child(task: Task, answer: Connection) -> None:
    """Rehearse in a process of low priority that ends with its parent."""
    os.nice(_NICE)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        found = perform(task)[0]
    except CalibrationError as error:
        found = Found(None, str(error), failed=True)
    answer.send(found)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


class ChildRehearsal:
    """Rehearses in a child process.

    Args:
        setup: what is configured.
        budget: measurements for each candidate.
        report: takes sentences for the log.
    """

    def __init__(self, setup: Setup, *, budget: int, report: Callable[[str], None]) -> None:
        self._setup, self._budget, self._report = setup, budget, report
        self._running: tuple[multiprocessing.process.BaseProcess, Connection] | None = None

    def start(self, state: TunerState, reason: str) -> None:
        """Begin; one that runs already is given up.

        Raises:
            OSError: no room for another process.
        """
        self.stop()
        self._report(f"rehearsing: {reason}")
        answer, childs_end = _SPAWN.Pipe(duplex=False)
        task = task_of(self._setup, state, budget=self._budget)
        process = _SPAWN.Process(target=_child, args=(task, childs_end), daemon=True)
        process.start()
        childs_end.close()
        self._running = process, answer

    def poll(self) -> Found | None:
        """Return what was found, once; None while it runs or when nothing was begun."""
        if self._running is None or not self._running[1].poll():
            return None
        process, answer = self._running
        try:
            found: Found = answer.recv()
        except EOFError:
            process.join()
            found = Found(None, f"the rehearsal failed with status {process.exitcode}", failed=True)
        self.stop()
        return found

    def stop(self) -> None:
        """Give up what runs."""
        if self._running is not None:
            process, answer = self._running
            self._running = None
            process.kill()
            process.join()
            answer.close()


def run_offline(setup: Setup, *, budget: int, seed: int, pins: Mapping[str, float], as_json: bool) -> int:
    """Rehearse on records and print what would be set, and why."""
    found, rehearsed, deployment = perform(Task(setup, seed, budget, pins))
    if as_json:
        print(json.dumps(_plain(found, rehearsed, deployment), indent=2))
    else:
        print("\n".join(report(found, rehearsed, deployment, pins)))
    return 0


def report(
    found: Found, rehearsed: Rehearsed, deployment: Deployment, pins: Mapping[str, float]
) -> Iterator[str]:
    """Write a rehearsal in words."""
    fleet = ", ".join(
        f"{r.address} ({r.region or 'no region'}, {r.network.rtt_ms:.0f} ms, "
        f"{r.engine_class.prefill_ms_per_token:.3f} ms a token, KV {r.engine_class.kv_capacity_tokens:,})"
        for r in deployment.fleet.replicas
    )
    yield f"policy {deployment.policy}, {len(deployment.trace)} recorded requests"
    yield f"simulated fleet: {fleet}"
    yield from (f"assumed: {note}" for note in deployment.notes)
    ttft, e2e = (
        f"{name} {_ms(simulated)} simulated, {_ms(recorded)} recorded"
        for name, simulated, recorded in (
            ("TTFT", rehearsed.simulated_ttft_p95_ms, deployment.ttft_p95_ms),
            ("E2E", rehearsed.simulated_e2e_p95_ms, deployment.e2e_p95_ms),
        )
    )
    yield f"p95 with the weights in force: {ttft}; {e2e}"
    yield f"{rehearsed.tried} weights tried at full share, the best judged on other requests:"
    for name, value in sorted(rehearsed.incumbent.items()):
        now, best = f"{value:.4g}", f"{rehearsed.weights.get(name, value):.4g}"
        yield f"  {name}: {now} -> {best}" + (" (pinned)" if name in pins else "")
    for label, comparison in (("TTFT", rehearsed.ttft), ("E2E", rehearsed.e2e)):
        if comparison is not None:
            yield (
                f"  {label} p95: {change(comparison)} (95 %) over {comparison.n} paired requests of "
                f"{comparison.sessions} sessions"
            )
    if found.weights is None:
        yield f"would set nothing: {found.reason}"
        return
    chosen = ", ".join(f"{name}: {value:.4g}" for name, value in sorted(found.weights.items()))
    yield f"would try live: {{{chosen}}}"
    yield f"because {found.reason}"


def _ms(value_ms: float) -> str:
    return "unknown" if math.isnan(value_ms) else f"{value_ms:,.0f} ms"


def _plain(found: Found, rehearsed: Rehearsed, deployment: Deployment) -> dict[str, object]:
    p95s = {"ttft_p95": rehearsed.ttft, "e2e_p95": rehearsed.e2e}
    keys = ("ratio", "low", "high", "n", "sessions")
    return {
        "policy": deployment.policy,
        "requests": len(deployment.trace),
        "weights": found.weights,
        "reason": found.reason,
        "best": dict(rehearsed.weights),
        **{name: None if c is None else {key: getattr(c, key) for key in keys} for name, c in p95s.items()},
        "tried": rehearsed.tried,
        "notes": list(deployment.notes),
    }
