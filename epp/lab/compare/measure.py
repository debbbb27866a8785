"""What one run is summed up to for a comparison: figures, curves and shares over time, warm-up dropped.

Owns: which requests count (nominal send time past the warm-up: the same ones for every policy),
the rule by which a run is called saturated, and the reduction of simulated and live runs to one shape. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from epp.lab.compare.stats import percentile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from epp.lab.compare.load import RequestResult
    from epp.lab.compare.trace import TraceRequest
    from epp.lab.sim.results import WindowResult

    Floats = NDArray[np.float64]

#: Latencies that are compared, by the names of their fields.
METRICS = ("ttft_ms", "e2e_ms", "itl_ms")
#: Cells of a share-over-time plot, and points of a distribution's curve.
TIME_BINS = 36
CURVE_POINTS = tuple(float(q) for q in (*range(95), *np.arange(95.0, 100.01, 0.25)))
# A run cannot keep up when more than this share of what is due is unanswered at the end of sending (in a
# steady state it is rate x E2E / requests, some 0.2 % of a half-hour window), or when the client itself lags.
SATURATED_UNANSWERED_SHARE = 0.02
SATURATED_SLIP_P95_MS = 1_000.0


class Quantiles(msgspec.Struct, frozen=True):
    """A latency in four figures, ms; NaN (null in files) when nothing was measured."""

    mean: float
    p50: float
    p95: float
    p99: float


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """One policy on one load under one seed. Latencies count from the intended send time, in ms.

    Attributes:
        requests: counted requests, those of the warm-up left out.
        errors: of them, failed ones; their latencies are in no figure.
        ttft_ms: time to first token.
        e2e_ms: whole answer.
        itl_ms: mean inter-token latency of each request.
        slip_ms: how late the client sent.
        believed_hit_share: prompt tokens that the picker expected in the cache; NaN when nobody said.
        true_hit_share: prompt tokens that the engines reported as cached; NaN when they did not.
        share: share of requests of each replica, in the order of the fleet.
        busy_share: part of the time that each replica computed; empty for live runs.
        unanswered_share: share of the load still unanswered when the last request was due.
        input_tokens_per_s: offered load over the counted part.
        saturated: whether the run could not keep up (see the module's constants).
        ttft_curve_ms: percentiles of TTFT at `CURVE_POINTS`.
        e2e_curve_ms: the same of E2E.
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
    busy_share: tuple[float, ...]
    unanswered_share: float
    input_tokens_per_s: float
    saturated: bool
    ttft_curve_ms: tuple[float, ...]
    e2e_curve_ms: tuple[float, ...]
    share_over_time: tuple[tuple[int, ...], ...]
    bin_s: float

    @property
    def hottest_share(self) -> float:
        """Share of the replica that served most."""
        return max(self.share, default=float("nan"))

    def value(self, metric: str, statistic: str) -> float:
        """E.g. ``value("ttft_ms", "p95")``."""
        found: float = getattr(getattr(self, metric), statistic)
        return found


@dataclass(frozen=True, slots=True)
class Run:
    """One policy on one load under one seed, request by request: columns over all requests of the load.

    A latency is NaN where there is none: not sent, failed, or too short for it.

    Attributes:
        endpoints: addresses of the replicas.
        ttft_ms: time to first token.
        e2e_ms: whole answer.
        itl_ms: mean inter-token latency.
        slip_ms: how late the client sent; NaN when not sent.
        due_ms: intended send time as it came to be; NaN when not sent.
        failed: whether it was sent and failed.
        endpoint: position of the replica that served it, -1 for none.
        prompt_tokens: prompt length as the engine counted it.
        cached_tokens: what the engine's cache gave; NaN when not reported.
        believed_tokens: what the picker expected; NaN when not known.
        busy_share: see `Figures`.
    """

    endpoints: tuple[str, ...]
    ttft_ms: Floats
    e2e_ms: Floats
    itl_ms: Floats
    slip_ms: Floats
    due_ms: Floats
    failed: NDArray[np.bool_]
    endpoint: NDArray[np.int64]
    prompt_tokens: Floats
    cached_tokens: Floats
    believed_tokens: Floats
    busy_share: tuple[float, ...] = ()

    def latency(self, metric: str) -> Floats:
        """The column of a metric."""
        column: Floats = getattr(self, metric)
        return column


def from_window(result: WindowResult, size: int) -> Run:
    """A simulated window as columns over the ``size`` requests of its load."""
    served = [r.endpoint for r in result.requests]
    rows = _columns(result.requests, size, served, result.endpoints)
    rows["believed_tokens"] = _column(
        size, ((r.index, r.believed_cached_tokens) for r in result.requests if r.endpoint)
    )
    busy = tuple(c.busy_ms / result.duration_ms if result.duration_ms else 0.0 for c in result.counters)
    return Run(endpoints=result.endpoints, busy_share=busy, **rows)


def from_live(results: Sequence[RequestResult], size: int) -> Run:
    """A live run as columns; replicas are those that answers named, in alphabetical order."""
    endpoints = tuple(sorted({r.served_by for r in results if r.served_by}))
    rows = _columns(results, size, [r.served_by for r in results], endpoints)
    return Run(endpoints=endpoints, believed_tokens=np.full(size, np.nan), **rows)


def _column(size: int, values: Any) -> Floats:
    column = np.full(size, np.nan)
    for index, value in values:
        if value is not None:
            column[index] = value
    return column


def _columns(
    results: Sequence[Any], size: int, served: Sequence[str], endpoints: Sequence[str]
) -> dict[str, Any]:
    ok = [r for r in results if r.ok]
    position = {address: i for i, address in enumerate(endpoints)}
    where = np.full(size, -1, dtype=np.int64)
    failed = np.zeros(size, dtype=bool)
    for result, address in zip(results, served, strict=True):
        where[result.index] = position.get(address, -1)
        failed[result.index] = not result.ok
    return {
        **{name: _column(size, ((r.index, getattr(r, name)) for r in ok)) for name in METRICS},
        "slip_ms": _column(size, ((r.index, r.slip_ms) for r in results)),
        "due_ms": _column(size, ((r.index, r.intended_ms) for r in results)),
        "failed": failed,
        "endpoint": where,
        "prompt_tokens": _column(size, ((r.index, r.prompt_tokens) for r in ok)),
        "cached_tokens": _column(size, ((r.index, r.cached_tokens) for r in ok)),
    }


def counted(requests: Sequence[TraceRequest], *, warmup_s: float, time_scale: float) -> NDArray[np.bool_]:
    """Which requests count: nominal send times, scaled, past the warm-up; the same for every policy."""
    return np.array([r.at_ms * time_scale >= warmup_s * 1000.0 for r in requests], dtype=bool)


def figures(
    run: Run, requests: Sequence[TraceRequest], mask: NDArray[np.bool_], *, time_scale: float
) -> Figures:
    """Sum up a run.

    Args:
        run: the run.
        requests: its load.
        mask: the requests that count.
        time_scale: what send times were multiplied by.
    """
    sent = ~np.isnan(run.due_ms)
    use = mask & sent
    at_s = np.array([r.at_ms for r in requests]) * time_scale / 1000.0
    span_s = float(at_s[mask].max() - at_s[mask].min()) if mask.any() else 0.0
    tokens = float(np.array([r.prompt_tokens for r in requests], dtype=float)[mask].sum())
    ended = run.due_ms + run.e2e_ms
    last_due = float(np.nanmax(run.due_ms)) if sent.any() else 0.0
    # An answer in progress is no backlog: half a minute is more than any answer needs on a healthy fleet.
    settled = sent & (run.due_ms <= last_due - min(30_000.0, 0.1 * last_due))
    late = settled & ~run.failed & (ended > last_due)
    unanswered = float(late.sum() / max(1, sent.sum()))
    slip = _quantiles(run.slip_ms[use])
    share = _shares(run.endpoint[use], len(run.endpoints))
    bin_s, over_time = _over_time(run, at_s)
    return Figures(
        requests=int(use.sum()),
        errors=int((run.failed & use).sum()),
        ttft_ms=_quantiles(run.ttft_ms[use]),
        e2e_ms=_quantiles(run.e2e_ms[use]),
        itl_ms=_quantiles(run.itl_ms[use]),
        slip_ms=slip,
        believed_hit_share=_hit_share(run.believed_tokens[use], run.prompt_tokens[use]),
        true_hit_share=_hit_share(run.cached_tokens[use], run.prompt_tokens[use]),
        share=share,
        busy_share=run.busy_share,
        unanswered_share=unanswered,
        input_tokens_per_s=tokens / span_s if span_s else 0.0,
        saturated=unanswered > SATURATED_UNANSWERED_SHARE or slip.p95 > SATURATED_SLIP_P95_MS,
        ttft_curve_ms=_curve(run.ttft_ms[use]),
        e2e_curve_ms=_curve(run.e2e_ms[use]),
        share_over_time=over_time,
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


def _shares(endpoint: NDArray[np.int64], replicas: int) -> tuple[float, ...]:
    counts = np.bincount(endpoint[endpoint >= 0], minlength=replicas)
    total = int(counts.sum())
    return tuple(float(c) / total if total else 0.0 for c in counts)


def _over_time(run: Run, at_s: Floats) -> tuple[float, tuple[tuple[int, ...], ...]]:
    """Requests of each replica by the time bin of their nominal send time."""
    width = float(at_s.max()) / TIME_BINS if len(at_s) and at_s.max() > 0 else 1.0
    bins = np.minimum((at_s / width).astype(int), TIME_BINS - 1)
    table = np.zeros((TIME_BINS, len(run.endpoints)), dtype=int)
    served = run.endpoint >= 0
    np.add.at(table, (bins[served], run.endpoint[served]), 1)
    return width, tuple(tuple(int(v) for v in row) for row in table)
