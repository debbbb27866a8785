"""Several pickers that hold turns of agents: places, turns at engines and held turns of all are counted at each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from epp.apis.usage import Usage
from epp.cluster.index_sync import ALONE_S, SILENT_S, WHOLE_S
from epp.config.schema import ProgramsSection, QueueSection
from epp.schedule.decision import Decision
from epp.schedule.late_binding import LateBinding
from epp.schedule.program_gate import LOOK_S, ProgramGate
from epp.schedule.program_sharing import BELIEVED_S, MOST_TOLD
from epp.types import Endpoint, RequestInfo
from tests.cluster.test_sharing import Bus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epp.schedule.queue import Waiter

FIRST, SECOND = "10.0.0.1:80", "10.0.0.2:80"
KV_TOKENS = 100_000
#: Contexts of which one fits a cache and two do not.
LARGE = 60_000
SECTION = QueueSection(enabled=True, programs=ProgramsSection(enabled=True))
#: What it takes to fill a KV cache here: after it an idle agent gives way.
LEASE_S = 4.0


@dataclass
class Pool:
    """Pickers before engines of 100,000 tokens."""

    names: Sequence[str] = "abcd"
    engines: Sequence[str] = (FIRST,)
    bus: Bus = field(default_factory=Bus)
    bindings: dict[str, LateBinding] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in self.names:
            self.join(name)
        for name in "ab":
            self.gate(name).guard.count(1_000.0, self.now_s)  # contexts are computed all the time
        self.run(ALONE_S + WHOLE_S)

    def join(self, name: str) -> None:
        link = self.bus.join(name)
        pool = [Endpoint(one, engine_class="h100", kv_capacity_tokens=KV_TOKENS) for one in self.engines]
        self.bus.pickers[name].set_pool(pool, self.now_s)
        binding = self.bindings[name] = LateBinding(self.bus.pickers[name], SECTION, lambda _: 0.0)
        link.share_queue(binding)

    @property
    def now_s(self) -> float:
        return self.bus.clock.mono_s()

    def gate(self, name: str) -> ProgramGate:
        gate = self.bindings[name].programs
        assert gate is not None
        return gate

    def run(self, seconds: float) -> None:
        self.bus.run(seconds)

    def ask(
        self, picker: str, agent: str, tokens: int = LARGE, *, turn: int = 1, blocks: Sequence[int] = ()
    ) -> Decision | Waiter:
        request = RequestInfo(
            decision_id=f"{agent}{turn}",
            prompt_tokens=tokens,
            prompt_hash=tokens,
            blocks=blocks,
            block_tokens=1_000.0,
            program="" if blocks else agent,
            api="chat",
        )
        binding = self.bindings[picker]
        return binding.decide(request, self.now_s, 0.0, flow="", ttft_slo_s=0.0, held_bytes=10)

    def end(self, picker: str, agent: str, turn: int = 1) -> None:
        self.bus.pickers[picker].usage(f"{agent}{turn}", Usage(None, 0, None))
        self.bus.pickers[picker].end(f"{agent}{turn}", "completed", self.now_s)

    def poll(self, picker: str) -> list[Waiter]:
        return self.bindings[picker].poll(self.now_s, 0.0)

    def used(self, picker: str) -> list[float]:
        return [engine.used_tokens for engine in self.gate(picker).sets.engines.values()]


def goes(found: Decision | Waiter) -> bool:
    return isinstance(found, Decision)


def test_a_place_that_one_picker_gave_is_taken_at_all() -> None:
    pool = Pool()
    assert goes(pool.ask("a", "x"))
    pool.run(0.1)
    assert not goes(pool.ask("b", "y"))


def test_a_program_goes_home_whichever_picker_its_turn_comes_to() -> None:
    pool = Pool(engines=(FIRST, SECOND))
    places = {agent: pool.ask("a", agent, 90_000) for agent in "xy"}
    for agent in places:
        pool.end("a", agent)
    pool.run(0.1)
    for agent, place in places.items():
        found = pool.ask("c", agent, 91_000, turn=2)
        assert isinstance(found, Decision)
        assert isinstance(place, Decision)
        assert found.endpoint == place.endpoint


def test_a_program_keeps_its_place_while_any_picker_has_a_turn_of_it_at_its_engine() -> None:
    pool = Pool()
    pool.ask("a", "x")
    pool.run(0.1)
    held = pool.ask("b", "y")
    pool.run(10.0)
    assert pool.poll("b") == []
    pool.end("a", "x")
    pool.run(LEASE_S)
    assert pool.poll("b") == [held]
    pool.run(0.1)
    assert pool.used("a") == [pytest.approx(LARGE, rel=0.01)]  # of y alone


def test_an_agent_without_a_key_is_known_at_all_pickers_by_the_prompt_that_one_answered() -> None:
    pool = Pool()
    pool.ask("a", "x", blocks=range(60))
    pool.end("a", "x")
    pool.run(0.1)
    assert goes(pool.ask("a", "y", 70_000))
    pool.run(0.1)
    assert not goes(pool.ask("b", "x", 62_000, turn=2, blocks=range(62)))


def test_turns_are_held_by_what_turns_at_all_pickers_cost() -> None:
    pool = Pool()
    gate = pool.gate("d")
    assert not gate.guard.work_s(pool.now_s)
    assert gate.guard.look(1, pool.now_s)
    for name in "ab":
        pool.bus.kill(name)
    pool.run(SILENT_S + 2 * WHOLE_S)
    assert not gate.guard.look(1, pool.now_s)


def test_what_others_put_into_a_cache_leaves_less_room_at_each_picker() -> None:
    pool = Pool()
    for number in range(4):
        pool.ask("a", f"chat {number}", 10_000, blocks=[number])
    assert goes(pool.ask("b", "x", 20_000))
    pool.run(WHOLE_S + 0.1)
    assert not goes(pool.ask("b", "y", 50_000))  # .95 x (100,000 - 40,000) - 20,000 = 37,000


def test_who_came_first_at_any_picker_is_given_the_place() -> None:
    pool = Pool()
    pool.ask("a", "x")
    pool.run(0.1)
    first = pool.ask("b", "y")
    pool.run(0.1)
    second = pool.ask("c", "z")
    pool.run(0.1)
    pool.end("a", "x")
    pool.run(LEASE_S)
    assert pool.poll("c") == []
    assert pool.poll("b") == [first]
    pool.run(0.1)
    pool.end("b", "y")
    pool.run(LEASE_S)
    assert pool.poll("c") == [second]


def test_a_place_that_those_before_do_not_take_is_left_to_them_for_a_moment_only() -> None:
    pool = Pool()
    pool.ask("a", "x")
    pool.run(0.1)
    pool.ask("b", "y")
    pool.run(0.1)
    second = pool.ask("c", "z")
    pool.end("a", "x")
    pool.run(LEASE_S + 0.1)
    assert pool.poll("c") == []
    pool.run(LOOK_S)
    assert pool.poll("c") == [second]


def test_an_engine_that_one_picker_drains_for_a_turn_is_not_filled_by_others() -> None:
    pool = Pool("ab")
    for turn in (1, 2, 3):  # x and y ran for a quantum; x has a turn there
        for agent in "xy":
            pool.ask("a", agent, 40_000, turn=turn)
            pool.run(0.1)
            pool.end("a", agent, turn)
        pool.run(3.0 if turn < 3 else 0.1)
    sets = pool.gate("a").sets
    slot = next(iter(sets.engines))
    for name in "ab":
        for program in pool.gate(name).sets.engines[slot].active:
            program.admitted_s = -1_000.0
    for agent in "xy":
        pool.ask("a", agent, 40_000, turn=9)
    held = pool.ask("a", "old", 90_000)
    pool.run(121.0)
    pool.end("a", "y", 9)
    assert pool.poll("a") == []  # y's place is free, x has a turn there
    pool.run(0.1)
    small = pool.ask("b", "small", 30_000)
    pool.run(5.0)
    assert pool.poll("b") == []
    pool.end("a", "x", 9)
    assert pool.poll("a") == [held]
    assert not goes(small)


def test_the_programs_of_a_picker_that_died_give_way_once_their_lease_is_over() -> None:
    pool = Pool()
    pool.ask("a", "x")
    pool.run(0.1)
    held = pool.ask("b", "y")
    pool.bus.kill("a")
    pool.run(BELIEVED_S - 0.5)
    assert pool.poll("b") == []
    pool.run(LEASE_S)
    assert pool.poll("b") == [held]


def test_a_picker_that_starts_knows_within_a_second_who_has_a_place() -> None:
    pool = Pool("ab")
    pool.ask("a", "x")
    pool.run(1.0)
    pool.join("c")
    pool.gate("c").guard.count(1_000.0, pool.now_s)
    pool.ask("c", "small", 1_000)  # it asks for caches now
    pool.run(2 * WHOLE_S)
    assert pool.used("c")[0] >= LARGE
    assert not goes(pool.ask("c", "y"))


def test_more_changes_than_one_message_takes_go_with_the_next() -> None:
    pool = Pool("ab", engines=tuple(f"10.0.0.{number}:80" for number in range(1, 31)))
    for number in range(MOST_TOLD + 200):
        assert goes(pool.ask("a", f"agent {number} ", 2_000))
        pool.end("a", f"agent {number} ")
    pool.run(0.2)
    assert sum(pool.used("b")) == pytest.approx(sum(pool.used("a")))
    assert sum(pool.used("a")) == 2_000 * (MOST_TOLD + 200)


def test_a_program_that_is_told_each_second_makes_no_more_where_its_prompt_became_a_template() -> None:
    pool = Pool("ab")
    pool.ask("a", "first", 10_000, blocks=range(10))
    pool.end("a", "first")
    pool.run(0.1)
    pool.ask("a", "branch 1", 12_000, blocks=[*range(10), 100, 0])
    for number in (2, 3):
        pool.ask("b", f"branch {number}", 12_000 + number, blocks=[*range(10), 100 * number, 0])
    pool.run(15.0)
    active = [len(engine.active) for engine in pool.gate("b").sets.engines.values()]
    assert active == [1], "branch 2 went on from the first; branch 3 has not come back"
