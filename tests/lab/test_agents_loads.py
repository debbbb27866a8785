"""Agents of recorded sessions: what they ask, and how their runs are summed up."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from epp_lab.experiment import CellRun
from epp_lab.experiments import agents
from epp_lab.experiments.agents import Load, goals

if TYPE_CHECKING:
    from collections.abc import Iterator


def turn(prompt: int, think_s: float) -> list[Any]:
    return [0.0, prompt, 10, 1.0, think_s, [1, -(-prompt // 64)]]


@pytest.fixture(autouse=True)
def sessions(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One session of each half, with a sub-agent beside its second turn."""
    sub = {"sub": [turn(1_024, 0.0), turn(2_048, 3.0)]}
    row = {
        "block": 64,
        "tool_tokens": 256,
        "system_tokens": 256,
        "requests": [turn(10_240, 0.0), sub, turn(20_480, 600.0), turn(30_720, 2.0)],
    }
    monkeypatch.setattr(agents, "recorded_sessions", lambda _: [row, row])
    agents._sessions.cache_clear()
    yield
    agents._sessions.cache_clear()


def test_agents_have_contexts_that_fill_so_many_tokens_together() -> None:
    requests = agents.agents(100_000.0, 1, Load(1.0))
    users = Counter(one.user for one in requests)
    own = sum(one.prompt_tokens - 512 for one in requests) / agents.TURNS
    assert set(users.values()) == {agents.TURNS}
    assert 100_000 <= own < 100_000 + 20_480


def test_pauses_are_cut_and_sessions_share_their_beginning_alone() -> None:
    requests = agents.agents(1.0, 1, Load(1.0))
    assert {one.think_ms for one in requests} <= {0.0, 2_000.0, 10_000.0}
    first, *_, last = (one for one in requests if one.prompt_tokens == 10_240)
    assert set(first.block_ids) & set(last.block_ids) == set(first.block_ids[:2])
    long = agents.agents(1.0, 1, Load(1.0, think_s=900.0))
    assert max(one.think_ms for one in long) == 600_000.0


def test_sub_agents_begin_with_their_turn_and_are_sessions_of_their_own() -> None:
    requests = agents.agents(1.0, 1, Load(1.0, side_by_side=True))
    at = next(index for index, one in enumerate(requests) if one.session == "u0.0+1.0")
    beside = next(one for one in requests if one.session == "u0.0" and one.prompt_tokens == 20_480)
    assert requests[at].after == beside.after
    following = next(one for one in requests if one.after == at)
    assert (following.session, following.prompt_tokens, following.think_ms) == ("u0.0+1.0", 2_048, 3_000.0)


def test_goals_are_ratios_to_early_binding_under_the_same_seed() -> None:
    def run(entry: str, turns: float) -> CellRun:
        figures: dict[str, float | None] = dict.fromkeys(("JCT p50 s", "JCT p95 s", "TTFT p95 s"), 1.0)
        return CellRun("2.0", entry, 0, "", {**figures, "turns/s": turns, "hits": turns / 2})

    *_, row = goals([run("early", 0.5), run("programs", 0.75)]).splitlines()
    assert row.startswith("| 2.0 | 1 | 1.500 | 1.000 | 1.000 | 1.000 | 0.375 (0.25) |")
