"""Sum a run up for a comparison: figures, curves and shares over time, the warm-up dropped.

Which requests count depends on nominal send times alone: the same ones for every policy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from epp_lab.compare.stats import percentile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from epp_lab.compare.load import RequestResult
    from epp_lab.compare.stats import Floats
    from epp_lab.compare.trace import TraceRequest
    from epp_lab.sim.results import WindowResult

#: Latencies that are compared, by the names of their fields.
METRICS = ("ttft_ms", "e2e_ms", "itl_ms")
_TIME_BINS = 36
CURVE_POINTS = tuple(float(q) for q in (*range(95), *np.arange(95.0, 100.01, 0.25)))
# A run cannot keep up when more than this share of what is due is unanswered at the end of sending (in a
# steady state it is rate x E2E / requests, some 0.2 % of a half-hour window), or when the client itself lags.
SATURATED_UNANSWERED_SHARE = 0.02
SATURATED_SLIP_P95_MS = 1_000.0


@dataclass(frozen=True, slots=True)
class Quantiles:
    """A latency in four figures, ms; NaN when nothing was measured."""

    mean: float
    p50: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One policy on one load under one seed. Latencies count from the intended send time, in ms.

    Attributes:
        requests: counted requests, those of the warm-up left out.
        errors: of them, failed ones; their latencies are in no figure.
        ttft_ms, e2e_ms, itl_ms: latencies; of tokens the mean of each request.
        slip_ms: how late the client sent.
        believed_hit_share: prompt tokens that the picker expected in the cache; NaN when not known.
        true_hit_share: prompt tokens that the engines reported as cached; NaN when they did not.
        share: share of requests of each replica, in the order of the fleet.
        hottest_share: of the replica that served most.
        busy_share: part of the time that each replica computed; empty for live runs.
        unanswered_share: share of the load still unanswered when the last request was due.
        input_tokens_per_s: offered load over the counted part.
        saturated: whether the run could not keep up (see the module's constants).
        ttft_curve_ms, e2e_curve_ms: percentiles of the latencies.
        ttft_over_time_ms, e2e_over_time_ms: p95 per time bin, the warm-up included.
        share_over_time: per time bin, requests of each replica; the warm-up included.
        bin_s: width of a time bin.
    """

    requests: int
    errors: int
    ttft_ms: Quantiles
    e2e_ms: Quantiles
    itl_ms: Quantiles
    slip_ms: Quantiles
    believed_hit_share: float
    true_hit_share: float
    share: tuple[float, ...]
    hottest_share: float
    busy_share: tuple[float, ...]
    unanswered_share: float
    input_tokens_per_s: float
    saturated: bool
    ttft_curve_ms: tuple[float, ...]
    e2e_curve_ms: tuple[float, ...]
    ttft_over_time_ms: tuple[float, ...]
    e2e_over_time_ms: tuple[float, ...]
    share_over_time: list[list[int]]
    bin_s: float

    def value(self, metric: str, statistic: str) -> float:
        """E.g. ``value("ttft_ms", "p95")``."""
        found: float = getattr(getattr(self, metric), statistic)
        return found


@dataclass(frozen=True, slots=True)
class PolicyRun:
    """One policy on one load under one seed, request by request: columns over all requests of the load.

    A figure is NaN where there is none: not sent, failed, or not reported.

    Attributes:
        replicas: how many there are.
        columns: by name of the field of a result; ``due_ms`` is the intended send time as it came to be.
        failed: whether it was sent and failed.
        replica: position of the replica that served it, -1 for none.
        busy_share: see `Figures`.
    """

    replicas: int
    columns: dict[str, Floats]
    failed: NDArray[np.bool_]
    replica: NDArray[np.int64]
    busy_share: tuple[float, ...] = ()


def from_window(result: WindowResult, size: int) -> PolicyRun:
    """Return a simulated window as columns over the ``size`` requests of its load."""
    busy = tuple(c.busy_ms / result.duration_ms if result.duration_ms else 0.0 for c in result.counters)
    served = [r.endpoint for r in result.requests]
    picked = [r for r in result.requests if r.endpoint]
    return _run(result.requests, served, result.endpoints, size, picked=picked, busy_share=busy)


def from_live(results: Sequence[RequestResult], size: int) -> PolicyRun:
    """Return a live run as columns; replicas are those that answers named, in alphabetical order."""
    served = [r.served_by for r in results]
    return _run(results, served, sorted(set(served) - {""}), size)


