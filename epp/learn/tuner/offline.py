"""Rehearse on records: `epp tune --offline`, and the child process of a running tuner.

A running tuner rehearses in a process of its own, tied to it, because a simulation takes minutes and memory.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO, TYPE_CHECKING

import msgspec

from epp.config.load import parse_config
from epp.config.schema import Config
from epp.envoy.launch import tied_to_parent
from epp.lab.sim.scenario import WindowOptions
from epp.learn.tuner.calibrate import CalibrationError, calibrate, newest_records
from epp.learn.tuner.rehearse import Stage, budget_after, proposal, rehearse
from epp.learn.tuner.search import Search
from epp.learn.tuner.settings import Goal
from epp.learn.tuner.tuner import Found

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from epp.lab.compare.compare import Comparison
    from epp.learn.tuner.calibrate import Deployment
    from epp.learn.tuner.rehearse import Rehearsed
    from epp.learn.tuner.setup import Setup
    from epp.learn.tuner.state import State

#: Measurements in the simulator for each candidate.
BUDGET = 120
_NICE = 10


class Task(msgspec.Struct):
    """A rehearsal to be made.

    Attributes:
        records: folder.
        policy: whose weights.
        incumbent: in force; as newly recorded when empty.
        pins: weights that the operator fixed; they win over the incumbent's.
        bounds: of the weights that may be moved.
        seed: of the search.
        budget: measurements.
        config: the picker's configuration file, empty for none.
        search: state of an earlier search, empty for none.
        refused: weights that live trials did not promote.
        goal: what live trials are judged by.
        looks: candidates sought in a row, this one included.
    """

    records: str
    policy: str
    incumbent: dict[str, float]
    bounds: dict[str, tuple[float, float]]
    seed: int
    budget: int
    pins: dict[str, float] = {}
    config: str = ""
    search: dict[str, object] = {}
    refused: list[dict[str, float]] = []
    goal: Goal = Goal()
    looks: int = 1


def task_of(setup: Setup, state: State, *, budget: int) -> Task:
    """Build the task of a tuner in this state."""
    incumbent = {**setup.starting, **state.incumbent}
    bounds = {name: span for name, span in setup.rules.bounds.items() if name not in state.pins}
    remembered = state.search
    return Task(
        records=str(setup.records.resolve()),
        policy=setup.policy,
        incumbent=incumbent,
        bounds=bounds,
        seed=setup.rules.settings.seed + state.number + state.fruitless,
        budget=budget_after(budget, state.fruitless),
        pins=state.pins,
        config=str(setup.config_file.resolve()) if setup.config_file is not None else "",
        search=remembered.get("search", {}),
        refused=list(remembered.get("refused", [])),
        goal=setup.rules.settings.goal,
        looks=1 + state.fruitless,
    )


def perform(task: Task, tell: Callable[[str], None] | None = None) -> tuple[Found, Rehearsed, Deployment]:
    """Calibrate, search, judge.

    Args:
        task: what.
        tell: called with progress.

    Raises:
        EppError: there are no records, or too few.
    """
    decisions, outcomes = newest_records(Path(task.records), task.policy)
    try:
        deployment = calibrate(decisions, outcomes)
    except CalibrationError as error:
        raise CalibrationError(f"{task.records}, policy {task.policy}: {error}") from error
    config = Config()
    if task.config:
        config = parse_config(Path(task.config).read_bytes(), task.config)
    incumbent = {**(task.incumbent or deployment.weights), **task.pins}
    search = _search(task, incumbent)
    rehearsed = rehearse(
        Stage(deployment, WindowOptions(config=config), task.seed),
        search,
        incumbent,
        budget=task.budget,
        goal=task.goal,
        looks=task.looks,
        on_try=None if tell is None else lambda n: tell(f"{n} of {task.budget} measurements"),
    )
    weights, reason = proposal(rehearsed, task.bounds, task.refused)
    memory: dict[str, object] = {"search": search.to_state(), "refused": task.refused}
    if weights is not None:
        memory["proposed"] = weights
    return Found(weights, reason, memory), rehearsed, deployment


def _search(task: Task, incumbent: Mapping[str, float]) -> Search:
    """Return the earlier search where it was about the same question, else a new one."""
    start = {name: min(max(incumbent[name], low), high) for name, (low, high) in task.bounds.items()}
    search = Search(start, task.bounds, seed=task.seed)
    try:
        before = Search.from_state(task.search) if task.search else search
    except (KeyError, TypeError, ValueError):
        return search
    fresh = search.to_state()
    same = all(task.search.get(key) == json.loads(json.dumps(fresh[key])) for key in ("start", "bounds"))
    return before if task.search and same and before.told < 4 * task.budget else search


def run_child() -> int:
    """Run `epp tune rehearse`: a task on standard input, what was found on standard output."""
    os.nice(_NICE)
    task = msgspec.json.decode(sys.stdin.buffer.read(), type=Task)
    try:
        found = perform(task)[0]
    except CalibrationError as error:
        found = Found(None, str(error), failed=True)
    sys.stdout.buffer.write(msgspec.json.encode(found))
    return 0


class ChildRehearsal:
    """Rehearses in a child process.

    Args:
        setup: what is configured.
        budget: measurements for each candidate.
        tell: called with sentences for the log.
    """

    def __init__(self, setup: Setup, *, budget: int, tell: Callable[[str], None]) -> None:
        self._setup, self._budget, self._tell = setup, budget, tell
        self._process: subprocess.Popen[bytes] | None = None
        self._answer: IO[bytes] | None = None
        self._errors: IO[bytes] | None = None

    def start(self, state: State, reason: str) -> None:
        """Begin; one that runs already is given up.

        Raises:
            OSError: no room for its files, or for another process.
        """
        self.stop()
        self._tell(f"rehearsing: {reason}")
        with tempfile.TemporaryFile() as question:
            question.write(msgspec.json.encode(task_of(self._setup, state, budget=self._budget)))
            question.seek(0)
            self._answer = tempfile.TemporaryFile()  # noqa: SIM115  # closed by `stop`
            self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # likewise
            self._process = subprocess.Popen(  # noqa: S603  # our own command
                tied_to_parent(sys.executable, "-m", "epp", "tune", "rehearse"),
                stdin=question,
                stdout=self._answer,
                stderr=self._errors,
            )

    def poll(self) -> Found | None:
        """Return what was found, once; None while it runs or when nothing was begun."""
        process = self._process
        if process is None or process.poll() is None or self._answer is None or self._errors is None:
            return None
        self._answer.seek(0)
        self._errors.seek(0)
        answer, errors = self._answer.read(), self._errors.read()
        self.stop()
        try:
            return msgspec.json.decode(answer, type=Found)
        except msgspec.MsgspecError:
            last = errors.decode(errors="replace").strip().splitlines()[-1:] or ["no words"]
            reason = f"the rehearsal failed with status {process.returncode}: {last[0]}"
            return Found(None, reason, failed=True)

    def stop(self) -> None:
        """Give up what runs."""
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            process.kill()
            process.wait()
        for file in (self._answer, self._errors):
            if file is not None:
                file.close()
        self._answer = self._errors = None


def run_offline(setup: Setup, *, budget: int, seed: int, pins: Mapping[str, float], as_json: bool) -> int:
    """Rehearse on records and print what would be set, and why."""
    bounds = {name: span for name, span in setup.rules.bounds.items() if name not in pins}
    task = Task(
        records=str(setup.records),
        policy=setup.policy,
        incumbent={},
        bounds=bounds,
        seed=seed,
        budget=budget,
        pins=dict(pins),
        config="" if setup.config_file is None else str(setup.config_file),
        goal=setup.rules.settings.goal,
    )
    progress = None if as_json or not sys.stderr.isatty() else _progress
    found, rehearsed, deployment = perform(task, progress)
    if progress is not None:
        print(file=sys.stderr)
    if as_json:
        print(json.dumps(_plain(found, rehearsed, deployment), indent=2))
        return 0
    for line in report(found, rehearsed, deployment, pins):
        print(line)
    return 0


def _progress(sentence: str) -> None:
    print(f"\r{sentence}", end="", file=sys.stderr, flush=True)


def report(
    found: Found, rehearsed: Rehearsed, deployment: Deployment, pins: Mapping[str, float]
) -> list[str]:
    """Write a rehearsal in words."""
    fleet = ", ".join(
        f"{r.address} ({r.region or 'no region'}, {r.network.rtt_ms:.0f} ms, "
        f"{r.engine_class.prefill_ms_per_token:.3f} ms a token, KV {r.engine_class.kv_capacity_tokens:,})"
        for r in deployment.fleet.replicas
    )
    lines = [
        f"policy {deployment.policy}, {len(deployment.trace)} recorded requests",
        f"simulated fleet: {fleet}",
        *(f"assumed: {note}" for note in deployment.notes),
        (
            f"p95 with the weights in force: TTFT {_ms(rehearsed.simulated_ttft_p95_ms)} simulated, "
            f"{_ms(deployment.ttft_p95_ms)} recorded; E2E {_ms(rehearsed.simulated_e2e_p95_ms)} simulated, "
            f"{_ms(deployment.e2e_p95_ms)} recorded"
        ),
        f"{rehearsed.tried} weights tried at full share, the best judged on other requests:",
    ]
    for name, value in sorted(rehearsed.incumbent.items()):
        now, best = f"{value:.4g}", f"{rehearsed.weights.get(name, value):.4g}"
        lines.append(f"  {name}: {now} -> {best}" + (" (pinned)" if name in pins else ""))
    for label, comparison in (("TTFT p95", rehearsed.ttft), ("E2E p95", rehearsed.e2e)):
        if comparison is not None:
            lines.append(f"  {label}: {_interval(comparison)}")
    if found.weights is None:
        lines.append(f"would set nothing: {found.reason}")
    else:
        chosen = ", ".join(f"{name}: {value:.4g}" for name, value in sorted(found.weights.items()))
        lines.append(f"would try live: {{{chosen}}}")
        lines.append(f"because {found.reason}")
    return lines


def _interval(found: Comparison) -> str:
    low, middle, high = (100.0 * (value - 1.0) for value in (found.low, found.ratio, found.high))
    return (
        f"{middle:+.1f} %, 95 % interval [{low:+.1f}, {high:+.1f}] "
        f"over {found.n} paired requests of {found.sessions} sessions"
    )


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
