"""What fits in which cache: limits agree with unlimited reuse, and a prefix loses its end first."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.lab.compare.cache_fit import reuse_share, session_gaps
from epp.lab.compare.trace import TraceRequest
from epp.lab.compare.trace_stats import describe
from epp.lab.workloads.art_chat import APR_5, generate


def one(*ids: int, at_ms: float = 0.0, session: str = "s", tokens: int | None = None) -> TraceRequest:
    return TraceRequest(at_ms, session, "u", tokens or 10 * len(ids), 1, ids, 10)


def test_an_unlimited_cache_gives_unlimited_reuse() -> None:
    trace = generate(replace(APR_5, duration_s=300.0), 1)
    assert reuse_share(trace, 10**12) == pytest.approx(describe(trace).reuse_share)


@given(st.lists(st.sampled_from([(1,), (1, 2), (1, 2, 3), (4,), (4, 5), (1, 6)]), min_size=1, max_size=30))
def test_more_memory_never_holds_less_than_nothing_and_never_more_than_all(
    prompts: list[tuple[int, ...]],
) -> None:
    trace = [one(*ids) for ids in prompts]
    shares = [reuse_share(trace, capacity) for capacity in (10, 30, 1000)]
    assert 0.0 <= shares[0] <= 1.0
    assert max(shares) == shares[-1] == pytest.approx(describe(trace).reuse_share)


def test_a_prefix_loses_its_end_before_its_start() -> None:
    # Room for four blocks: (1 2 3) then (4 5) drops block 3, and 1 2 are found again.
    assert reuse_share([one(1, 2, 3), one(4, 5), one(1, 2, 3)], 40) == pytest.approx(20 / 80)


def test_the_least_recently_used_goes_first() -> None:
    trace = [one(1), one(2), one(1), one(3), one(1)]
    assert reuse_share(trace, 20) == pytest.approx(20 / 50)


def test_gaps_are_those_between_requests_of_a_session() -> None:
    trace = [
        one(1, at_ms=0.0, session="a"),
        one(2, at_ms=500.0, session="b"),
        one(3, at_ms=2000.0, session="a"),
    ]
    gaps = session_gaps(trace)
    assert gaps.p50_s == 2.0
    assert (gaps.turns_mean, gaps.turns_max) == (1.5, 2)
    assert math.isnan(session_gaps(trace[:1]).p50_s)
    with pytest.raises(ValueError, match="empty"):
        session_gaps([])
