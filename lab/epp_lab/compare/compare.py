"""Two runs of the same load, compared in a way that does not fool us, and the sentence that may be said.

Requests are not independent: those of a session are alike, and those near in time share queues; taking them
as independent makes intervals far too narrow. Here whole sessions and, separately, whole stretches of time
are resampled, the same ones in both runs (the load's luck cancels), and the wider interval is given. An
interval covers chance within this load; other days, loads and seeds take more runs.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import isnan
from typing import TYPE_CHECKING

import numpy as np
from rich.table import Table

from epp_lab.compare.stats import by_cluster, replicate, stationary

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from epp_lab.compare.load import RequestResult
    from epp_lab.compare.measure import Figures
    from epp_lab.compare.stats import Counts, Floats, Statistic


METRIC_NAMES: Mapping[str, str] = {"ttft_ms": "TTFT", "e2e_ms": "E2E", "itl_ms": "ITL"}

# Fewer pairs or sessions than these carry no interval worth printing.
MIN_PAIRS = 30
MIN_SESSIONS = 8
_REPLICATES = 1_000


@dataclass(frozen=True, slots=True)
class Comparison:
    """Ratio of one statistic of run A to the same of run B.

    Attributes:
        name: of metric and statistic, e.g. ``E2E p95``.
        n: requests answered in both runs.
        sessions: different sessions among them.
        unpaired: requests that only one of the runs answered; their latencies are in no figure.
        ratio: A over B; below 1, A is lower.
        low: lower end of the 95 % interval of ``ratio``, NaN when there is too little data for one.
        high: upper end.
    """

    name: str
    n: int
    sessions: int
    unpaired: int
    ratio: float
    low: float
    high: float


def compare(
    a: Sequence[RequestResult], b: Sequence[RequestResult], metric: str, statistic: Statistic
) -> Comparison:
    """Compare two runs of the same load; requests are paired by ``index``."""
    left, right = _measured(a, metric), _measured(b, metric)
    both = sorted(left.keys() & right.keys())
    session_of = {r.index: r.session for r in a}
    sessions = [session_of[index] for index in both]
    pair = [np.array([run[index] for index in both], dtype=float) for run in (left, right)]
    ratio = float("nan")
    if both:
        ratio = float(np.exp(_log_ratio(statistic, pair, np.ones((1, len(both)), dtype=np.int64))[0]))
    return Comparison(
        f"{METRIC_NAMES[metric]} {statistic.label}",
        len(both),
        len(set(sessions)),
        len(left.keys() ^ right.keys()),
        ratio,
        *_interval(statistic, pair, sessions),
    )


def sentence(a: str, b: str, comparison: Comparison) -> str:
    """Say what may be said of run ``a`` against run ``b``.

    E.g. ``E2E p95: gorgo is 12 % [5, 18] lower than least-request (n = 412)``.
    """
    c = comparison
    count = f"n = {c.n}" + (f", {c.unpaired} answered in one run only" if c.unpaired else "")
    if not (np.isfinite(c.low) and np.isfinite(c.high)):
        return f"{c.name}: too little data to compare {a} with {b} ({count})"
    change, low, high = (100.0 * (value - 1.0) for value in (c.ratio, c.low, c.high))
    if c.high < 1.0:
        return f"{c.name}: {a} is {-change:.0f} % [{-high:.0f}, {-low:.0f}] lower than {b} ({count})"
    if c.low > 1.0:
        return f"{c.name}: {a} is {change:.0f} % [{low:.0f}, {high:.0f}] higher than {b} ({count})"
    figures = f"{change:+.0f} % [{low:+.0f}, {high:+.0f}]"
    return f"{c.name}: no difference shown between {a} and {b} ({figures}, {count})"


def _measured(results: Sequence[RequestResult], metric: str) -> dict[int, float]:
    values = ((r.index, getattr(r, metric)) for r in results if r.ok)
    return {index: value for index, value in values if value is not None and value > 0.0}


def _log_ratio(statistic: Statistic, pair: Sequence[Floats], counts: Counts) -> Floats:
    """Return the logarithm of the first one's statistic over the second one's."""
    top, bottom = (np.log(statistic.weighted(values, counts)) for values in pair)
    return np.asarray(top - bottom, dtype=float)


def _interval(statistic: Statistic, pair: Sequence[Floats], sessions: Sequence[str]) -> tuple[float, float]:
    n = len(sessions)
    if n < MIN_PAIRS or len(set(sessions)) < MIN_SESSIONS:
        return float("nan"), float("nan")
    ends = []
    for resample in (by_cluster(sessions, 0), stationary(n, max(map(statistic.block, pair)), 1)):
        logs = replicate(lambda counts: _log_ratio(statistic, pair, counts), resample, _REPLICATES)
        low, high = np.exp(np.percentile(logs, [2.5, 97.5]))
        ends.append((float(low), float(high)))
    return max(ends, key=lambda ends: ends[1] / ends[0])


def comparison_table(runs: Mapping[str, Sequence[RequestResult]], figures: Mapping[str, Figures]) -> Table:
    """Lay policies side by side, one column each: their figures, and which replica served how much."""
    table = Table(title="Same load, fresh fleets", title_justify="left")
    table.add_column("")
    for policy in runs:
        table.add_column(policy, justify="right")
    shown: Mapping[str, Callable[[Figures], str]] = {
        "requests (failed)": lambda found: f"{found.requests} ({found.errors})",
        "TTFT p50": lambda found: _ms(found.ttft_ms.p50),
        "TTFT p95": lambda found: _ms(found.ttft_ms.p95),
        "E2E p50": lambda found: _ms(found.e2e_ms.p50),
        "E2E p95": lambda found: _ms(found.e2e_ms.p95),
        "ITL p50": lambda found: _ms(found.itl_ms.p50),
        "cached share": lambda found: share_text(found.true_hit_share),
    }
    for name, text in shown.items():
        table.add_row(name, *(text(figures[policy]) for policy in runs))
    served = {policy: Counter(r.served_by for r in results if r.ok) for policy, results in runs.items()}
    for place in sorted(set().union(*served.values()) - {""}):
        table.add_row(f"  {place}", *(share_text(c[place] / max(1, c.total())) for c in served.values()))
    return table


def _ms(value: float) -> str:
    if isnan(value):
        return "-"
    if value >= 1000.0:
        return f"{value / 1000.0:.2f} s"
    return f"{value:.0f} ms" if value >= 100 else f"{value:.1f} ms"


def share_text(value: float) -> str:
    """Format a share as a per cent."""
    return "-" if isnan(value) else f"{100.0 * value:.0f} %"
