"""Bootstrap for dependent data.

Owns: how samples are drawn again - whole sessions, or stretches of time - and statistics of what was drawn.
Pure; numpy only; randomness from explicit seeds. A resample is a row of counts: how often each value is in
it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Counts = NDArray[np.int64]
    Resampler = Callable[[int], Counts]

_MIN_SERIES = 8  # a shorter series says nothing about its own correlation
_BATCH = 200  # replicates at once: bounds memory at _BATCH x n numbers


# ---- statistics of resampled samples -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Statistic:
    """What is compared: the mean, or a percentile. ``q`` is None for the mean."""

    q: float | None = None

    @property
    def label(self) -> str:
        """``mean`` or ``p95``."""
        return "mean" if self.q is None else f"p{self.q:g}"

    def weighted(self, values: Floats, counts: Counts) -> Floats:
        """The statistic of each resampled sample.

        Args:
            values: n values.
            counts: one row a replicate: how often each value is in it (R x n, no row all zero).

        Returns:
            R numbers, each equal to the statistic of the values repeated ``counts`` times.
        """
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


# ---- resampling ----------------------------------------------------------------------------------------


def by_cluster(keys: Sequence[str], seed: int) -> Resampler:
    """Resample whole clusters (sessions): as many as there are, with replacement."""
    names = dict.fromkeys(keys)
    number = {key: position for position, key in enumerate(names)}
    member = np.array([number[key] for key in keys], dtype=np.int64)
    rng = np.random.default_rng(seed)

    def resample(replicates: int) -> Counts:
        drawn = rng.multinomial(len(names), np.full(len(names), 1.0 / len(names)), size=replicates)
        return np.asarray(drawn[:, member], dtype=np.int64)

    return resample


def stationary(n: int, mean_block: float, seed: int) -> Resampler:
    """Stationary bootstrap (Politis and Romano 1994) of n values in time order.

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


def politis_white_block(values: Sequence[float] | Floats) -> float:
    """Mean block length for the stationary bootstrap of a series, from its own autocorrelation.

    Politis and White (2004) with the correction of Patton, Politis and White (2009): flat-top window up to
    twice the lag after which correlations stay insignificant; at least 1, at most min(3 sqrt n, n / 3).
    """
    series = np.asarray(values, dtype=float)
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
    """The statistic of so many resamples."""
    sizes = [min(_BATCH, replicates - first) for first in range(0, replicates, _BATCH)]
    return np.concatenate([statistic(resample(size)) for size in sizes])


def mean_interval(
    values: Sequence[float], *, seed: int, level: float = 0.95, replicates: int = 4000
) -> tuple[float, float]:
    """Interval for the mean of independent units (one value a seed or window), studentised bootstrap.

    Studentised, because with 5 to 30 units the plain percentile interval is too narrow.

    Raises:
        ValueError: fewer than three values: no interval can be honest.
    """
    sample = np.asarray(values, dtype=float)
    n = len(sample)
    if n < 3:
        raise ValueError(f"an interval needs at least three units, not {n}")
    mean, error = float(sample.mean()), float(sample.std(ddof=1)) / n**0.5
    if error == 0.0:
        return mean, mean
    drawn = sample[np.random.default_rng(seed).integers(0, n, size=(replicates, n))]
    errors = drawn.std(axis=1, ddof=1) / n**0.5
    usable = errors > 1e-12 * error  # a resample of one value repeated has no spread to divide by
    t = (drawn.mean(axis=1)[usable] - mean) / errors[usable]
    tail = 50.0 * (1.0 - level)
    low, high = np.percentile(t, [tail, 100.0 - tail])
    return mean - float(high) * error, mean - float(low) * error
