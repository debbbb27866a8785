"""What runs say together: ratios to the heuristic, times to learn and to recover, shares.

Owns the arithmetic. A mean over seeds and cells is of logarithms of ratios; a ratio above 1 is in favour of
`LODESTAR`. Pure.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from bench.lodestar_cells import HEURISTIC, LODESTAR
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
        mean_ratio: of this entry's mean to `LODESTAR`'s; above 1 it is slower.
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
    mean_ratio: float
    p99_ratio: float
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
    worst_after_gate: float
    fallback_share: float
    shift_fallback_share: float
    explored_share: float
    foreign_share: float
    by_class: dict[str, tuple[float, float, float, float]]


class Result(msgspec.Struct, frozen=True):
    """Everything.

    Attributes:
        size: of learner and loads.
        seeds: that were asked for; each row says how many it has.
        weights: cell -> the heuristic's constants.
        rows: entries by cell.
        learned: by cell.
        mean_ratio: of the heuristic to `LODESTAR` over the steady cells.
        p99_ratio: likewise.
        runs: what they were made from.
    """

    size: str
    seeds: list[int]
    weights: dict[str, dict[str, tuple[float, float]]]
    rows: list[Row]
    learned: list[Learned]
    mean_ratio: float
    p99_ratio: float
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
    rows, learned = [], []
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
    steady = {cell.name for cell in cells if not cell.shifts}
    against = [row for row in rows if row.entry == HEURISTIC and row.cell in steady]
    return Result(
        size=size.name,
        seeds=list(seeds),
        weights={cell: dict(found) for cell, found in weights.items()},
        rows=rows,
        learned=learned,
        mean_ratio=_geometric([row.mean_ratio for row in against]),
        p99_ratio=_geometric([row.p99_ratio for row in against]),
        runs=list(runs),
    )


def _row(cell: str, label: str, mine: Sequence[Summary], ours: Sequence[Summary]) -> Row:
    def ratio(field: str) -> float:
        return _geometric([getattr(a, field) / getattr(b, field) for a, b in zip(mine, ours, strict=True)])

    return Row(
        cell=cell,
        entry=label,
        seeds=len(mine),
        mean_ms=_geometric([run.mean_ms for run in mine]),
        p99_ms=_geometric([run.p99_ms for run in mine]),
        mean_ratio=ratio("mean_ms"),
        p99_ratio=ratio("p99_ms"),
        whole_mean_ratio=ratio("whole_mean_ms"),
        whole_p99_ratio=ratio("whole_p99_ms"),
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
    begin = int(ours.first_model_s / BIN_S) + 1
    a, b = ([v for v in run.bins_ms[begin:] if v is not None] for run in (ours, theirs))
    return _mean(a) / _mean(b) if a and b else math.nan


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
