"""What may be concluded about many policies on the same units: intervals, and who may be the best.

Owns: the studentised bootstrap over units (seeds, windows), the stationary bootstrap within one recorded
trace, Hsu's multiple comparisons with the best, and the bound against the best of a group. Pure; all of it on
logarithms, so that differences are ratios; lower is better.

Both kinds of evidence offer the same: for two policies their difference D, its standard error s, and
replicates of T = (D* - D) / s*. Everything else is built on that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from epp.lab.compare.resample import Statistic, politis_white_block, stationary

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

LEVEL = 0.95
REPLICATES = 4_000
TRACE_REPLICATES = 1_000
#: Fewer units than this carry no interval (their spread is a guess, and the tails of T explode); fewer than
#: `ENOUGH_UNITS` carry one that is only indicative.
MIN_UNITS = 8
ENOUGH_UNITS = 20
_BATCH = 100


class Evidence(Protocol):
    """Log figures of k policies with what is known of their chance."""

    @property
    def units(self) -> int:
        """Seeds, windows or requests that it rests on."""
        ...

    @property
    def means(self) -> Floats:
        """The k log figures."""
        ...

    def against(self, i: int) -> tuple[Floats, Floats, Floats]:
        """Policy ``i`` against each: D (k), s (k) and T (replicates x k); zeros at ``i`` itself."""
        ...


class SeedEvidence:
    """Units are independent, every policy ran on each: one row a seed or window.

    Args:
        logs: units x policies, log figures.
        seed: of the resampling; one set of resamples serves all pairs.
        replicates: how many.
    """

    def __init__(self, logs: Floats, *, seed: int, replicates: int = REPLICATES) -> None:
        self._logs = np.asarray(logs, dtype=float)
        self.units = len(self._logs)
        self.means: Floats = self._logs.mean(axis=0)
        rng = np.random.default_rng(seed)
        drawn = rng.integers(0, self.units, size=(replicates, self.units))
        self._counts = np.zeros((replicates, self.units))
        np.add.at(self._counts, (np.arange(replicates)[:, None], drawn), 1.0)

    def against(self, i: int) -> tuple[Floats, Floats, Floats]:
        """See `Evidence`. Resamples of one unit repeated have no spread to divide by and count as 0."""
        differences = self._logs[:, [i]] - self._logs
        d = differences.mean(axis=0)
        s = differences.std(axis=0, ddof=1) / self.units**0.5
        mean = self._counts @ differences / self.units
        square = self._counts @ (differences - d) ** 2 / self.units
        variance = np.maximum(0.0, square - (mean - d) ** 2) * self.units / (self.units - 1)
        s_star = np.sqrt(variance / self.units)
        usable = s_star > 1e-9 * np.maximum(s, 1e-12)
        t = np.where(usable, (mean - d) / np.where(usable, s_star, 1.0), 0.0)
        return d, s, t


class TraceEvidence:
    """One recorded trace: stretches of time are drawn again, the same ones for every policy.

    What it covers is chance within this trace and, when the trace was replayed under several seeds, the
    average over them; other days it does not cover.

    Args:
        latencies: per policy, one column of latencies a seed, all in trace order, NaN where there is none.
        statistic: what is compared.
        seed: of the resampling.
        replicates: how many.
    """

    def __init__(
        self,
        latencies: Sequence[Sequence[Floats]],
        statistic: Statistic,
        *,
        seed: int,
        replicates: int = TRACE_REPLICATES,
    ) -> None:
        n = len(latencies[0][0])
        self.units = n
        blocks = [politis_white_block(_influence(statistic, runs[0])) for runs in latencies]
        self.block = max(blocks)
        resample = stationary(n, self.block, seed)
        batches = []
        for first in range(0, replicates, _BATCH):
            counts = resample(min(_BATCH, replicates - first))
            batches.append(np.stack([_mean_log(statistic, runs, counts) for runs in latencies], axis=1))
        self._draws: Floats = np.concatenate(batches)
        everything = np.ones((1, n), dtype=np.int64)
        self.means: Floats = np.array([_mean_log(statistic, runs, everything)[0] for runs in latencies])

    def against(self, i: int) -> tuple[Floats, Floats, Floats]:
        """See `Evidence`; the error of a difference is its spread over resamples."""
        d = self.means[i] - self.means
        draws = self._draws[:, [i]] - self._draws - d
        s = draws.std(axis=0, ddof=1)
        t = np.where(s > 1e-12, draws / np.where(s > 1e-12, s, 1.0), 0.0)
        return d, s, t


def _influence(statistic: Statistic, values: Floats) -> Floats:
    """The series whose correlation in time matters: the values, or who is above the percentile."""
    known = values[~np.isnan(values)]
    if statistic.q is None or not len(known):
        return known
    return (known > np.percentile(known, statistic.q)).astype(float)


def _mean_log(statistic: Statistic, runs: Sequence[Floats], counts: NDArray[np.int64]) -> Floats:
    logs = []
    for values in runs:
        known = ~np.isnan(values)
        logs.append(np.log(statistic.weighted(values[known], counts[:, known])))
    return np.asarray(np.mean(logs, axis=0), dtype=float)


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio with its two-sided interval; NaN where the evidence carries none."""

    ratio: float
    low: float
    high: float


