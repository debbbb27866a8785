"""Two runs of the same load, compared in a way that does not fool us, and the sentence that may be said.

Owns: pairing, the interval of a ratio, and the words. Pure.

Requests are not independent: those of a session are alike, and those near in time share queues; taking them
as independent makes intervals far too narrow. Here whole sessions and, separately, whole stretches of time
are resampled, the same ones in both runs (the load's luck cancels), and the wider interval is given. What an
interval covers is chance within this load; other days, loads and seeds take more runs
(`epp.lab.compare.resample.mean_interval` over their log-ratios).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from epp.lab.compare.resample import Statistic, by_cluster, politis_white_block, replicate, stationary

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from epp.lab.compare.load import RequestResult
    from epp.lab.compare.resample import Counts, Floats, Resampler

Metric = Literal["ttft_ms", "e2e_ms", "itl_ms"]
METRIC_NAMES: Mapping[Metric, str] = {"ttft_ms": "TTFT", "e2e_ms": "E2E", "itl_ms": "ITL"}

# Fewer pairs or sessions than these carry no interval worth printing.
MIN_PAIRS = 30
MIN_SESSIONS = 8


@dataclass(frozen=True, slots=True)
class Comparison:
    """Ratio of one statistic of run A to the same of run B.

    Attributes:
        metric: what was measured.
        statistic: ``mean`` or a percentile's name.
        n: requests answered in both runs.
        sessions: different sessions among them.
        unpaired: requests that only one of the runs answered; their latencies are in no figure.
        ratio: A over B; below 1, A is lower.
        low: lower end of the interval of ``ratio``, NaN when there is too little data for one.
        high: upper end.
        level: coverage that the interval aims at.
    """

    metric: Metric
    statistic: str
    n: int
    sessions: int
    unpaired: int
    ratio: float
    low: float
    high: float
    level: float

    @property
    def name(self) -> str:
        """E.g. ``E2E p95``."""
        return f"{METRIC_NAMES[self.metric]} {self.statistic}"

    @property
    def shown(self) -> bool:
        """Whether the interval excludes equality."""
        return bool(self.low > 1.0 or self.high < 1.0)

    @property
    def measurable(self) -> bool:
        """Whether there was data enough for an interval."""
        return bool(np.isfinite(self.low) and np.isfinite(self.high))


def compare(
    a: Sequence[RequestResult],
    b: Sequence[RequestResult],
    metric: Metric,
    statistic: Statistic,
    *,
    seed: int = 0,
    level: float = 0.95,
    replicates: int = 1000,
) -> Comparison:
    """Compare two runs of the same load; requests are paired by ``index``."""
    left, right = _measured(a, metric), _measured(b, metric)
    both = sorted(left.keys() & right.keys())
    session_of = {r.index: r.session for r in a}
    sessions = [session_of[index] for index in both]
    x = np.array([left[index] for index in both], dtype=float)
    y = np.array([right[index] for index in both], dtype=float)
    n, distinct = len(both), len(set(sessions))
    ratio = low = high = float("nan")
    if n:
        everything = np.ones((1, n), dtype=np.int64)
        ratio = float(np.exp(_log_ratio(statistic, x, y, everything)[0]))
    if n >= MIN_PAIRS and distinct >= MIN_SESSIONS:
        block = max(politis_white_block(_influence(statistic, values)) for values in (x, y))
        low, high = _widest(
            statistic,
            x,
            y,
            [by_cluster(sessions, seed), stationary(n, block, seed + 1)],
            level=level,
            replicates=replicates,
        )
    return Comparison(
        metric=metric,
        statistic=statistic.label,
        n=n,
        sessions=distinct,
        unpaired=len(left.keys() ^ right.keys()),
        ratio=ratio,
        low=low,
        high=high,
        level=level,
    )


def sentence(a: str, b: str, comparison: Comparison) -> str:
    """What may be said of run ``a`` against run ``b``; when nothing may, it says so.

    E.g. ``E2E p95: gorgo is 12 % [5, 18] lower than least-request (n = 412)``.
    """
    c = comparison
    count = f"n = {c.n}" + (f", {c.unpaired} answered in one run only" if c.unpaired else "")
    if not c.measurable:
        return f"{c.name}: too little data to compare {a} with {b} ({count})"
    change, low, high = (100.0 * (value - 1.0) for value in (c.ratio, c.low, c.high))
    if not c.shown:
        figures = f"{change:+.0f} % [{low:+.0f}, {high:+.0f}]"
        return f"{c.name}: no difference shown between {a} and {b} ({figures}, {count})"
    if c.high < 1.0:
        return f"{c.name}: {a} is {-change:.0f} % [{-high:.0f}, {-low:.0f}] lower than {b} ({count})"
    return f"{c.name}: {a} is {change:.0f} % [{low:.0f}, {high:.0f}] higher than {b} ({count})"


def interval(
    results: Sequence[RequestResult],
    metric: Metric,
    statistic: Statistic,
    *,
    seed: int = 0,
    level: float = 0.95,
    replicates: int = 1000,
) -> tuple[float, float]:
    """Interval of one run's own statistic in ms, by the same rules; NaN twice when data are too few."""
    measured = sorted((r for r in results if _value(r, metric) is not None), key=lambda r: r.index)
    sessions = [r.session for r in measured]
    values = np.array([_value(r, metric) for r in measured], dtype=float)
    if len(values) < MIN_PAIRS or len(set(sessions)) < MIN_SESSIONS:
        return float("nan"), float("nan")
    block = politis_white_block(_influence(statistic, values))
    resamplers = [by_cluster(sessions, seed), stationary(len(values), block, seed + 1)]
    return _widest(statistic, values, None, resamplers, level=level, replicates=replicates)


def _value(result: RequestResult, metric: Metric) -> float | None:
    if not result.ok:
        return None
    value: float | None = getattr(result, metric)
    return value if value is not None and value > 0.0 else None


def _measured(results: Sequence[RequestResult], metric: Metric) -> dict[int, float]:
    values = ((r.index, _value(r, metric)) for r in results)
    return {index: value for index, value in values if value is not None}


def _log_ratio(statistic: Statistic, x: Floats, y: Floats | None, counts: Counts) -> Floats:
    top = np.log(statistic.weighted(x, counts))
    return np.asarray(top if y is None else top - np.log(statistic.weighted(y, counts)), dtype=float)


def _influence(statistic: Statistic, values: Floats) -> NDArray[np.float64]:
    """The series whose correlation in time matters: the values, or who is above the percentile."""
    if statistic.q is None:
        return values
    return (values > np.percentile(values, statistic.q)).astype(float)


def _widest(
    statistic: Statistic,
    x: Floats,
    y: Floats | None,
    resamplers: Sequence[Resampler],
    *,
    level: float,
    replicates: int,
) -> tuple[float, float]:
    tail = 50.0 * (1.0 - level)
    ends = []
    for resample in resamplers:
        logs = replicate(lambda counts: _log_ratio(statistic, x, y, counts), resample, replicates)
        low, high = np.exp(np.percentile(logs, [tail, 100.0 - tail]))
        ends.append((float(low), float(high)))
    return max(ends, key=lambda pair: pair[1] / pair[0])
