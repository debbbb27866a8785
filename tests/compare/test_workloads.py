"""Generated workloads have the structure that their names promise, the same bytes for the same seed."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pytest

from epp.errors import EppError
from epp.lab.compare.cache_fit import reuse_share, session_gaps
from epp.lab.compare.trace import TraceRequest, dump
from epp.lab.compare.trace_stats import describe, measure_reuse
from epp.lab.workloads import agent_bursts, mooncake_chat, shapes, shared_prefix, wild_chat
from epp.lab.workloads.agent_bursts import AgentBursts
from epp.lab.workloads.mooncake_chat import MooncakeChat
from epp.lab.workloads.registry import WORKLOADS, workload_named
from epp.lab.workloads.shared_prefix import SharedPrefix
from epp.lab.workloads.wild_chat import WildChat

SHORT = 300.0


class TestAll:
    @pytest.mark.parametrize("name", WORKLOADS)
    def test_every_named_workload_can_be_simulated(self, name: str) -> None:
        requests = workload_named(name).make(1)
        assert len(requests) > 200
        assert [r.at_ms for r in requests] == sorted(r.at_ms for r in requests)
        for index, r in enumerate(requests):
            assert r.after is None or r.after < index
            assert 0 < r.prompt_tokens <= 32_768 - r.output_tokens
            assert len(r.block_ids) * r.block_tokens >= r.prompt_tokens
        assert len({r.block_tokens for r in requests}) == 1
        assert WORKLOADS[name].tuning in {"", *WORKLOADS}

    def test_a_seed_decides_whatever_the_hash_seed(self) -> None:
        program = (
            "import hashlib; from epp.lab.compare.trace import dump;"
            "from epp.lab.workloads.agent_bursts import AgentBursts, generate;"
            "print(hashlib.sha256(chr(10).join(dump(generate(AgentBursts(duration_s=300.0), 5))).encode()).hexdigest())"
        )
        text = "\n".join(dump(agent_bursts.generate(AgentBursts(duration_s=SHORT), 5)))
        here = hashlib.sha256(text.encode()).hexdigest()
        environment = os.environ | {"PYTHONHASHSEED": "77"}
        out = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
        )
        assert out.stdout.strip() == here

    def test_an_unknown_name_is_answered_with_the_nearest(self) -> None:
        with pytest.raises(EppError, match="did you mean 'art-chat'"):
            workload_named("art-chatt")


class TestWildChat:
    requests = wild_chat.generate(WildChat(), 3)

    def test_it_has_the_published_statistics(self) -> None:
        stats = describe(self.requests)
        assert stats.rate_rps == pytest.approx(11.4, rel=0.05)
        assert 730 <= stats.prompt_mean_tokens <= 900  # 730 and 815 in the two windows
        assert stats.output_mean_tokens == pytest.approx(320, rel=0.1)
        assert stats.cross_user_share == pytest.approx(0.278, abs=0.05)
        assert stats.reuse_share - stats.cross_user_share == pytest.approx(0.047, abs=0.02)
        assert stats.requests / stats.users == pytest.approx(1.7, rel=0.08)


class TestMooncakeChat:
    requests = mooncake_chat.generate(MooncakeChat(), 3)

    def test_it_has_the_traces_statistics(self) -> None:
        stats = describe(self.requests)
        assert stats.rate_rps == pytest.approx(2.96, rel=0.05)
        assert stats.prompt_mean_tokens == pytest.approx(7_356, rel=0.08)
        assert stats.output_mean_tokens == pytest.approx(336, rel=0.05)
        assert stats.reuse_share == pytest.approx(0.37, abs=0.05)

    def test_caches_of_one_replica_forget_most_of_it(self) -> None:
        # 11.0 % of the recorded hour fit one cache of a million tokens.
        assert reuse_share(self.requests, 1_000_000) == pytest.approx(0.11, abs=0.05)

    def test_returns_come_minutes_later_from_the_same_start(self) -> None:
        gaps = session_gaps(self.requests)
        assert gaps.p50_s == pytest.approx(117, rel=0.15)
        assert len({r.block_ids[0] for r in self.requests}) == 1


class TestBusier:
    @pytest.mark.parametrize(
        "name", ["art-chat", "wild-chat", "agent-sessions", "mooncake-chat", "shared-30"]
    )
    def test_twice_as_busy_is_twice_as_many_requests_of_the_same_kind(self, name: str) -> None:
        usual, busy = (describe(workload_named(name).make(4, rate)) for rate in (0.5, 1.0))
        assert busy.requests == pytest.approx(2 * usual.requests, rel=0.25)
        assert busy.prompt_mean_tokens == pytest.approx(usual.prompt_mean_tokens, rel=0.2)
        assert busy.reuse_share == pytest.approx(usual.reuse_share, abs=0.08)


class TestAgentBursts:
    requests = agent_bursts.generate(AgentBursts(duration_s=600.0), 2)

    def test_siblings_start_together_from_one_context(self) -> None:
        bursts: dict[int, list[TraceRequest]] = {}
        for r in self.requests:
            if r.after is not None and "/" in r.session and "/" not in self.requests[r.after].session:
                bursts.setdefault(r.after, []).append(r)
        bursts = {parent: siblings for parent, siblings in bursts.items() if len(siblings) >= 3}
        assert len(bursts) > 20
        for parent, siblings in bursts.items():
            context = self.requests[parent].block_ids
            assert all(s.block_ids[: len(context)] == context for s in siblings)
            assert max(s.at_ms for s in siblings) - min(s.at_ms for s in siblings) <= 300.0
            ends = [s.block_ids[-1] for s in siblings]
            assert len(set(ends)) == len(ends)

    def test_the_agent_goes_on_after_a_sibling(self) -> None:
        joined = [
            r
            for r in self.requests
            if r.after is not None and "/" not in r.session and "/" in self.requests[r.after].session
        ]
        assert len(joined) > 10

    def test_reuse_is_high_and_all_agents_share_a_prefix(self) -> None:
        assert describe(self.requests).reuse_share > 0.85
        assert len({r.block_ids[0] for r in self.requests}) == 1


class TestSharedPrefix:
    @pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.7])
    def test_reuse_is_the_share_asked_for(self, share: float) -> None:
        stats = describe(shared_prefix.generate(SharedPrefix(share=share), 1))
        assert stats.reuse_share == pytest.approx(share, abs=0.03)

    def test_a_drift_changes_the_share_in_the_middle(self) -> None:
        requests = shared_prefix.generate(SharedPrefix(share=0.05, later_share=0.5), 1)
        hits = measure_reuse(requests).cached_tokens

        def reuse(late: bool) -> float:
            rows = [
                (h, r.prompt_tokens)
                for h, r in zip(hits, requests, strict=True)
                if (r.at_ms >= 900_000) == late
            ]
            return sum(h for h, _ in rows) / sum(n for _, n in rows)

        assert reuse(late=False) == pytest.approx(0.05, abs=0.02)
        assert reuse(late=True) == pytest.approx(0.5, abs=0.04)

    def test_groups_are_replaced(self) -> None:
        lasting = shared_prefix.generate(SharedPrefix(share=0.5, duration_s=900.0), 1)
        moving = shared_prefix.generate(SharedPrefix(share=0.5, duration_s=900.0, group_life_s=200.0), 1)
        assert len({r.user for r in moving}) > 3 * len({r.user for r in lasting})

    def test_a_share_of_everything_is_refused(self) -> None:
        with pytest.raises(ValueError, match="shared part"):
            shared_prefix.generate(SharedPrefix(share=1.0), 1)


class TestShapes:
    requests = shared_prefix.generate(SharedPrefix(duration_s=SHORT), 1)

    def test_concurrent_keeps_so_many_streams(self) -> None:
        shaped = shapes.concurrent(self.requests, 4)
        assert sum(r.after is None for r in shaped) == 4
        followers = Counter(r.after for r in shaped if r.after is not None)
        assert set(followers.values()) == {1}  # nobody is waited for by two

    def test_poisson_has_the_rate(self) -> None:
        shaped = shapes.poisson(self.requests * 4, 5.0, seed=1)
        stats = describe(shaped)
        assert stats.rate_rps == pytest.approx(5.0, rel=0.05)
        assert stats.gap_cv2 == pytest.approx(1.0, abs=0.15)
        assert shaped == shapes.poisson(self.requests * 4, 5.0, seed=1)

    def test_throughput_sends_everything_at_once(self) -> None:
        waiting = [replace(r, after=None if i == 0 else i - 1) for i, r in enumerate(self.requests)]
        shaped = shapes.throughput(waiting)
        assert {(r.at_ms, r.after) for r in shaped} == {(0.0, None)}
        assert [r.block_ids for r in shaped] == [r.block_ids for r in waiting]

    def test_a_sweep_goes_from_one_end_to_the_other(self) -> None:
        assert list(shapes.sweep(1.0, 4.0, 4)) == [1.0, 2.0, 3.0, 4.0]
        with pytest.raises(ValueError, match="sweep"):
            list(shapes.sweep(4.0, 1.0, 4))
