"""The four load shapes of GuideLLM: concurrent, Poisson, throughput, sweep.

Owns: how a supply of prompts is timed. Contents come from elsewhere: a shape takes the prompts of a trace in
their order and gives them new send times. A session's requests keep their order; the wait for an answer and
the think time before a follow-up are dropped, since these shapes set the pace themselves. Pure.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from epp.lab.compare.trace import TraceRequest


def concurrent(
    requests: Sequence[TraceRequest], streams: int, *, nominal_s: float = 2.0
) -> tuple[TraceRequest, ...]:
    """So many requests at a time: each stream sends its next one as soon as its answer has ended.

    Args:
        requests: the prompts.
        streams: requests in flight.
        nominal_s: what an answer is taken to last for the nominal send times.
    """
    return tuple(
        replace(
            request,
            at_ms=(index // streams) * nominal_s * 1000.0,
            after=index - streams if index >= streams else None,
            think_ms=0.0,
        )
        for index, request in enumerate(requests)
    )


def poisson(requests: Sequence[TraceRequest], rate_rps: float, seed: int) -> tuple[TraceRequest, ...]:
    """Independent exponential gaps of the given mean rate, open loop."""
    gaps = np.random.default_rng(seed).exponential(1000.0 / rate_rps, size=len(requests))
    return tuple(
        replace(request, at_ms=round(float(at_ms), 3), after=None, think_ms=0.0)
        for request, at_ms in zip(requests, np.cumsum(gaps), strict=True)
    )


def throughput(requests: Sequence[TraceRequest]) -> tuple[TraceRequest, ...]:
    """Everything at once: the client's limit on requests in flight is what paces it."""
    return tuple(replace(request, at_ms=0.0, after=None, think_ms=0.0) for request in requests)


def sweep(low_rps: float, high_rps: float, steps: int) -> Iterator[float]:
    """Rates between a quiet fleet's and its throughput, both included, evenly spaced.

    Args:
        low_rps: rate of one request at a time.
        high_rps: rate at which the fleet answered when given everything at once.
        steps: number of rates, at least 2.

    Raises:
        ValueError: fewer than two steps, or the rates are not positive and rising.
    """
    if steps < 2 or not 0.0 < low_rps < high_rps:
        raise ValueError(f"no sweep of {steps} steps from {low_rps} to {high_rps} requests/s")
    for step in range(steps):
        yield low_rps + (high_rps - low_rps) * step / (steps - 1)
