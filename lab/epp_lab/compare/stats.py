"""Percentiles, the bootstrap of dependent data, and what may be concluded about many policies. Pure.

A resample is a row of counts: how often each value is in it; randomness comes from explicit seeds. Evidence
is on logarithms, so that differences are ratios; lower is better. `seed_evidence` resamples independent units
(seeds, windows), `trace_evidence` stretches of one recorded trace.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]
Resampler = Callable[[int], Counts]


def percentile(values: Sequence[float] | NDArray[np.float64], q: float) -> float:
    """Return the q-th percentile (0..100), NaN when there are no values.

    Linear between order statistics: position (n - 1) q / 100 of the sorted values (Hyndman-Fan type 7).
    """
    if len(values) == 0:
        return float("nan")
    return float(np.percentile(np.asarray(values, dtype=float), q))


_MIN_SERIES = 8  # a shorter series says nothing about its own correlation
_BATCH = 200  # replicates at once: bounds memory at _BATCH x n numbers


@dataclass(frozen=True, slots=True)
class Statistic:
    """What is compared: the mean, or a percentile. ``q`` is None for the mean."""

    q: float | None = None

    @property
    def label(self) -> str:
        """``mean`` or ``p95``."""
        return "mean" if self.q is None else f"p{self.q:g}"

    def weighted(self, values: Floats, counts: Counts) -> Floats:
        """Return the statistic of each resample: of the values repeated as often as a row of counts says."""
        if self.q is None:
            return np.asarray(counts @ values / counts.sum(axis=1), dtype=float)
        order = np.argsort(values, kind="stable")
        ranked, upto = values[order], np.cumsum(counts[:, order], axis=1)
        position = (upto[:, -1] - 1) * (self.q / 100.0)
        low = np.floor(position).astype(np.int64)
        high = np.minimum(low + 1, upto[:, -1] - 1)
        at_low = ranked[(upto > low[:, None]).argmax(axis=1)]
        at_high = ranked[(upto > high[:, None]).argmax(axis=1)]
        return np.asarray(at_low + (at_high - at_low) * (position - low), dtype=float)

    def block(self, values: Floats) -> float:
        """Return the mean block for a series: of the values, or of who is above the percentile."""
        known = values[~np.isnan(values)]
        if self.q is None or not len(known):
            return politis_white_block(known)
        return politis_white_block((known > np.percentile(known, self.q)).astype(float))


def by_cluster(keys: Sequence[str], seed: int) -> Resampler:
    """Resample whole clusters (sessions): as many as there are, with replacement."""
    names, member = np.unique(np.array(keys), return_inverse=True)
    rng = np.random.default_rng(seed)

    def resample(replicates: int) -> Counts:
        drawn = rng.multinomial(len(names), np.full(len(names), 1.0 / len(names)), size=replicates)
        return np.asarray(drawn[:, member], dtype=np.int64)

    return resample


def stationary(n: int, mean_block: float, seed: int) -> Resampler:
    """Resample n values in time order by the stationary bootstrap (Politis and Romano 1994).

    Blocks of geometric length with the given mean start anywhere and wrap around the end.
    """
    rng = np.random.default_rng(seed)
    restart = min(1.0, 1.0 / max(1.0, mean_block))

    def resample(replicates: int) -> Counts:
        starts = rng.random((replicates, n)) < restart
        starts[:, 0] = True
        where = np.where(starts, np.arange(n), 0)
        last_start = np.maximum.accumulate(where, axis=1)
        origin = np.take_along_axis(rng.integers(0, n, size=(replicates, n)), last_start, axis=1)
        index = (origin + np.arange(n) - last_start) % n
        flat = index + n * np.arange(replicates)[:, None]
        return np.bincount(flat.ravel(), minlength=replicates * n).reshape(replicates, n).astype(np.int64)

    return resample


def politis_white_block(series: Floats) -> float:
    """Return the mean block length for the stationary bootstrap of a series, from its own autocorrelation.

    Politis and White (2004) with the correction of Patton, Politis and White (2009): flat-top window up to
    twice the lag after which correlations stay insignificant; at least 1, at most min(3 sqrt n, n / 3).
    """
    n = len(series)
    if n < _MIN_SERIES or float(series.std()) == 0.0:
        return 1.0
    centred = series - series.mean()
    quiet = max(5, int(np.ceil(np.sqrt(np.log10(n)))))
    longest = min(n - 1, int(np.ceil(np.sqrt(n))) + quiet)
    covariance = np.array([float(centred[: n - k] @ centred[k:]) / n for k in range(longest + 1)])
    significant = np.abs(covariance / covariance[0]) >= 2.0 * np.sqrt(np.log10(n) / n)
    lag = next(
        (k for k in range(longest - quiet + 1) if not significant[k + 1 : k + 1 + quiet].any()), longest
    )
    window = min(2 * max(lag, 1), longest)
    lags = np.arange(-window, window + 1)
    taper = np.clip(2.0 * (1.0 - np.abs(lags) / window), 0.0, 1.0)
    terms = taper * covariance[np.abs(lags)]
    bias, spectrum = float((np.abs(lags) * terms).sum()), float(terms.sum())
    if spectrum <= 0.0 or bias == 0.0:
        return 1.0
    block = (bias**2 / spectrum**2) ** (1 / 3) * n ** (1 / 3)
    return float(min(max(1.0, block), np.ceil(min(3.0 * np.sqrt(n), n / 3.0))))


def replicate(statistic: Callable[[Counts], Floats], resample: Resampler, replicates: int) -> Floats:
    """Return the statistic of so many resamples, one row or number each."""
    sizes = [min(_BATCH, replicates - first) for first in range(0, replicates, _BATCH)]
    return np.concatenate([statistic(resample(size)) for size in sizes])


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
        against: policy ``i`` against each: the difference D (k), its standard error s (k) and replicates of
            T = (D* - D) / s* (replicates x k); zeros at ``i`` itself.
    """

    units: int
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

    return Evidence(units, against)


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

    return Evidence(n, against)


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