def ratio(evidence: Evidence, a: int, b: int, *, level: float = LEVEL) -> Ratio:
    """Policy ``a`` over policy ``b``, bootstrap-t interval."""
    d, s, t = evidence.against(a)
    tail = 50.0 * (1.0 - level)
    low, high = np.percentile(t[:, b], [tail, 100.0 - tail])
    return Ratio(*(float(np.exp(v)) for v in (d[b], d[b] - high * s[b], d[b] - low * s[b])))


@dataclass(frozen=True, slots=True)
class BestInterval:
    """One policy against the best of the others.

    Attributes:
        ratio: its figure over the lowest of the others'.
        low: simultaneous lower end; 1 when it may be no better than another.
        high: simultaneous upper end: it is at most so much worse than the best; 1 when shown to be the best.
        possible: whether the data allow that it is the best.
    """

    ratio: float
    low: float
    high: float
    possible: bool


def compare_with_best(
    evidence: Evidence, *, among: Sequence[int] | None = None, level: float = LEVEL
) -> list[BestInterval]:
    """Multiple comparisons with the best (Hsu 1981, 1984; unequal errors as in Edwards and Hsu 1983).

    With probability ``level`` all intervals hold at once. For each policy i, d_i is the critical value of one
    comparison of i with all others, so that whichever is truly the best, its own comparisons hold; the best
    is then among those not excluded, and every other is bounded against these. ``among`` are the positions
    to compare, None for all.
    """
    chosen = list(range(len(evidence.means))) if among is None else list(among)
    k = len(chosen)
    if k == 1:
        return [BestInterval(1.0, 1.0, 1.0, possible=True)]
    d, s, critical = np.zeros((k, k)), np.zeros((k, k)), np.zeros(k)
    for i in range(k):
        others = [column for position, column in enumerate(chosen) if position != i]
        difference, error, t = evidence.against(chosen[i])
        d[i], s[i] = difference[chosen], error[chosen]
        critical[i] = max(0.0, float(np.percentile(t[:, others].max(axis=1), 100.0 * level)))
    possible = [all(d[i, j] <= critical[i] * s[i, j] + 1e-12 for j in range(k) if j != i) for i in range(k)]
    out = []
    for i in range(k):
        others_i = [j for j in range(k) if j != i]
        rivals = [j for j in others_i if possible[j]]
        low = min(0.0, max(d[i, j] - critical[i] * s[i, j] for j in others_i))
        high = max((d[i, j] + critical[j] * s[i, j] for j in rivals), default=0.0)
        point = max(d[i, j] for j in others_i)
        with np.errstate(over="ignore"):  # rivals that differ in hardly any run leave the end open: infinite
            found, lower, upper = (float(np.exp(end)) for end in (point, low, max(0.0, high)))
        out.append(BestInterval(found, lower, upper, possible[i]))
    return out


@dataclass(frozen=True, slots=True)
class Bound:
    """One policy against the best of a group.

    Attributes:
        ratio: its figure over the lowest of the group's.
        upper: with probability ``level`` it is at most so much of the best of the group's.
        rival: position of the lowest of the group.
    """

    ratio: float
    upper: float
    rival: int


def bound_against_best(evidence: Evidence, a: int, group: Sequence[int], *, level: float = LEVEL) -> Bound:
    """Upper bound of policy ``a`` over the best of a group, whichever that truly is.

    The highest of the one-sided bounds against each: one of them is the true best's, and that one holds with
    probability ``level`` (intersection-union), so no correction for the size of the group is needed. Below 1
    it is better than each of them; below 1 + margin it is not inferior to any by more than the margin.
    """
    d, s, t = evidence.against(a)
    upper = max(d[j] - float(np.percentile(t[:, j], 100.0 * (1.0 - level))) * s[j] for j in group)
    rival = max(group, key=lambda j: float(d[j]))
    return Bound(float(np.exp(d[rival])), float(np.exp(upper)), rival)