def _run(
    results: Sequence[Any],
    served: Sequence[str],
    replicas: Sequence[str],
    size: int,
    *,
    picked: Sequence[Any] = (),
    busy_share: tuple[float, ...] = (),
) -> PolicyRun:
    def column(name: str, of: Sequence[Any]) -> Floats:
        found = np.full(size, np.nan)
        found[[r.index for r in of]] = np.array([getattr(r, name) for r in of], dtype=float)  # None is NaN
        return found

    ok = [r for r in results if r.ok]
    position = {name: i for i, name in enumerate(replicas)}
    where, failed = np.full(size, -1, dtype=np.int64), np.zeros(size, dtype=bool)
    for result, name in zip(results, served, strict=True):
        where[result.index] = position.get(name, -1)
        failed[result.index] = not result.ok
    columns = {name: column(name, ok) for name in (*METRICS, "prompt_tokens", "cached_tokens")}
    columns["slip_ms"], columns["due_ms"] = column("slip_ms", results), column("intended_ms", results)
    columns["believed_tokens"] = column("believed_cached_tokens", picked)
    return PolicyRun(len(replicas), columns, failed, where, busy_share)


def figures(
    run: PolicyRun, requests: Sequence[TraceRequest], mask: NDArray[np.bool_], *, pace: float
) -> Figures:
    """Sum up a run.

    Args:
        run: the run.
        requests: its load.
        mask: the requests that count.
        pace: what send times were multiplied by.
    """
    columns, due_ms = run.columns, run.columns["due_ms"]
    sent = ~np.isnan(due_ms)
    use = mask & sent
    at_s = np.array([r.at_ms for r in requests]) * pace / 1000.0
    span_s = float(at_s[mask].max() - at_s[mask].min()) if mask.any() else 0.0
    tokens = float(np.array([r.prompt_tokens for r in requests], dtype=float)[mask].sum())
    last_due = float(np.nanmax(due_ms)) if sent.any() else 0.0
    # An answer in progress is no backlog: half a minute is more than any answer needs on a healthy fleet.
    settled = sent & (due_ms <= last_due - min(30_000.0, 0.1 * last_due))
    late = settled & ~run.failed & (due_ms + columns["e2e_ms"] > last_due)
    unanswered = float(late.sum() / max(1, sent.sum()))
    slip = _quantiles(columns["slip_ms"][use])
    counts = np.bincount(run.replica[use & (run.replica >= 0)], minlength=run.replicas)
    share = tuple(float(c) / max(1, int(counts.sum())) for c in counts)
    bin_s = (float(at_s.max()) / _TIME_BINS if len(at_s) else 0.0) or 1.0
    bins = np.minimum((at_s / bin_s).astype(int), _TIME_BINS - 1)
    return Figures(
        requests=int(use.sum()),
        errors=int((run.failed & use).sum()),
        ttft_ms=_quantiles(columns["ttft_ms"][use]),
        e2e_ms=_quantiles(columns["e2e_ms"][use]),
        itl_ms=_quantiles(columns["itl_ms"][use]),
        slip_ms=slip,
        believed_hit_share=_hit_share(columns["believed_tokens"][use], columns["prompt_tokens"][use]),
        true_hit_share=_hit_share(columns["cached_tokens"][use], columns["prompt_tokens"][use]),
        share=share,
        hottest_share=max(share, default=float("nan")),
        busy_share=run.busy_share,
        unanswered_share=unanswered,
        input_tokens_per_s=tokens / span_s if span_s else 0.0,
        saturated=unanswered > SATURATED_UNANSWERED_SHARE or slip.p95 > SATURATED_SLIP_P95_MS,
        ttft_curve_ms=_curve(columns["ttft_ms"][use]),
        e2e_curve_ms=_curve(columns["e2e_ms"][use]),
        ttft_over_time_ms=_p95_over_time(columns["ttft_ms"], bins),
        e2e_over_time_ms=_p95_over_time(columns["e2e_ms"], bins),
        share_over_time=_share_over_time(run, bins),
        bin_s=bin_s,
    )


def _quantiles(values: Floats) -> Quantiles:
    known = values[~np.isnan(values)]
    mean = float(known.mean()) if len(known) else float("nan")
    return Quantiles(mean, *(percentile(known, q) for q in (50, 95, 99)))


def _curve(values: Floats) -> tuple[float, ...]:
    known = values[~np.isnan(values)]
    return tuple(float(v) for v in np.percentile(known, CURVE_POINTS)) if len(known) else ()


def _hit_share(hits: Floats, prompts: Floats) -> float:
    known = ~np.isnan(hits) & ~np.isnan(prompts)
    total = float(prompts[known].sum())
    return float(hits[known].sum()) / total if total else float("nan")


def _share_over_time(run: PolicyRun, bins: NDArray[np.int64]) -> list[list[int]]:
    """Count the requests of each replica by the time bin of their nominal send time."""
    table = np.zeros((_TIME_BINS, run.replicas), dtype=int)
    served = run.replica >= 0
    np.add.at(table, (bins[served], run.replica[served]), 1)
    return table.tolist()


def _p95_over_time(values: Floats, bins: NDArray[np.int64]) -> tuple[float, ...]:
    return tuple(_quantiles(values[bins == number]).p95 for number in range(_TIME_BINS))
