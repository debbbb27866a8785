"""What may be concluded about many policies on the same units: intervals, and who may be the best.

All of it is on logarithms, so that differences are ratios; lower is better. `seed_evidence` resamples
independent units (seeds, windows); `trace_evidence` resamples stretches of one recorded trace. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from epp.lab.compare.resample import Statistic, replicate, stationary

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from epp.lab.compare.resample import Counts

    Floats = NDArray[np.float64]

LEVEL = 0.95
REPLICATES = 4_000
TRACE_REPLICATES = 1_000
#: Fewer units than this carry no interval (their spread is a guess, and the tails of T explode); fewer than
#: `ENOUGH_UNITS` carry one that is only indicative.
MIN_UNITS = 8
ENOUGH_UNITS = 20


@dataclass(frozen=True, slots=True)
class Evidence:
    """Log figures of k policies with what is known of their chance.

    Attributes:
        units: seeds, windows or requests that it rests on.
        policies: k.
        against: policy ``i`` against each: the difference D (k), its standard error s (k) and replicates of
            T = (D* - D) / s* (replicates x k); zeros at ``i`` itself.
    """

    units: int
    policies: int
    against: Callable[[int], tuple[Floats, Floats, Floats]]

    def interval(self, a: int, b: int) -> tuple[float, float, float]:
        """Return the difference of two policies and the ends of its bootstrap-t interval."""
        d, s, t = self.against(a)
        tail = 50.0 * (1.0 - LEVEL)
        low, high = np.percentile(t[:, b], [tail, 100.0 - tail])
        return float(d[b]), float(d[b] - high * s[b]), float(d[b] - low * s[b])


def seed_evidence(logs: Floats, *, seed: int) -> Evidence:
    """Return the evidence of units x policies log figures; a studentised bootstrap over the units."""
    units = len(logs)
    drawn = np.random.default_rng(seed).integers(0, units, size=(REPLICATES, units))
    counts = np.zeros((REPLICATES, units))
    np.add.at(counts, (np.arange(REPLICATES)[:, None], drawn), 1.0)

    def against(i: int) -> tuple[Floats, Floats, Floats]:
        differences = logs[:, [i]] - logs
        d = differences.mean(axis=0)
        s = differences.std(axis=0, ddof=1) / units**0.5
        mean = counts @ differences / units
        square = counts @ (differences - d) ** 2 / units
        variance = np.maximum(0.0, square - (mean - d) ** 2) * units / (units - 1)
        s_star = np.sqrt(variance / units)
        # Resamples of one unit repeated have no spread to divide by and count as 0.
        usable = s_star > 1e-9 * np.maximum(s, 1e-12)
        return d, s, np.where(usable, (mean - d) / np.where(usable, s_star, 1.0), 0.0)

    return Evidence(units, logs.shape[1], against)


def trace_evidence(latencies: Sequence[Sequence[Floats]], statistic: Statistic, *, seed: int) -> Evidence:
    """Return the evidence of one recorded trace; the same stretches of time are drawn for every policy.

    The evidence covers chance within this trace and, when the trace was replayed under several seeds, the
    average over them; other days it does not cover.

    Args:
        latencies: per policy, one column of latencies a seed, all in trace order, NaN where there is none.
        statistic: what is compared.
        seed: of the resampling.
    """

    def logs(counts: Counts) -> Floats:
        return np.stack([_mean_log(statistic, runs, counts) for runs in latencies], axis=1)

    n = len(latencies[0][0])
    block = max(statistic.block(runs[0]) for runs in latencies)
    draws = replicate(logs, stationary(n, block, seed), TRACE_REPLICATES)
    means = logs(np.ones((1, n), dtype=np.int64))[0]

    def against(i: int) -> tuple[Floats, Floats, Floats]:
        d = means[i] - means
        spread = draws[:, [i]] - draws - d
        s = spread.std(axis=0, ddof=1)
        return d, s, np.where(s > 1e-12, spread / np.where(s > 1e-12, s, 1.0), 0.0)

    return Evidence(n, len(latencies), against)


def _mean_log(statistic: Statistic, runs: Sequence[Floats], counts: Counts) -> Floats:
    logs = []
    for values in runs:
        known = ~np.isnan(values)
        logs.append(np.log(statistic.weighted(values[known], counts[:, known])))
    return np.asarray(np.mean(logs, axis=0), dtype=float)


def mean_interval(values: Floats) -> tuple[float, float, float]:
    """Return the mean of independent units, three at least, and the ends of its interval.

    The bootstrap is studentised: with 5 to 30 units the plain percentile interval is too narrow.
    """
    return seed_evidence(np.column_stack([values, np.zeros(len(values))]), seed=0).interval(0, 1)


@dataclass(frozen=True, slots=True)
class BestInterval:
    """One policy against the best of the others.

    Attributes:
        ratio: its figure over the lowest of the others'.
        low: simultaneous lower end; 1 when it may be no better than another.
        high: simultaneous upper end: it is at most so much worse than the best; 1 when shown to be the best.
        possibly_best: whether the data allow that it is the best.
    """

    ratio: float
    low: float
    high: float
    possibly_best: bool


def compare_with_best(evidence: Evidence, among: Sequence[int]) -> list[BestInterval]:
    """Compare each policy with the best of the others.

    The method is Hsu's (1981, 1984), with unequal errors as in Edwards and Hsu (1983). With probability
    `LEVEL` all intervals hold at once. For each policy i, d_i is the critical value of one comparison of i
    with all others, so that whichever is truly the best, its own comparisons hold; the best is then among
    those not excluded, and every other is bounded against these. ``among`` are the positions to compare.
    """
    k = len(among)
    if k == 1:
        return [BestInterval(1.0, 1.0, 1.0, possibly_best=True)]
    d, s, critical = np.zeros((k, k)), np.zeros((k, k)), np.zeros(k)
    for i, policy in enumerate(among):
        others = [column for column in among if column != policy]
        difference, error, t = evidence.against(policy)
        d[i], s[i] = difference[among], error[among]
        critical[i] = max(0.0, float(np.percentile(t[:, others].max(axis=1), 100.0 * LEVEL)))
    possible = [all(d[i, j] <= critical[i] * s[i, j] + 1e-12 for j in range(k) if j != i) for i in range(k)]
    out = []
    for i in range(k):
        rest = [j for j in range(k) if j != i]
        low = min(0.0, max(d[i, j] - critical[i] * s[i, j] for j in rest))
        high = max([0.0, *(d[i, j] + critical[j] * s[i, j] for j in rest if possible[j])])
        with np.errstate(over="ignore"):  # rivals that differ in hardly any run leave the end open: infinite
            ratio, low, high = np.exp([max(d[i, j] for j in rest), low, high]).tolist()
        out.append(BestInterval(ratio, low, high, possible[i]))
    return out
