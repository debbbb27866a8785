"""What a run is summed up to: the same requests for every policy, failures apart, saturation seen."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from epp.lab.compare.measure import CURVE_POINTS, TIME_BINS, Run, counted, figures, from_live, from_window
from epp.lab.compare.trace import TraceRequest
from epp.lab.sim.run import run_window
from epp.lab.sim.scenario import WindowOptions, parse_fleet
from tests.compare.test_stats import result


def load(n: int, gap_ms: float = 100.0) -> tuple[TraceRequest, ...]:
    return tuple(TraceRequest(i * gap_ms, f"s{i}", "u", 100, 8, (i,), 128) for i in range(n))


def run(n: int, **columns: Any) -> Run:
    fields: dict[str, Any] = {
        "endpoints": ("a", "b"),
        "ttft_ms": np.full(n, 50.0),
        "e2e_ms": np.full(n, 100.0),
        "itl_ms": np.full(n, 5.0),
        "slip_ms": np.zeros(n),
        "due_ms": np.arange(n) * 100.0,
        "failed": np.zeros(n, dtype=bool),
        "endpoint": np.arange(n) % 2,
        "prompt_tokens": np.full(n, 100.0),
        "cached_tokens": np.full(n, 40.0),
        "believed_tokens": np.full(n, 60.0),
    }
    return Run(**(fields | columns))


def summed(
    run_: Run, requests: tuple[TraceRequest, ...], warmup_s: float = 0.0, time_scale: float = 1.0
) -> Any:
    mask = counted(requests, warmup_s=warmup_s, time_scale=time_scale)
    return figures(run_, requests, mask, time_scale=time_scale)


def test_the_warm_up_is_left_out_by_nominal_time() -> None:
    requests = load(100)
    ttft = np.where(np.arange(100) < 50, 9e9, 10.0)
    found = summed(run(100, ttft_ms=ttft), requests, warmup_s=5.0)
    assert found.requests == 50
    assert found.ttft_ms.p99 == 10.0
    assert summed(run(100), requests, warmup_s=5.0, time_scale=2.0).requests == 75


def test_failures_are_counted_and_their_latencies_are_not() -> None:
    failed = np.zeros(100, dtype=bool)
    failed[:7] = True
    nothing = np.where(failed, np.nan, 80.0)
    found = summed(run(100, failed=failed, ttft_ms=nothing, e2e_ms=nothing), load(100))
    assert (found.errors, found.requests) == (7, 100)
    assert found.e2e_ms.p50 == 80.0


def test_shares_hits_and_curves() -> None:
    endpoint = np.array([0] * 75 + [1] * 20 + [-1] * 5)
    found = summed(run(100, endpoint=endpoint), load(100))
    assert found.share == pytest.approx((75 / 95, 20 / 95))
    assert found.hottest_share == pytest.approx(75 / 95)
    assert (found.true_hit_share, found.believed_hit_share) == pytest.approx((0.4, 0.6))
    assert len(found.ttft_curve_ms) == len(CURVE_POINTS)
    assert len(found.share_over_time) == TIME_BINS
    assert sum(map(sum, found.share_over_time)) == 95
    unknown = summed(run(100, cached_tokens=np.full(100, np.nan)), load(100))
    assert math.isnan(unknown.true_hit_share)


@pytest.mark.parametrize(
    ("columns", "saturated"),
    [
        ({}, False),
        ({"e2e_ms": np.linspace(100, 300_000, 1000)}, True),  # answers come later and later
        ({"slip_ms": np.linspace(0, 60_000, 1000)}, True),  # the client waits for places
        ({"e2e_ms": np.where(np.arange(1000) % 100 == 0, 60_000.0, 100.0)}, False),  # a few long answers
    ],
)
def test_a_run_that_cannot_keep_up_is_seen(columns: dict[str, Any], saturated: bool) -> None:
    assert summed(run(1000, **columns), load(1000)).saturated is saturated


def test_a_simulated_window_becomes_columns() -> None:
    requests = load(30)
    window = run_window(requests, parse_fleet("l40s-x2@5*2"), "round-robin", seed=1, options=WindowOptions())
    columns = from_window(window, len(requests))
    found = summed(columns, requests)
    assert found.errors == 0
    assert found.share == (0.5, 0.5)
    assert found.ttft_ms.p50 > 0
    assert all(0 < busy <= 1 for busy in found.busy_share)


def test_a_live_run_becomes_columns() -> None:
    results = [result(i, served_by="ab"[i % 2], prompt_tokens=100, cached_tokens=30) for i in range(20)]
    results.append(result(20, error="HTTP 503", ttft_ms=None))
    columns = from_live(results, 22)
    found = summed(columns, load(22))
    assert columns.endpoints == ("a", "b")
    assert (found.requests, found.errors) == (21, 1)  # one was never sent
    assert found.true_hit_share == pytest.approx(0.3)
    assert math.isnan(found.believed_hit_share)
