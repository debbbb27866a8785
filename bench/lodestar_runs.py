"""Runs of Lodestar's evaluation, kept in a folder: one line a run, so that a stopped bench goes on.

Owns the folder's file and what a run is summed up to. A run is known by cell, entry, seed, size and the
source that made it. One process writes.
"""

from __future__ import annotations

import math
import multiprocessing
import time
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import msgspec
import numpy as np

from bench.kept import adding, lines
from bench.lodestar_cells import CELLS, ENTRIES, FULL, GRID, SHORT, SMOKE, TUNING_SEED
from bench.policy_runs import source_digest
from epp.policies.lodestar import FALLBACKS, Lodestar
from epp.policies.registry import create
from epp.replay.fleets import FLEETS
from epp.replay.learned import Learning, Lesson, run_learned, trained_on
from epp.sim.run import run_window

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from bench.lodestar_cells import Cell, Entry
    from epp.sim.results import WindowResult

    Floats = NDArray[np.float64]

_R = TypeVar("_R")

SIZES = {size.name: size for size in (SHORT, FULL, SMOKE)}
#: Width of the windows in which a run is looked at.
BIN_S = 30.0
#: What decides how a run comes out: of the package, and of the bench, as cells and entries are known by name.
_SOURCES = (
    *("config", "decide", "learner", "policies", "prompt", "replay", "signals", "sim", "tuner"),
    *("keyed_uniform.py", "view.py"),
    *("../bench/lodestar_cells.py", "../bench/lodestar_runs.py"),
)


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """A run.

    Attributes:
        cell: name.
        entry: label.
        seed: of load, network, draws and training.
        requests: sent.
        failed: of them.
        mean_ms: mean TTFT of what was due after `Cell.learned_s`.
        p99_ms: its 99th percentile.
        whole_mean_ms: of everything, cold caches and learning included.
        whole_p99_ms: the same.
        bins_ms: mean TTFT by 30 s of due time, NaN (null) for an empty window.
        error_ms: mean absolute error of the predictions by the same windows.
        by_class: engine class -> (share of requests, mean TTFT) after `Cell.learned_s`.
        first_model_s: when the first learned model decided; NaN for never.
        rounds: verdicts, in order.
        passed: of them.
        picks: decisions by what made them.
        foreign_share: share of judged endpoints that were unlike the training.
        shift_fallback_share: share of the decisions of the second half that fell back because of that.
        trial: what a trial came to: seconds after the start, phase entered, reason.
        retreats: without one, when models were taken away on regret, and why.
    """

    cell: str
    entry: str
    seed: int
    requests: int
    failed: int
    mean_ms: float
    p99_ms: float
    whole_mean_ms: float
    whole_p99_ms: float
    bins_ms: list[float | None]
    error_ms: list[float | None]
    by_class: dict[str, tuple[float, float]]
    first_model_s: float | None = None
    rounds: list[str] = []
    passed: int = 0
    picks: dict[str, int] = {}
    foreign_share: float = 0.0
    shift_fallback_share: float = 0.0
    trial: list[tuple[float, str, str]] = []
    retreats: list[tuple[float, str]] = []


@dataclass(frozen=True, slots=True)
class Job:
    """A run to do; names only, so that it travels cheaply."""

    cell: str
    entry: str
    seed: int
    size: str
    weights: tuple[float, float] = GRID[0]


class _Line(msgspec.Struct, frozen=True):
    key: str
    summary: Summary


def source() -> str:
    """Of all that decides how a run comes out."""
    return source_digest(_SOURCES)


def cell_named(name: str) -> Cell:
    """The cell of that name."""
    return next(cell for cell in CELLS if cell.name == name)


def entry_named(label: str) -> Entry:
    """The entry of that label."""
    return next(entry for entry in ENTRIES if entry.label == label)


def run(job: Job) -> Summary:
    """Do it."""
    cell, entry, size = cell_named(job.cell), entry_named(job.entry), SIZES[job.size]
    requests, fleet = cell.requests(size, job.seed), FLEETS[cell.pool][1]
    weights = {}
    if entry.tuned or entry.learns:  # whoever learns has the same heuristic to fall back on
        weights = {"imbalance_requests": job.weights[0], "sigmas": job.weights[1]}
    lesson = None
    if entry.learns:
        settings = entry.settings(size, cell)
        policy = Lodestar(**entry.params)  # type: ignore[arg-type]  # of the table
        model, freeze_at_s = None, None
        if entry.learns == "offline":
            other = cell.requests(size, TUNING_SEED + job.seed, tuning=True)
            model = trained_on(other, fleet, policy, settings, seed=job.seed)
            freeze_at_s = 0.0
        elif entry.learns == "frozen":
            freeze_at_s = cell.lasts_s(size) * _middle(cell) - 1.0
        learning = Learning(settings, freeze_at_s=freeze_at_s, model=model, on_trial=entry.learns == "tried")
        result, lesson = run_learned(requests, fleet, policy, learning, weights=weights, seed=job.seed)
    else:
        result = run_window(requests, fleet, create(entry.policy, entry.params), weights, seed=job.seed)
    return _summed(job, cell, cell.learned_s(size), result, lesson)


def _middle(cell: Cell) -> float:
    """Part of the time at which a load shifts: half of it, also where half of the requests come later."""
    return 0.5 if cell.shifts else 1.0


