"""What came out: each cell with its intervals, and means over the cells against the opponents that count.

Owns the opponents and the arithmetic. Pure. Everything is a ratio of the candidate's 95th percentiles to an
opponent's, on logarithms, paired by seed; below 1 the candidate is lower. Intervals are of the seeds: of a
cell by `epp.replay.evidence`, of a mean over cells by the spread of the seeds' means (Student), because the
seeds, not the cells, are drawn. Few seeds say little of the spread of one cell; then it is taken as the same
in all cells (Student, with the degrees of freedom of all of them).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from bench.intervals import factor, quantile
from bench.policy_entries import CANDIDATE, LIVE, OURS, PAPER, PAPER_SCRAPED, YARDSTICK
from epp.replay.evidence import MIN_UNITS, SeedEvidence, ratio

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from bench.policy_entries import Entry
    from epp.replay.policy_cells import PolicyCell
    from epp.replay.simulate import Outcome

METRICS = ("ttft_ms", "e2e_ms")
#: The opponents, in the order of the tables: by what name, and which entries of a cell they are the best of.
BEST_PAPER = "best of the paper's baselines"
BEST_SCRAPED = "the same, by metrics of a second alone"
GORGO = "gorgo, published weights"
GORGO_TUNED = "gorgo, tuned"
BEST_LIVE = "best live baseline of the cell"
ORACLE = "oracle of the total"
#: What could be served with.
_REAL = {OURS, LIVE, PAPER, PAPER_SCRAPED}
_ORACLE = "greedy-oracle-total"
_SEED = 20_260_701


@dataclass(frozen=True, slots=True)
class CellRuns:
    """All runs of one cell: per entry, one outcome a seed; and the weights where they are not defaults."""

    cell: PolicyCell
    seeds: list[int]
    outcomes: dict[str, list[Outcome]]
    weights: dict[str, dict[str, float]]

    def logs(self, label: str, metric: str) -> NDArray[np.float64]:
        """Logarithms of the 95th percentile, by seed; infinite where nothing was answered."""
        values = [outcome.figures.value(metric, "p95") for outcome in self.outcomes[label]]
        return np.log([value if value > 0 else math.inf for value in values])

    def figure(self, label: str, metric: str) -> float:
        """Geometric mean over seeds."""
        return float(np.exp(self.logs(label, metric).mean()))


@dataclass(frozen=True, slots=True)
class Against:
    """The candidate over an opponent: per metric the ratio and its 95 % interval (NaN with too few seeds)."""

    rival: str
    ratios: Mapping[str, tuple[float, float, float]]


@dataclass(frozen=True, slots=True)
class Row:
    """One cell: figures by entry, and the candidate against each opponent."""

    name: str
    group: str
    against: Mapping[str, Against]


@dataclass(frozen=True, slots=True)
class Summary:
    """All cells.

    Attributes:
        rows: one a cell.
        means: the candidate over each opponent, and over each entry, mean over the cells.
        worst: per opponent and metric, the cell with the highest upper end, and that.
        places: per entry, how far it is behind the best live baseline of each cell, mean over cells.
        oracle: as ``means``, of the oracle of the total instead of the candidate; empty where it did not run.
    """

    rows: tuple[Row, ...]
    means: Mapping[str, Against]
    worst: Mapping[str, Mapping[str, tuple[str, float, float]]]
    places: Mapping[str, tuple[float, float]]
    oracle: Mapping[str, Against] = field(default_factory=dict)


def summarise(runs: Sequence[CellRuns], entries: Mapping[str, Entry], candidate: str = CANDIDATE) -> Summary:
    """Compare the candidate with everybody, cell by cell and over the cells."""
    rows = _pooled(runs, [_row(run, entries, candidate) for run in runs], candidate)
    names = [*dict.fromkeys(name for row in rows for name in row.against)]
    means = {name: _mean(runs, rows, name, candidate) for name in names}
    worst = {
        name: {metric: max(_uppers(rows, name, metric), key=lambda found: found[1]) for metric in METRICS}
        for name in names
    }
    oracle: Mapping[str, Against] = {}
    if candidate != _ORACLE and all(_ORACLE in run.outcomes for run in runs):
        oracle = summarise(runs, entries, _ORACLE).means
    return Summary(tuple(rows), means, worst, _places(runs, entries), oracle)


def _row(run: CellRuns, entries: Mapping[str, Entry], candidate: str) -> Row:
    against = {}
    for name, group in _opponents(run, entries).items():
        labels = [label for label in group if label in run.outcomes and label != candidate]
        if labels:
            rival = min(labels, key=lambda label: _both(run, label))
            against[name] = Against(
                rival, {metric: _ratio(run, candidate, rival, metric) for metric in METRICS}
            )
    return Row(run.cell.name, run.cell.group, against)


def _opponents(run: CellRuns, entries: Mapping[str, Entry]) -> dict[str, list[str]]:
    """By name, the entries that the opponent is the best of; then every entry for itself."""

    def of(*groups: str) -> list[str]:
        return [label for label in run.outcomes if entries[label].group in groups]

    named = {
        BEST_PAPER: of(PAPER),
        BEST_SCRAPED: [label for label in of(PAPER, PAPER_SCRAPED) if entries[label].scrape_s is None],
        GORGO: ["gorgo"],
        GORGO_TUNED: ["gorgo tuned"],
        BEST_LIVE: of(LIVE),
        ORACLE: [_ORACLE],
    }
    return named | {label: [label] for label in run.outcomes}


def _both(run: CellRuns, label: str) -> float:
    """What the best single policy of a cell is lowest in: both percentiles alike."""
    return sum(float(run.logs(label, metric).mean()) for metric in METRICS)


def _ratio(run: CellRuns, candidate: str, rival: str, metric: str) -> tuple[float, float, float]:
    logs = np.stack([run.logs(candidate, metric), run.logs(rival, metric)], axis=1)
    if len(logs) < MIN_UNITS or not np.isfinite(logs).all():
        return math.exp(float((logs[:, 0] - logs[:, 1]).mean())), math.nan, math.nan
    found = ratio(SeedEvidence(logs, seed=_SEED), 0, 1)
    return found.ratio, found.low, found.high


def _pooled(runs: Sequence[CellRuns], rows: Sequence[Row], candidate: str) -> list[Row]:
    """The rows, with intervals from the spread in all cells where a cell has none of its own."""
    halves: dict[tuple[str, str], float] = {}
    for name in dict.fromkeys(name for row in rows for name in row.against):
        for metric in METRICS:
            found = _differences(runs, rows, name, metric, candidate)
            freedom = sum(len(values) - 1 for values in found)
            if freedom:
                spread = sum(float(((values - values.mean()) ** 2).sum()) for values in found)
                halves[name, metric] = quantile(freedom) * math.sqrt(spread / freedom)

    def interval(run: CellRuns, name: str, metric: str, against: Against) -> tuple[float, float, float]:
        point, low, high = against.ratios[metric]
        if math.isnan(low) and (name, metric) in halves:
            half = halves[name, metric] / math.sqrt(len(run.seeds))
            return point, point * math.exp(-half), point * math.exp(half)
        return point, low, high

    out = []
    for run, row in zip(runs, rows, strict=True):
        against = {
            name: replace(one, ratios={metric: interval(run, name, metric, one) for metric in METRICS})
            for name, one in row.against.items()
        }
        out.append(replace(row, against=against))
    return out


def _differences(
    runs: Sequence[CellRuns], rows: Sequence[Row], name: str, metric: str, candidate: str
) -> list[NDArray[np.float64]]:
    """Per cell that knows the opponent: the candidate's logarithms less its rival's, by seed."""
    return [
        run.logs(candidate, metric) - run.logs(row.against[name].rival, metric)
        for run, row in zip(runs, rows, strict=True)
        if name in row.against
    ]


def _mean(runs: Sequence[CellRuns], rows: Sequence[Row], name: str, candidate: str) -> Against:
    ratios = {}
    for metric in METRICS:
        by_cell = _differences(runs, rows, name, metric, candidate)
        seeds = min(len(values) for values in by_cell)
        ratios[metric] = factor(np.mean([values[:seeds] for values in by_cell], axis=0))
    return Against(name, ratios)


def _uppers(rows: Sequence[Row], name: str, metric: str) -> list[tuple[str, float, float]]:
    """(cell, upper end or, without an interval, the ratio, ratio)."""
    out = []
    for row in rows:
        if name in row.against:
            point, _, high = row.against[name].ratios[metric]
            out.append((row.name, point if math.isnan(high) else high, point))
    return out


def _places(runs: Sequence[CellRuns], entries: Mapping[str, Entry]) -> dict[str, tuple[float, float]]:
    """Mean over cells of the logarithm by which each entry is behind the best real one of each metric."""
    out: dict[str, tuple[float, float]] = {}
    for label in entries:
        gaps: dict[str, list[float]] = {metric: [] for metric in METRICS}
        for run in runs:
            if label not in run.outcomes:
                continue
            real = [other for other in run.outcomes if entries[other].group in _REAL]
            for metric in METRICS if real else ():
                best = min(float(run.logs(other, metric).mean()) for other in real)
                gaps[metric].append(float(run.logs(label, metric).mean()) - best)
        if gaps[METRICS[0]]:
            ttft, e2e = (math.exp(float(np.mean(gaps[metric]))) for metric in METRICS)
            out[label] = (ttft, e2e)
    key = {label: sum(map(math.log, gap)) for label, gap in out.items()}
    return {
        label: out[label]
        for label in sorted(out, key=lambda label: (entries[label].group == YARDSTICK, key[label]))
    }
