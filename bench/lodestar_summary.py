"""What runs say together: ratios to the heuristic, times to learn and to recover, shares, trials.

Owns the arithmetic. A mean over seeds and cells is of logarithms of ratios, its interval over seeds; a ratio
above 1 is in favour of `LODESTAR`. Pure.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from bench.intervals import factor
from bench.lodestar_cells import HEURISTIC, LODESTAR, TRIED
from bench.lodestar_runs import BIN_S, Summary

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bench.lodestar_cells import Cell, Size

#: Settled: within this factor of what the last third of the run, or of its half, came to.
_SETTLED = 1.1
#: Windows whose mean must have settled: one alone may be luck.
_WINDOWS = 3


class Row(msgspec.Struct, frozen=True):
    """One entry in one cell, over seeds.

    Attributes:
        cell: name.
        entry: label.
        seeds: run.
        mean_ms: geometric mean of mean TTFTs after learning.
        p99_ms: of 99th percentiles.
        mean_ratio: of this entry's mean to `LODESTAR`'s, and its interval; above 1 it is slower.
        p99_ratio: likewise.
        whole_mean_ratio: of whole runs, cold start included.
        whole_p99_ratio: likewise.
        failed: requests, over all seeds.
    """

    cell: str
    entry: str
    seeds: int
    mean_ms: float
    p99_ms: float
    mean_ratio: tuple[float, float, float]
    p99_ratio: tuple[float, float, float]
    whole_mean_ratio: float
    whole_p99_ratio: float
    failed: int


class Learned(msgspec.Struct, frozen=True):
    """How `LODESTAR` learned in one cell; means over seeds, NaN (null) where nothing is to be told.

    Attributes:
        cell: name.
        first_model_s: until the first model decided.
        settled_s: until its TTFT had come within 10 % of where it stayed.
        recovered_s: likewise after the shift, from the shift on.
        unlearned_recovered_s: the same of the heuristic, which has only caches to fill.
        rounds: trainings.
        passed: share of them that the gate let through.
        retreats: to the heuristic, by the guard.
        worst_after_gate: the worst seed's mean TTFT after the first promotion, to the heuristic's of the same
            time; above 1 it is slower.
        fallback_share: decisions that fell back because an endpoint was unlike the training.
        shift_fallback_share: the same of the second half.
        explored_share: decisions drawn at random.
        foreign_share: judged endpoints that were unlike the training.
        by_class: engine class -> share of requests and mean TTFT, of this policy and of the heuristic.
    """

    cell: str
    first_model_s: float
    settled_s: float
    recovered_s: float
    unlearned_recovered_s: float
    rounds: float
    passed: float
    retreats: float
    worst_after_gate: float
    fallback_share: float
    shift_fallback_share: float
    explored_share: float
    foreign_share: float
    by_class: dict[str, tuple[float, float, float, float]]


class Trial(msgspec.Struct, frozen=True):
    """What became of the learned policy on trial in one cell under one seed; ratios above 1 are slower.

    Attributes:
        cell: name.
        seed: of it.
        story: phases, in words.
        promoted: whether the machine put it in force, and nothing took it back.
        began_s: when its first stage began; NaN for never.
        ended_s: when it was promoted, or given up; NaN for neither.
        untried: mean TTFT of the same policy without a trial since its first model, to the heuristic's.
        during: of the policy on trial, from its beginning to its end, to the heuristic's of the same time.
        after: likewise from its end on.
        whole: likewise of everything.
    """

    cell: str
    seed: int
    story: list[str]
    promoted: bool
    began_s: float
    ended_s: float
    untried: float
    during: float
    after: float
    whole: float


class Result(msgspec.Struct, frozen=True):
    """Everything.

    Attributes:
        size: of learner and loads.
        seeds: that were asked for; each row says how many it has.
        weights: cell -> the heuristic's constants.
        rows: entries by cell.
        learned: by cell.
        trials: of the long cells.
        mean_ratio: of the heuristic to `LODESTAR` over the steady cells, and its interval.
        p99_ratio: likewise.
        runs: what they were made from.
    """

    size: str
    seeds: list[int]
    weights: dict[str, dict[str, tuple[float, float]]]
    rows: list[Row]
    learned: list[Learned]
    trials: list[Trial]
    mean_ratio: tuple[float, float, float]
    p99_ratio: tuple[float, float, float]
    runs: list[Summary]


def summarise(
    cells: Sequence[Cell],
    size: Size,
    seeds: Sequence[int],
    weights: Mapping[str, Mapping[str, tuple[float, float]]],
    runs: Sequence[Summary],
) -> Result:
    """Sum up. An entry counts in a cell under the seeds that both it and `LODESTAR` ran there."""
    by = {(run.cell, run.entry): dict[int, Summary]() for run in runs}
    for run in runs:
        by[run.cell, run.entry][run.seed] = run
    rows, learned, trials = [], [], []
    for cell in cells:
        ours = by.get((cell.name, LODESTAR), {})
        for label in dict.fromkeys(run.entry for run in runs if run.cell == cell.name):
            mine = by[cell.name, label]
            both = [seed for seed in seeds if seed in mine and seed in ours]
            if both:
                rows.append(_row(cell.name, label, [mine[s] for s in both], [ours[s] for s in both]))
        theirs = by.get((cell.name, HEURISTIC), {})
        pairs = [(ours[seed], theirs[seed]) for seed in seeds if seed in ours and seed in theirs]
        if pairs:
            learned.append(_learned(cell, size, pairs))
        tried = by.get((cell.name, TRIED), {})
        trials += [
            _trial(tried[seed], ours.get(seed), theirs[seed])
            for seed in seeds
            if seed in tried and seed in theirs
        ]
    return Result(
        size=size.name,
        seeds=list(seeds),
        weights={cell: dict(found) for cell, found in weights.items()},
        rows=rows,
        learned=learned,
        trials=trials,
        mean_ratio=_over_steady(cells, by, "mean_ms"),
        p99_ratio=_over_steady(cells, by, "p99_ms"),
        runs=list(runs),
    )


def _over_steady(
    cells: Sequence[Cell], by: Mapping[tuple[str, str], Mapping[int, Summary]], field: str
) -> tuple[float, float, float]:
    """The heuristic to `LODESTAR`, cells of equal weight; the interval over seeds that ran all of them."""
    logs: dict[str, dict[int, float]] = {}
    for cell in cells:
        if cell.shifts or cell.long:
            continue
        ours, theirs = (by.get((cell.name, label), {}) for label in (LODESTAR, HEURISTIC))
        both = {
            seed: math.log(_of(theirs[seed], field) / _of(ours[seed], field))
            for seed in ours
            if seed in theirs
        }
        if both:
            logs[cell.name] = both
    if not logs:
        return math.nan, math.nan, math.nan
    whole = [seed for seed in set().union(*logs.values()) if all(seed in found for found in logs.values())]
    if len(whole) > 1:
        return factor([float(np.mean([found[seed] for found in logs.values()])) for seed in sorted(whole)])
    point = float(np.mean([np.mean(list(found.values())) for found in logs.values()]))
    return math.exp(point), math.nan, math.nan


def _of(run: Summary, field: str) -> float:
    return float(getattr(run, field))


def _row(cell: str, label: str, mine: Sequence[Summary], ours: Sequence[Summary]) -> Row:
    def ratio(field: str) -> tuple[float, float, float]:
        return factor([math.log(_of(a, field) / _of(b, field)) for a, b in zip(mine, ours, strict=True)])

    return Row(
        cell=cell,
        entry=label,
        seeds=len(mine),
        mean_ms=_geometric([run.mean_ms for run in mine]),
        p99_ms=_geometric([run.p99_ms for run in mine]),
        mean_ratio=ratio("mean_ms"),
        p99_ratio=ratio("p99_ms"),
        whole_mean_ratio=ratio("whole_mean_ms")[0],
        whole_p99_ratio=ratio("whole_p99_ms")[0],
        failed=sum(run.failed for run in mine),
    )


def _learned(cell: Cell, size: Size, pairs: Sequence[tuple[Summary, Summary]]) -> Learned:
    ours = [run for run, _ in pairs]
    half_s = cell.lasts_s(size) / 2.0 if cell.shifts else 0.0
    end_s = half_s or cell.lasts_s(size)
    decisions = [sum(run.picks.values()) for run in ours]
    learned = [total - run.picks.get("no-model", 0) for run, total in zip(ours, decisions, strict=True)]

    def share(word: str) -> float:
        return _mean([run.picks.get(word, 0) / max(1, n) for run, n in zip(ours, learned, strict=True)])

    recovered = [settled_s(run.bins_ms, half_s, cell.lasts_s(size)) - half_s for run in ours]
    unlearned = [settled_s(run.bins_ms, half_s, cell.lasts_s(size)) - half_s for _, run in pairs]
    return Learned(
        cell=cell.name,
        first_model_s=_mean([math.nan if r.first_model_s is None else r.first_model_s for r in ours]),
        settled_s=_mean([settled_s(run.bins_ms, run.first_model_s or 0.0, end_s) for run in ours]),
        recovered_s=_mean(recovered) if cell.shifts else math.nan,
        unlearned_recovered_s=_mean(unlearned) if cell.shifts else math.nan,
        rounds=_mean([len(run.rounds) for run in ours]),
        passed=_mean([run.passed / max(1, len(run.rounds)) for run in ours]),
        retreats=_mean([float(len(run.retreats)) for run in ours]),
        worst_after_gate=max((after_gate(a, b) for a, b in pairs), default=math.nan),
        fallback_share=share("out-of-distribution"),
        shift_fallback_share=_mean([run.shift_fallback_share for run in ours]) if cell.shifts else math.nan,
        explored_share=share("explored"),
        foreign_share=_mean([run.foreign_share for run in ours]),
        by_class=_classes(pairs),
    )


def after_gate(ours: Summary, theirs: Summary) -> float:
    """Ratio of mean TTFTs since the window in which the first model came into force; NaN without one."""
    if ours.first_model_s is None:
        return math.nan
    return between(ours, theirs, ours.first_model_s)


def between(ours: Summary, theirs: Summary, from_s: float, to_s: float = math.inf) -> float:
    """Ratio of mean TTFTs of the whole windows of a time; NaN where there is none."""
    begin = int(from_s / BIN_S) + 1 if from_s > 0.0 else 0
    end = None if math.isinf(to_s) else int(to_s / BIN_S)
    a, b = ([v for v in run.bins_ms[begin:end] if v is not None] for run in (ours, theirs))
    return _mean(a) / _mean(b) if a and b else math.nan


#: Phases in which the learned policy is not on trial any more, or not yet.
_IDLE = ("baseline", "search", "frozen")


def _trial(tried: Summary, untried: Summary | None, theirs: Summary) -> Trial:
    began_s = ended_s = math.nan
    promoted = False
    for at_s, phase, _ in tried.trial:
        if phase == "screen" and math.isnan(began_s):
            began_s = at_s
        if math.isnan(began_s):
            continue
        promoted = phase == "probation" or (promoted and phase != "baseline")
        if math.isnan(ended_s) and (phase == "probation" or phase in _IDLE):
            ended_s = at_s
    promoted = promoted or any(phase == "baseline" and " stays: " in why for _, phase, why in tried.trial)
    over = not math.isnan(ended_s)
    return Trial(
        cell=tried.cell,
        seed=tried.seed,
        story=[f"{at_s:,.0f} s {phase}: {why}" for at_s, phase, why in tried.trial],
        promoted=promoted,
        began_s=began_s,
        ended_s=ended_s,
        untried=math.nan if untried is None else after_gate(untried, theirs),
        during=math.nan
        if math.isnan(began_s)
        else between(tried, theirs, began_s, ended_s if over else math.inf),
        after=between(tried, theirs, ended_s) if over else math.nan,
        whole=between(tried, theirs, 0.0),
    )


def settled_s(bins_ms: Sequence[float | None], from_s: float, to_s: float) -> float:
    """End of the first windows after ``from_s`` that are about as good as the last third before ``to_s``."""
    first, last = int(from_s / BIN_S), min(len(bins_ms), int(to_s / BIN_S))
    values = np.array([math.nan if v is None else v for v in bins_ms[first:last]], float)
    if len(values) < 2 * _WINDOWS:
        return math.nan
    level = float(np.nanmean(values[-(len(values) // 3) :])) * _SETTLED
    for number in range(len(values) - _WINDOWS + 1):
        if float(np.nanmean(values[number : number + _WINDOWS])) <= level:
            return (first + number + 1) * BIN_S
    return math.nan


def _classes(pairs: Sequence[tuple[Summary, Summary]]) -> dict[str, tuple[float, float, float, float]]:
    out = {}
    for name in sorted({name for pair in pairs for run in pair for name in run.by_class}):
        cells = [
            [run.by_class.get(name, (0.0, math.nan)) for run in side] for side in zip(*pairs, strict=True)
        ]
        mine, theirs = ((_mean([s for s, _ in side]), _mean([ms for _, ms in side])) for side in cells)
        out[name] = (*mine, *theirs)
    return out


def _geometric(values: Sequence[float]) -> float:
    return float(np.exp(np.mean(np.log(values)))) if values else math.nan


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan
