"""Generated workloads have the statistics that are published, or that their names promise."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from epp_lab.compare.trace_stats import describe, reuse_share, session_gaps
from epp_lab.workloads import (
    agent_bursts,
    mooncake_chat,
    mooncake_mix,
    prefix_groups,
    shared_prefix,
    tool_agent,
    wild_chat,
)
from epp_lab.workloads.agent_bursts import AgentBursts
from epp_lab.workloads.art_chat import APR_5, DEMO, generate
from epp_lab.workloads.mooncake_chat import MooncakeChat
from epp_lab.workloads.mooncake_mix import MooncakeMix
from epp_lab.workloads.prefix_groups import PrefixGroups
from epp_lab.workloads.registry import WORKLOADS, workload_named
from epp_lab.workloads.shared_prefix import SharedPrefix
from epp_lab.workloads.tool_agent import ToolAgent
from epp_lab.workloads.wild_chat import WildChat

if TYPE_CHECKING:
    from collections.abc import Callable

    from epp_lab.compare.trace import TraceRequest

    Requests = tuple[TraceRequest, ...]


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_named_workload_can_be_simulated(name: str) -> None:
    requests = workload_named(name).make(1)
    assert len(requests) > 200
    assert [r.at_ms for r in requests] == sorted(r.at_ms for r in requests)
    for index, r in enumerate(requests):
        assert r.after is None or r.after < index
        assert 0 < r.prompt_tokens <= 32_768 - r.output_tokens
        assert len(r.block_ids) * r.block_tokens >= r.prompt_tokens
    assert len({r.block_tokens for r in requests}) == 1
    assert WORKLOADS[name].tuning in {"", *WORKLOADS}
    assert {r.output_tokens for r in requests} == {1} or not name.endswith("prefill")


def art_chat(rate_rps: float, users: int) -> dict[str, tuple[float, float]]:
    return {
        "reuse_share": (0.77, 0.88),
        "cross_user_share": (0.0, 0.01),
        "uncached_mean_tokens": (900, 1_600),
        "short_row_share": (0.30, 0.36),
        "rate_rps": (0.95 * rate_rps, 1.05 * rate_rps),
        "gap_cv2": (0.9, 1.3),
        "prompt_p50_tokens": (5_500, 7_800),
        "prompt_mean_tokens": (6_200, 7_800),
        "prompt_p95_tokens": (16_500, 21_000),
        "users": (users - 2, users + 2),
    }


#: Loads, made when their test runs, and the range of each statistic.
STATISTICS: dict[str, tuple[Callable[[], Requests], dict[str, tuple[float, float]]]] = {
    "art-chat, Apr 5": (lambda: generate(APR_5, 1), art_chat(4.2, 580)),
    "wild-chat": (
        lambda: wild_chat.generate(WildChat(), 3),
        {
            "rate_rps": (10.8, 12.0),
            "prompt_mean_tokens": (730, 900),  # 730 and 815 in the two windows
            "output_mean_tokens": (288, 352),
            "cross_user_share": (0.228, 0.328),
            "reuse_share": (0.275, 0.375),
        },
    ),
    "mooncake-chat": (
        lambda: mooncake_chat.generate(MooncakeChat(), 3),
        {
            "rate_rps": (2.81, 3.11),
            "prompt_mean_tokens": (6_768, 7_944),
            "output_mean_tokens": (319, 353),
            "reuse_share": (0.32, 0.42),
        },
    ),
    "bursts": (lambda: agent_bursts.generate(AgentBursts(duration_s=600.0), 2), {"reuse_share": (0.85, 1.0)}),
    "toolagent": (
        lambda: tool_agent.generate(ToolAgent(duration_s=900.0), 1),
        {
            "prompt_p50_tokens": (6_028, 6_662),
            "output_mean_tokens": (164, 200),
            "reuse_share": (0.55, 0.75),  # 0.59, longer prompts included
        },
    ),
    "synthetic divided by 4": (
        lambda: mooncake_mix.generate(MooncakeMix(duration_s=2_000.0, divisor=4), 1),
        {
            "prompt_p50_tokens": (2_600, 3_200),  # 11,587
            "prompt_p95_tokens": (11_000, 13_500),  # 48,905
            "output_mean_tokens": (34, 41),  # 149
            "reuse_share": (0.58, 0.69),  # 0.651
        },
    ),
    "shared prefix": (
        lambda: shared_prefix.generate(SharedPrefix(share=0.7), 1),
        {"reuse_share": (0.67, 0.73)},
    ),
    "prefix groups": (
        lambda: prefix_groups.generate(PrefixGroups(requests=3_000, shares=(0.7,)), 1),
        {"reuse_share": (0.67, 0.73), "gap_cv2": (0.85, 1.15)},
    ),
}


@pytest.mark.parametrize("load", STATISTICS)
def test_a_load_has_its_statistics(load: str) -> None:
    made, ranges = STATISTICS[load]
    stats = describe(made())
    outside = {name: stats[name] for name, (low, high) in ranges.items() if not low <= stats[name] <= high}
    assert not outside


class TestDemo:
    def test_later_turns_wait_for_the_one_before_and_hold_it_with_its_answer(self) -> None:
        trace, last, extended = generate(DEMO, 1), dict[str, int](), 0
        for index, r in enumerate(trace):
            assert r.after == last.get(r.session)
            last[r.session] = index
            assert list(r.turn_starts) == sorted(set(r.turn_starts))
            assert len(r.turn_starts) % 2 == 1 or r.user == "bot"  # the user's message is the last
            if r.after is not None and trace[r.after].prompt_tokens in r.turn_starts:
                before, extended = trace[r.after], extended + 1
                assert r.block_ids[: len(before.block_ids)] == before.block_ids
                answer = r.turn_starts.index(before.prompt_tokens)
                assert answer % 2 == 1  # an assistant's message
                assert r.turn_starts[answer + 1] - r.turn_starts[answer] == before.output_tokens
        assert extended > 0.6 * sum(r.after is not None for r in trace)


def test_mooncake_chat_comes_back_minutes_later_when_caches_have_forgotten() -> None:
    requests = mooncake_chat.generate(MooncakeChat(), 3)
    assert session_gaps(requests)["p50_s"] == pytest.approx(117, rel=0.15)
    # 11.0 % of the recorded hour fit one cache of a million tokens.
    assert reuse_share(requests, 1_000_000) == pytest.approx(0.11, abs=0.05)
