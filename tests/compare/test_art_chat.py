"""Generated chat has the statistics it claims, for any seed, and the same bytes for one seed."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import pytest

from epp.lab.compare.trace import TraceRequest, dump
from epp.lab.compare.trace_stats import TraceStats, describe, measure_reuse
from epp.lab.workloads.art_chat import APR_5, APR_7, DEMO, ArtChat, generate


@pytest.fixture(
    scope="module", params=[(APR_5, 1), (APR_5, 2), (APR_7, 3)], ids=["apr5-1", "apr5-2", "apr7-3"]
)
def window(request: pytest.FixtureRequest) -> tuple[ArtChat, TraceStats, tuple[TraceRequest, ...]]:
    parameters, seed = request.param
    trace = generate(parameters, seed)
    return parameters, describe(trace), trace


def test_the_window_meets_the_recipes_acceptance(
    window: tuple[ArtChat, TraceStats, tuple[TraceRequest, ...]],
) -> None:
    parameters, stats, trace = window
    assert 0.77 <= stats.reuse_share <= 0.88
    assert stats.cross_user_share < 0.01
    assert 900 <= stats.uncached_mean_tokens <= 1_600
    assert 0.30 <= stats.short_row_share <= 0.36
    assert stats.rate_rps == pytest.approx(parameters.rate_rps, rel=0.05)
    assert 0.9 <= stats.gap_cv2 <= 1.3  # near Poisson
    assert 5_500 <= stats.prompt_p50_tokens <= 7_800
    assert 6_200 <= stats.prompt_mean_tokens <= 7_800
    assert 16_500 <= stats.prompt_p95_tokens <= 21_000
    assert max(r.prompt_tokens + r.output_tokens for r in trace) <= 24_000
    assert max(r.output_tokens for r in trace) <= 128
    assert stats.users == pytest.approx(parameters.users, abs=2)


def test_users_differ_as_in_life(window: tuple[ArtChat, TraceStats, tuple[TraceRequest, ...]]) -> None:
    counts: dict[str, int] = {}
    for r in window[2]:
        counts[r.user] = counts.get(r.user, 0) + 1
    top = sorted((count for user, count in counts.items() if user != "bot"), reverse=True)
    assert sum(top[:10]) > 5 * sum(top) * 10 / len(top)


def test_a_seed_decides_every_byte_whatever_the_hash_seed() -> None:
    program = (
        "import hashlib;from epp.lab.compare.trace import dump;"
        "from epp.lab.workloads.art_chat import DEMO,generate;"
        "print(hashlib.sha256(''.join(dump(generate(DEMO,7))).encode()).hexdigest())"
    )
    here = hashlib.sha256("".join(dump(generate(DEMO, 7))).encode()).hexdigest()
    for hash_seed in ("0", "12345"):
        environment = os.environ | {"PYTHONHASHSEED": hash_seed}
        out = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
        )
        assert out.stdout.strip() == here
    assert generate(DEMO, 7) != generate(DEMO, 8)


class TestDemo:
    trace = generate(DEMO, 1)

    def test_it_fits_the_time_and_the_fleet(self) -> None:
        for seed in range(5):
            stats = describe(generate(DEMO, seed))
            assert stats.duration_s <= DEMO.duration_s
            assert 220 <= stats.requests <= 380
            # Three replicas prefill 42k tokens/s: well placed well under it, placed blindly over it.
            assert stats.uncached_mean_tokens * stats.rate_rps < 0.65 * 42_000
            assert stats.input_tokens_per_s > 42_000

    def test_every_later_turn_waits_for_the_one_before(self) -> None:
        last: dict[str, int] = {}
        for index, r in enumerate(self.trace):
            assert r.after == last.get(r.session)
            assert (r.think_ms > 0) == (r.after is not None)
            last[r.session] = index

    def test_an_extended_prompt_holds_the_prompt_and_answer_before_it(self) -> None:
        extended = 0
        for r in self.trace:
            if r.after is None:
                continue
            before = self.trace[r.after]
            if before.prompt_tokens in r.turn_starts:
                extended += 1
                assert r.block_ids[: len(before.block_ids)] == before.block_ids
                answer = r.turn_starts.index(before.prompt_tokens)
                assert answer % 2 == 1  # an assistant's message
                assert r.turn_starts[answer + 1] - r.turn_starts[answer] == before.output_tokens
        followers = sum(r.after is not None for r in self.trace)
        assert extended > 0.6 * followers

    def test_turns_rise_inside_the_prompt_and_end_with_the_user(self) -> None:
        for r in self.trace:
            assert list(r.turn_starts) == sorted(set(r.turn_starts))
            assert all(0 < start < r.prompt_tokens for start in r.turn_starts)
            assert len(r.turn_starts) % 2 == 1 or r.user == "bot"

    def test_the_rate_scales(self) -> None:
        assert len(generate(DEMO.at_rate(24.0), 1)) > 1.6 * len(self.trace)


def test_reuse_counts_partial_blocks_and_tells_users_apart() -> None:
    def one(user: str, tokens: int, *ids: int) -> TraceRequest:
        return TraceRequest(0.0, user, user, tokens, 1, ids, 10)

    reuse = measure_reuse(
        [one("a", 15, 1, 2), one("a", 25, 1, 2, 3), one("b", 25, 1, 2, 4), one("b", 18, 1, 2), one("a", 9, 9)]
    )
    assert reuse.cached_tokens == (0, 15, 20, 18, 0)
    assert reuse.own_tokens == (0, 15, 0, 18, 0)


def test_an_empty_trace_has_no_statistics() -> None:
    with pytest.raises(ValueError, match="empty"):
        describe([])
