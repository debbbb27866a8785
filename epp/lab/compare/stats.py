"""Percentiles and summaries of runs.

Owns: the one definition of a percentile, and what a run is summed up to. Pure. Intervals and comparisons are
in `epp.lab.compare.resample` and `epp.lab.compare.compare`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from epp.lab.compare.load import RequestResult

    Floats = NDArray[np.float64]


def percentile(values: Sequence[float] | Floats, q: float) -> float:
    """The q-th percentile (0..100), NaN when there are no values; the only definition in this package.

    Linear between order statistics: position (n - 1) q / 100 of the sorted values (Hyndman-Fan type 7).
    """
    if len(values) == 0:
        return float("nan")
    return float(np.percentile(np.asarray(values, dtype=float), q))


@dataclass(frozen=True, slots=True)
class Spread:
    """A distribution in four figures; all NaN when ``n`` is 0."""

    n: int
    mean: float
    p50: float
    p95: float
    p99: float


def spread(values: Sequence[float]) -> Spread:
    """Figures of a sample."""
    if not values:
        nan = float("nan")
        return Spread(0, nan, nan, nan, nan)
    array = np.asarray(values, dtype=float)
    return Spread(len(array), float(array.mean()), *(percentile(array, q) for q in (50, 95, 99)))


@dataclass(frozen=True, slots=True)
class Summary:
    """One run, or one part of it. Latencies are of successful requests; failures are counted beside them.

    Attributes:
        requests: sent.
        errors: failed.
        ttft_ms: time to first token.
        e2e_ms: whole answer.
        itl_ms: mean inter-token latency of each request.
        slip_ms: how late the client itself was.
        cached_share: cached over prompt tokens, where the engine reports both; NaN when it never does.
        share_by_place: share of requests by region (or endpoint where no region is known), by name.
    """

    requests: int
    errors: int
    ttft_ms: Spread
    e2e_ms: Spread
    itl_ms: Spread
    slip_ms: Spread
    cached_share: float
    share_by_place: Mapping[str, float]

    @property
    def hottest_share(self) -> float:
        """Share of the place that served most, NaN when nothing names its server."""
        return max(self.share_by_place.values(), default=float("nan"))


def summarise(results: Sequence[RequestResult], regions: Mapping[str, str] | None = None) -> Summary:
    """Sum up results; ``regions`` maps ``served_by`` to a region's name."""
    ok = [r for r in results if r.ok]
    known = [
        (r.cached_tokens, r.prompt_tokens) for r in ok if r.cached_tokens is not None and r.prompt_tokens
    ]
    prompt_tokens = sum(prompt or 0 for _, prompt in known)
    places: dict[str, int] = {}
    for result in ok:
        if result.served_by:
            place = (regions or {}).get(result.served_by, result.served_by)
            places[place] = places.get(place, 0) + 1
    served = sum(places.values())
    return Summary(
        requests=len(results),
        errors=len(results) - len(ok),
        ttft_ms=spread([r.ttft_ms for r in ok if r.ttft_ms is not None]),
        e2e_ms=spread([r.e2e_ms for r in ok]),
        itl_ms=spread([r.itl_ms for r in ok if r.itl_ms is not None]),
        slip_ms=spread([r.slip_ms for r in results]),
        cached_share=sum(c or 0 for c, _ in known) / prompt_tokens if prompt_tokens else float("nan"),
        share_by_place={place: places[place] / served for place in sorted(places)},
    )