def tune(job: Job) -> float:
    """Mean TTFT of the heuristic with the job's weights on a load for tuning."""
    cell, entry = cell_named(job.cell), entry_named(job.entry)
    requests = cell.requests(SIZES[job.size], TUNING_SEED, tuning=True)
    weights = {"imbalance_requests": job.weights[0], "sigmas": job.weights[1]}
    policy = create(entry.policy, entry.params)
    result = run_window(requests, FLEETS[cell.pool][1], policy, weights, seed=TUNING_SEED)
    times = [request.ttft_ms for request in result.requests if request.ttft_ms is not None]
    return float(np.mean(times))


def _summed(job: Job, cell: Cell, learned_s: float, result: WindowResult, lesson: Lesson | None) -> Summary:
    due_s = np.array([request.intended_ms for request in result.requests]) / 1e3
    ttft = np.array([math.nan if r.ttft_ms is None else r.ttft_ms for r in result.requests])
    late = due_s >= learned_s
    bins = _binned(due_s, ttft)
    classes: dict[str, tuple[float, float]] = {}
    served = np.array([request.endpoint.rsplit("-", 1)[0] for request in result.requests])
    for name in sorted(set(served.tolist())):
        mask = late & (served == name)
        if mask.any():
            classes[name] = (float(mask.sum() / late.sum()), float(np.nanmean(ttft[mask])))
    common = Summary(
        cell=job.cell,
        entry=job.entry,
        seed=job.seed,
        requests=len(result.requests),
        failed=sum(not request.ok for request in result.requests),
        mean_ms=float(np.nanmean(ttft[late])),
        p99_ms=float(np.nanpercentile(ttft[late], 99)),
        whole_mean_ms=float(np.nanmean(ttft)),
        whole_p99_ms=float(np.nanpercentile(ttft, 99)),
        bins_ms=bins,
        error_ms=[],
        by_class=classes,
    )
    return common if lesson is None else _with_lesson(common, lesson, due_s, ttft, cell)


def _with_lesson(
    summary: Summary,
    lesson: Lesson,
    due_s: Floats,
    ttft: Floats,
    cell: Cell,
) -> Summary:
    # Decisions come in the order of requests: the loads are open.
    at_s, codes, predicted = (np.array(column) for column in zip(*lesson.chosen, strict=True))
    second = at_s >= at_s.max() * _middle(cell)
    strange = codes[second] == FALLBACKS.index("out-of-distribution")
    first = lesson.first_model_s
    return msgspec.structs.replace(
        summary,
        error_ms=_binned(due_s, np.abs(predicted - ttft)),
        first_model_s=None if math.isnan(first) else first,
        rounds=[f"{held.at_s:.0f} s: {held.told.verdict.reason}" for held in lesson.rounds],
        passed=lesson.passed,
        picks=dict(lesson.picks),
        foreign_share=lesson.foreign[1] / max(1, lesson.foreign[0]),
        shift_fallback_share=float(strange.mean()) if len(strange) else 0.0,
        trial=[
            (round(at_s, 1), after, reason) for at_s, before, after, reason in lesson.trial if after != before
        ],
        retreats=[(round(at_s, 1), reason) for at_s, reason in lesson.retreats],
    )


def _binned(due_s: Floats, values: Floats) -> list[float | None]:
    known = ~np.isnan(values)
    places = (due_s[known] / BIN_S).astype(int)
    count = int(due_s.max() / BIN_S) + 1
    sums, numbers = np.bincount(places, values[known], count), np.bincount(places, minlength=count)
    return [float(s / n) if n else None for s, n in zip(sums, numbers, strict=True)]


class Shelf:
    """Runs by job.

    Args:
        folder: where they are kept; made when it is not there.
        digest: of the source; ``""`` takes what is there whatever made it.
    """

    def __init__(self, folder: Path, digest: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file, self._digest = folder / "runs.jsonl", digest
        self._runs: dict[str, Summary] = {}
        for kept in lines(self._file, _Line):
            key = kept.key if digest else kept.key.split("|", 1)[1]
            self._runs[key] = kept.summary

    def of(self, job: Job) -> Summary | None:
        """The run, None when it was not done."""
        return self._runs.get(self._key(job))

    def work(self, jobs: Sequence[Job], *, workers: int, until_s: float, say: Callable[[str], None]) -> None:
        """Do what is missing, in order; begin nothing after ``until_s`` (`time.monotonic`)."""
        missing = [job for job in jobs if self.of(job) is None]
        done = len(jobs) - len(missing)
        for job, summary in in_order(run, missing, workers=workers, until_s=until_s):
            key, done = self._key(job), done + 1
            self._runs[key] = summary
            with adding(self._file) as file:
                file.write(msgspec.json.encode(_Line(f"{self._digest}|{_name(job)}", summary)) + b"\n")
            say(f"{done} of {len(jobs)}: {job.cell}, {job.entry}, seed {job.seed}: {summary.mean_ms:.0f} ms")

    def _key(self, job: Job) -> str:
        return f"{self._digest}|{_name(job)}" if self._digest else _name(job)


def _name(job: Job) -> str:
    return f"{job.size}|{job.cell}|{job.entry}|{job.seed}|{job.weights[0]:g},{job.weights[1]:g}"


def in_order(
    work: Callable[[Job], _R], jobs: Sequence[Job], *, workers: int, until_s: float
) -> Iterator[tuple[Job, _R]]:
    """Results as they come; jobs begin in order, and none after ``until_s``."""
    waiting, running = list(jobs), dict[Future[_R], Job]()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        while waiting or running:
            while waiting and len(running) < workers and time.monotonic() < until_s:
                job = waiting.pop(0)
                running[pool.submit(work, job)] = job
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                yield running.pop(future), future.result()
