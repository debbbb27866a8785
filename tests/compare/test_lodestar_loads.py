"""The loads of Lodestar's evaluation have the published statistics, as far as these are published."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from epp.lab.compare.trace_stats import describe, measure_reuse
from epp.lab.workloads import prefix_groups, tool_agent
from epp.lab.workloads.prefix_groups import PrefixGroups
from epp.lab.workloads.registry import workload_named
from epp.lab.workloads.tool_agent import ToolAgent


class TestToolAgent:
    requests = tool_agent.generate(ToolAgent(duration_s=900.0), 1)

    def test_prompts_are_those_of_the_trace_up_to_the_limit(self) -> None:
        lengths = np.array([r.prompt_tokens for r in self.requests])
        low, middle, high = np.percentile(lengths, (25, 50, 75))
        assert low == pytest.approx(3_227, rel=0.15)
        assert middle == pytest.approx(6_345, rel=0.05)
        assert high == pytest.approx(7_470, rel=0.05)
        assert lengths.max() <= 22_000

    def test_what_is_reused_is_templates_of_twelve_blocks_mostly(self) -> None:
        cached = np.array(measure_reuse(self.requests).cached_tokens)
        assert np.percentile(cached, 50) == 6_144
        own = np.array([r.prompt_tokens for r in self.requests]) - cached
        assert np.percentile(own, 25) == pytest.approx(266, rel=0.2)
        assert np.percentile(own, 50) == pytest.approx(560, rel=0.2)
        assert 0.55 < describe(self.requests).reuse_share < 0.75  # 0.59, longer prompts included

    def test_answers_are_those_of_the_trace(self) -> None:
        answers = np.array([r.output_tokens for r in self.requests])
        assert answers.mean() == pytest.approx(182, rel=0.1)
        assert np.percentile(answers, 50) == pytest.approx(30, rel=0.2)
        assert answers.max() <= 2_000

    def test_divided_by_four_everything_is_a_quarter_and_reuse_the_same(self) -> None:
        small = tool_agent.generate(ToolAgent(duration_s=900.0, divisor=4), 1)
        usual, divided = describe(self.requests), describe(small)
        assert divided.prompt_mean_tokens == pytest.approx(usual.prompt_mean_tokens / 4, rel=0.06)
        assert divided.reuse_share == pytest.approx(usual.reuse_share, abs=0.05)
        assert small[0].block_tokens == 128
        with pytest.raises(ValueError, match="divisor"):
            tool_agent.generate(ToolAgent(divisor=3), 1)

    def test_the_rate_shifts_in_the_middle(self) -> None:
        load = ToolAgent(duration_s=400.0, rate_rps=10.0, later_rate_rps=22.0, divisor=4)
        at_s = np.array([r.at_ms for r in tool_agent.generate(load, 2)]) / 1e3
        assert (at_s < 200.0).sum() / 200.0 == pytest.approx(10.0, rel=0.1)
        assert (at_s >= 200.0).sum() / 200.0 == pytest.approx(22.0, rel=0.1)

    def test_prefill_only_asks_for_first_tokens(self) -> None:
        requests = tool_agent.generate(ToolAgent(duration_s=60.0, prefill_only=True), 1)
        assert {r.output_tokens for r in requests} == {1}


class TestPrefixGroups:
    @pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.7])
    def test_reuse_is_the_share_asked_for(self, share: float) -> None:
        stats = describe(prefix_groups.generate(PrefixGroups(requests=3_000, shares=(share,)), 1))
        assert stats.reuse_share == pytest.approx(share, abs=0.03)
        assert stats.gap_cv2 == pytest.approx(1.0, abs=0.15)

    def test_lengths_and_answers_are_as_published(self) -> None:
        requests = prefix_groups.generate(PrefixGroups(requests=4_000), 1)
        prompts, answers = zip(*((r.prompt_tokens, r.output_tokens) for r in requests), strict=True)
        assert min(prompts) >= 1_000
        assert max(prompts) <= 10_000
        assert np.mean(answers) == pytest.approx(100.0, abs=1.0)
        assert np.std(answers) == pytest.approx(10.0, abs=1.0)

    def test_distances_within_a_group_are_uniform(self) -> None:
        groups, distances = 20, []
        last: dict[str, int] = {}
        load = PrefixGroups(requests=6_000, groups=groups, group_requests=500.0)
        for number, r in enumerate(prefix_groups.generate(load, 1)):
            if r.user in last:
                distances.append(number - last[r.user])
            last[r.user] = number
        shares = np.histogram(distances, bins=4, range=(0, 2 * groups))[0] / len(distances)
        assert shares == pytest.approx([0.25] * 4, abs=0.06)

    def test_a_shift_replaces_all_groups_by_others_of_the_later_share(self) -> None:
        load = PrefixGroups(requests=3_000, shares=(0.05,), later_shares=(0.5,))
        requests = prefix_groups.generate(load, 1)
        hits = measure_reuse(requests).cached_tokens
        halves = [range(1_500), range(1_500, 3_000)]
        early, late = (
            sum(hits[i] for i in half) / sum(requests[i].prompt_tokens for i in half) for half in halves
        )
        assert early == pytest.approx(0.05, abs=0.02)
        assert late == pytest.approx(0.5, abs=0.05)
        assert {r.user for r in requests[:1_500]}.isdisjoint(r.user for r in requests[1_500:])

    def test_a_share_of_everything_is_refused(self) -> None:
        with pytest.raises(ValueError, match="shared part"):
            prefix_groups.generate(replace(PrefixGroups(), later_shares=(1.0,)), 1)


@pytest.mark.parametrize(
    ("name", "outputs"),
    [("toolagent-like-prefill", True), ("sharing-mixed-prefill", True), ("sharing-50", False)],
)
def test_prefill_only_loads_have_answers_of_one_token(name: str, outputs: bool) -> None:
    workload = workload_named(name)
    requests = workload.generate(replace(workload.parameters.busier(0.02)), 1)  # type: ignore[type-var]  # dataclasses
    assert ({r.output_tokens for r in requests} == {1}) is outputs
