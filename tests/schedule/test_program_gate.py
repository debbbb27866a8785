"""Turns of agents at the queue: who goes home, who is held, what lets them go."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epp.apis.usage import Usage
from epp.config.schema import ProgramsSection, QueueSection
from epp.console.why import why
from epp.schedule.decision import to_record
from epp.schedule.late_binding import LateBinding
from epp.schedule.queue import Waiter
from epp.types import Endpoint, RequestInfo
from tests.kit.records import picker_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epp.schedule.decision import Decision

FIRST, SECOND = "10.0.0.1:80", "10.0.0.2:80"
KV_TOKENS = 100_000
SECTION = QueueSection(enabled=True, programs=ProgramsSection(enabled=True))


class Talk:
    """Agents at engines of 100,000 tokens, on a clock that is set by hand."""

    def __init__(self, *engines: str, section: QueueSection = SECTION, holds: bool = True) -> None:
        self.scheduler = picker_of("gorgo-ms", pool=[])
        self.scheduler.set_pool([_endpoint(one) for one in engines], 0.0)
        self.binding = LateBinding(self.scheduler, section, lambda _: 0.0)
        assert self.binding.programs is not None
        self.programs, self.now_s = self.binding.programs, 0.0
        if holds:  # contexts are computed all the time
            self.programs.guard.count(1_000.0, 0.0)

    def ask(
        self, name: str, tokens: int, agent: str, *, blocks: Sequence[int] = (), flow: str = ""
    ) -> Decision | Waiter:
        request = RequestInfo(
            decision_id=name,
            prompt_tokens=tokens,
            blocks=blocks,
            block_tokens=1_000.0,
            program=agent,
            session=agent,
            api="chat",
        )
        return self.binding.decide(request, self.now_s, 0.0, flow=flow, ttft_slo_s=0.0, held_bytes=10)

    def end(self, name: str, answer_tokens: int = 0) -> None:
        self.scheduler.usage(name, Usage(None, answer_tokens, None))
        self.scheduler.end(name, "completed", self.now_s)

    def poll(self) -> list[Waiter]:
        return self.binding.poll(self.now_s, 0.0)


def _endpoint(address: str) -> Endpoint:
    return Endpoint(address, engine_class="h100", kv_capacity_tokens=KV_TOKENS)


def where(found: Decision | Waiter | None) -> str:
    found = found.decision if isinstance(found, Waiter) else found
    assert found is not None
    return found.endpoint


def test_a_program_without_a_place_is_held_until_an_idle_one_has_had_its_lease() -> None:
    talk = Talk(FIRST)
    assert where(talk.ask("a", 60_000, "a")) == FIRST
    held = talk.ask("b", 60_000, "b")
    assert isinstance(held, Waiter)
    talk.end("a")
    assert talk.poll() == []
    talk.now_s = 3.9  # the cache is filled in 4 s
    assert talk.poll() == []
    talk.now_s = 4.1
    assert talk.poll() == [held]
    assert where(held) == FIRST
    assert held.decision is not None
    assert "waited 4.1 s for a place of its context in a KV cache, let go because it has one; then " in why(
        to_record(held.decision)
    )


def test_a_turn_of_an_active_program_goes_home_whatever_waits_there() -> None:
    talk = Talk(FIRST, SECOND)
    home = where(talk.ask("a1", 99_000, "a"))
    talk.end("a1")
    slot = talk.scheduler.datastore.slot_of(home)
    assert slot is not None
    talk.scheduler.datastore.ledger.reserve("x", slot, 100_000, 100_000, 0.0, sequences=9)
    assert where(talk.ask("a2", 99_500, "a")) == home


def test_while_there_is_room_everywhere_the_policy_chooses() -> None:
    talk = Talk(FIRST, SECOND)
    home = where(talk.ask("a1", 60_000, "a"))
    talk.end("a1")
    slot = talk.scheduler.datastore.slot_of(home)
    assert slot is not None
    talk.scheduler.datastore.ledger.reserve("x", slot, 100_000, 100_000, 0.0, sequences=9)
    assert where(talk.ask("a2", 60_500, "a")) != home


def test_two_turns_of_a_held_program_are_let_go_together() -> None:
    talk = Talk(FIRST)
    talk.ask("a", 60_000, "a")
    held = [talk.ask("b1", 60_000, "b"), talk.ask("b2", 60_000, "b")]
    talk.end("a")
    talk.now_s = 5.0
    assert talk.poll() == held


def test_tenants_are_given_places_in_turn() -> None:
    talk = Talk(FIRST)
    talk.ask("a", 60_000, "a")
    held = [talk.ask(name, 60_000, name, flow=name[0]) for name in ("x1", "x2", "y1")]
    order = list[Waiter]()
    for name in ("a", "x1", "y1"):
        talk.end(name)
        talk.now_s += 5.0
        order += talk.poll()
    assert order == [held[0], held[2], held[1]]


def test_a_request_of_no_program_and_a_small_one_pass() -> None:
    talk = Talk(FIRST)
    talk.ask("a", 60_000, "a")
    assert isinstance(talk.ask("b", 60_000, "b"), Waiter)
    talk.end("a")
    assert where(talk.ask("c", 1_000, "")) == FIRST
    assert where(talk.ask("d", 400, "d")) == FIRST


def test_an_agent_without_a_key_is_known_by_its_second_turn() -> None:
    talk = Talk(FIRST)
    talk.ask("b1", 60_000, "", blocks=range(60))
    talk.end("b1")
    talk.ask("a", 60_000, "a", blocks=range(100, 160))
    assert isinstance(talk.ask("b2", 62_000, "", blocks=range(62)), Waiter)


def test_while_the_guard_is_off_nothing_is_held_and_held_turns_go() -> None:
    assert where(Talk(FIRST, holds=False).ask("a", 99_000, "a")) == FIRST
    talk = Talk(FIRST)
    talk.ask("a", 60_000, "a")
    held = talk.ask("b", 60_000, "b")
    talk.now_s = 500.0
    assert talk.poll() == [held]
    assert where(held) == FIRST


def test_a_turn_goes_without_a_place_after_the_longest_hold() -> None:
    section = QueueSection(enabled=True, programs=ProgramsSection(enabled=True, longest_hold_s=2.0))
    talk = Talk(FIRST, section=section)
    talk.ask("a", 60_000, "a")
    held = talk.ask("b", 60_000, "b")
    talk.now_s = 2.0
    assert talk.poll() == [held]
    assert where(held) == FIRST
    assert (talk.programs.counts["held"], talk.programs.counts["forced"]) == (1, 1)


def test_a_program_moves_when_its_engine_leaves() -> None:
    talk = Talk(FIRST)
    talk.ask("a1", 60_000, "a")
    talk.scheduler.set_pool([_endpoint(SECOND)], 1.0)
    assert where(talk.ask("a2", 61_000, "a")) == SECOND


def test_a_held_turn_goes_to_an_engine_that_joins() -> None:
    talk = Talk(FIRST)
    talk.ask("a", 60_000, "a")
    held = talk.ask("b", 60_000, "b")
    talk.scheduler.set_pool([_endpoint(FIRST), _endpoint(SECOND)], 1.0)
    talk.now_s = 1.0
    assert talk.poll() == [held]
    assert where(held) == SECOND


def test_a_client_that_leaves_frees_its_place_in_the_queue() -> None:
    talk = Talk(FIRST)
    talk.ask("a", 60_000, "a")
    held = talk.ask("b", 60_000, "b")
    assert isinstance(held, Waiter)
    talk.binding.leave(held, 1.0)
    assert len(talk.programs.held) == 0
    assert talk.poll() == []


def test_what_agents_begin_with_alike_takes_no_room() -> None:
    talk, template = Talk(FIRST), list(range(30))
    for number, agent in enumerate("abc"):
        blocks = template + list(range(100 * number + 100, 100 * number + 110))
        assert where(talk.ask(agent, 40_000, agent, blocks=blocks)) == FIRST
    (engine,) = talk.programs.sets.engines.values()
    assert engine.used_tokens == 40_000 + 10_000 + 10_000
