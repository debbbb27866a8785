"""Turns of agents at the queue: who goes home, who is held, what lets them go."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from epp.apis.usage import Usage
from epp.config.schema import ProgramsSection, QueueSection
from epp.console.why import why
from epp.metrics.metrics import Metrics
from epp.metrics.read import QueueState
from epp.metrics.table import TABLE
from epp.prefix_cache.state_slots import StateSlots
from epp.schedule.decision import to_record
from epp.schedule.late_binding import LateBinding
from epp.schedule.program_gate import UNHELD_S
from epp.schedule.queue import Waiter
from epp.signals.stored_responses import key_of
from epp.types import Endpoint, RequestInfo
from tests.kit.records import picker_of
from tests.kit.replicas import metric

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epp.schedule.decision import Decision

FIRST, SECOND = "10.0.0.1:80", "10.0.0.2:80"
KV_TOKENS = 100_000
#: An answer is expected to be as long before any came.
ANSWER = 128
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
        self,
        name: str,
        tokens: int,
        agent: str,
        *,
        blocks: Sequence[int] = (),
        flow: str = "",
        **known: Any,
    ) -> Decision | Waiter:
        request = RequestInfo(
            decision_id=name,
            prompt_tokens=tokens,
            prompt_hash=tokens,
            blocks=blocks,
            block_tokens=1_000.0,
            program=agent,
            session=agent,
            api="chat",
            **known,
        )
        return self.binding.decide(request, self.now_s, 0.0, flow=flow, ttft_slo_s=0.0, held_bytes=10)

    def end(self, name: str, answer_tokens: int = 0, cause: str = "completed") -> None:
        self.scheduler.usage(name, Usage(None, answer_tokens, None))
        self.scheduler.end(name, cause, self.now_s)

    @property
    def used(self) -> list[float]:
        """Tokens of contexts that have a place, by engine."""
        return [engine.used_tokens for _, engine in sorted(self.programs.sets.engines.items())]

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


def test_a_refused_turn_of_an_agent_without_a_key_is_held_like_the_first_time_when_it_comes_again() -> None:
    talk = Talk(FIRST)
    talk.ask("b1", 40_000, "", blocks=range(40))
    talk.end("b1")
    talk.ask("b2", 62_000, "", blocks=range(62))
    talk.end("b2", cause="refused")
    talk.ask("b3", 62_000, "", blocks=range(62))
    talk.end("b3")
    assert talk.used == [62_000]


def test_a_turn_that_goes_on_from_a_stored_response_needs_room_for_what_the_engine_has_as_well() -> None:
    talk = Talk(FIRST)
    talk.ask("b1", 40_000, "", blocks=range(40), stores=True)
    talk.end("b1", 2_000)
    talk.scheduler.datastore.stored.store(0, key_of("r1"), 0.0)
    talk.programs._stored("b1", "r1")
    talk.ask("b2", 1_000, "", blocks=[999], stores=True, previous_response=key_of("r1"))
    assert talk.used == [pytest.approx(43_000, rel=0.03)]  # and an answer
    talk.end("b2", 500)
    assert talk.used == [pytest.approx(43_500, rel=0.01)]


def test_while_the_guard_is_off_nothing_is_held_and_held_turns_go() -> None:
    assert where(Talk(FIRST, holds=False).ask("a", 99_000, "a")) == FIRST
    talk = Talk(FIRST)
    talk.ask("a", 60_000, "a")
    held = talk.ask("b", 60_000, "b")
    talk.now_s = 500.0
    assert talk.poll() == [held]
    assert where(held) == FIRST


def test_a_turn_goes_without_a_place_after_the_longest_hold() -> None:
    section = QueueSection(
        enabled=True, programs=ProgramsSection(enabled=True, age_s=1.0, longest_hold_s=2.0)
    )
    talk = Talk(FIRST, section=section)
    talk.ask("a", 60_000, "a")
    held = talk.ask("b", 60_000, "b")
    talk.now_s = 2.0
    assert talk.poll() == [held]
    assert where(held) == FIRST
    assert (talk.programs.counts["held"], talk.programs.counts["forced"]) == (1, 1)
    metrics = Metrics(TABLE)
    metrics.show("queue", QueueState(talk.binding, talk.scheduler.datastore, lambda: 2.0, "p", str))
    text = "".join(metrics.pieces())
    assert metric(text, "epp_program_longest_hold_seconds") == 2.0
    assert metric(text, "epp_program_prefill_share") > 1.0
    assert metric(text, "epp_program_tokens_total", {"kind": "prompt"}) == 120_000.0
    assert metric(text, "epp_programs_kv_share") == pytest.approx(2 * (60_000 + ANSWER) / KV_TOKENS)


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


def test_where_no_caller_waits_as_long_no_turn_is_held_for_a_while() -> None:
    talk, said = Talk(FIRST), list[float]()
    talk.programs.on_unheld = said.append
    talk.ask("a", 60_000, "a")
    for number in (1, 2, 3):
        assert not said
        held = talk.ask(f"b{number}", 60_000, f"b{number}")
        assert isinstance(held, Waiter)
        talk.now_s += 60.0
        talk.programs.guard.count(1_000.0, talk.now_s)
        talk.binding.leave(held, talk.now_s)
    assert said == [60.0]
    assert where(talk.ask("c", 60_000, "c")) == FIRST
    talk.now_s += UNHELD_S
    talk.programs.guard.count(1_000.0, talk.now_s)
    assert isinstance(talk.ask("d", 60_000, "d"), Waiter)


def test_while_others_wait_as_long_one_who_gives_up_is_alone_not_held() -> None:
    talk = Talk(FIRST)
    talk.ask("a", 60_000, "a")
    for number in (1, 2, 3):
        patient, hasty = (
            talk.ask(f"{name}{number}", 60_000, f"{name}{number}") for name in ("patient", "hasty")
        )
        assert isinstance(hasty, Waiter)
        talk.now_s += 2.0
        talk.binding.leave(hasty, talk.now_s)
        assert where(talk.ask("again", 60_000, f"hasty{number}")) == FIRST
        for name in ("again", "a", f"patient{number - 1}"):
            talk.end(name)
        talk.now_s += 20.0
        assert talk.poll() == [patient]
    assert isinstance(talk.ask("d", 60_000, "d"), Waiter)


def test_callers_that_leave_at_one_moment_say_nothing_of_others() -> None:
    talk = Talk(FIRST)
    talk.ask("a", 60_000, "a")
    for held in [talk.ask(f"b{number}", 60_000, f"b{number}") for number in range(5)]:
        assert isinstance(held, Waiter)
        talk.binding.leave(held, 30.0)
    assert isinstance(talk.ask("c", 60_000, "c"), Waiter)


def test_where_turns_go_before_they_would_age_none_is_held() -> None:
    programs = ProgramsSection(enabled=True, age_s=60.0, longest_hold_s=60.0)
    section = QueueSection(enabled=True, programs=programs)
    assert section.longest_s == section.ttl_s
    assert LateBinding(picker_of("gorgo-ms", pool=[]), section, lambda _: 0.0).programs is None


def test_what_agents_begin_with_alike_takes_no_room() -> None:
    talk, template = Talk(FIRST), list(range(30))
    for number, agent in enumerate("abc"):
        blocks = template + list(range(100 * number + 100, 100 * number + 110))
        assert where(talk.ask(agent, 40_000, agent, blocks=blocks)) == FIRST
    (engine,) = talk.programs.sets.engines.values()
    assert engine.used_tokens == 40_000 + 10_000 + 10_000 + 3 * ANSWER


def test_sub_agents_side_by_side_take_room_for_what_each_has_beside_the_prefix_of_their_parent() -> None:
    talk, parent = Talk(FIRST), list(range(30))
    talk.ask("p1", 30_000, "p", blocks=parent)
    for number, agent in enumerate(("p one", "p two", "p three")):
        own = range(1_000 * number + 1_000, 1_000 * number + 1_010)
        assert where(talk.ask(agent, 40_000, agent, blocks=[*parent, *own])) == FIRST
    assert talk.used[0] <= 30_000 + 2 * 10_000 + 40_000 + 4 * ANSWER  # the first one is not known to share


def test_agents_that_share_a_key_and_run_side_by_side_go_to_one_engine_as_one_program() -> None:
    talk = Talk(FIRST, SECOND)
    home = where(talk.ask("a1", 90_000, "a"))
    talk.end("a1")
    talk.ask("b1", 90_000, "b")
    assert where(talk.ask("a2", 91_000, "a")) == home
    assert where(talk.ask("a3", 20_000, "a")) == home
    talk.end("a3")
    talk.end("a2")
    assert sorted(talk.used) == [pytest.approx(90_000, rel=0.01), 91_000]


def test_an_engine_that_restarts_has_lost_all_contexts() -> None:
    talk = Talk(FIRST, SECOND)
    home = where(talk.ask("a1", 90_000, "a"))
    talk.end("a1")
    talk.ask("b1", 90_000, "b")
    slot = talk.scheduler.datastore.slot_of(home)
    assert slot is not None
    talk.scheduler.datastore.restart(home, talk.now_s)
    talk.now_s += 2.0
    assert where(talk.ask("c", 60_000, "c")) == home


@pytest.mark.parametrize("how", ["draining", "ejected"])
def test_programs_of_an_engine_that_drains_or_fails_move(how: str) -> None:
    talk = Talk(FIRST, SECOND)
    home = where(talk.ask("a1", 60_000, "a"))
    talk.end("a1")
    slot = talk.scheduler.datastore.slot_of(home)
    assert slot is not None
    if how == "draining":
        pool = [_endpoint(one) for one in (FIRST, SECOND)]
        talk.scheduler.set_pool([replace(one, draining=one.address == home) for one in pool], 1.0)
    else:
        talk.scheduler.datastore.health.eject_until(slot, 1_000.0, talk.now_s)
    other = where(talk.ask("a2", 61_000, "a"))
    assert other != home
    assert talk.used[slot] == 0


def test_after_a_restart_of_the_picker_a_program_has_its_place_where_its_prefix_is() -> None:
    before, talk = Talk(FIRST, SECOND), Talk(FIRST, SECOND)
    for number, agent in enumerate("ab"):
        blocks = range(100 * number, 100 * number + 90)
        endpoint = where(before.ask(agent, 90_000, agent, blocks=blocks))
        slot = talk.scheduler.datastore.slot_of(endpoint)
        assert slot is not None
        talk.scheduler.datastore.index.insert(
            slot, RequestInfo(prompt_tokens=90_000, blocks=blocks, block_tokens=1_000.0)
        )
        talk.programs.sets.count_others(slot, 30_000.0, 0.0)  # there is no ample room
    for number, agent in enumerate("ba"):
        blocks = range(100 - 100 * number, 190 - 100 * number)
        assert where(talk.ask(agent, 90_000, agent, blocks=blocks)) == where(
            before.ask(f"{agent}2", 90_000, agent)
        )
    assert isinstance(talk.ask("c", 60_000, "c"), Waiter)


def test_the_place_of_a_session_that_says_that_it_ends_is_free_at_once() -> None:
    talk = Talk(FIRST)
    talk.ask("a", 60_000, "a", last_turn=True)
    held = talk.ask("b", 60_000, "b")
    talk.end("a")
    assert talk.poll() == [held]


def test_a_client_that_gives_up_while_its_turn_runs_leaves_the_engine_to_others_after_its_lease() -> None:
    talk = Talk(FIRST)
    talk.ask("a", 60_000, "a")
    held = talk.ask("b", 60_000, "b")
    talk.end("a", cause="client-gone")
    assert talk.poll() == []
    talk.now_s = 4.1
    assert talk.poll() == [held]


def test_engines_of_hybrid_models_keep_no_more_contexts_than_their_states_cover() -> None:
    talk = Talk(FIRST)
    talk.scheduler.datastore.index.states = StateSlots(count=12, chunk_tokens=4_096)
    assert where(talk.ask("a", 30_000, "a")) == FIRST
    assert isinstance(talk.ask("b", 30_000, "b"), Waiter)


def test_held_turns_go_to_an_engine_one_by_one() -> None:
    talk = Talk(FIRST)
    talk.ask("a", 90_000, "a")
    held = [talk.ask(name, 40_000, name) for name in "bc"]
    talk.end("a")
    talk.now_s = 5.0
    assert talk.poll() == held[:1]
    assert talk.poll() == []
    talk.scheduler.first_token("b", talk.now_s)
    assert talk.poll() == held[1:]


def test_a_held_turn_does_not_wait_for_ever_for_an_engine_that_always_has_much_to_compute() -> None:
    talk = Talk(FIRST)
    talk.ask("a", 90_000, "a")
    held = [talk.ask(name, 40_000, name) for name in "bc"]
    talk.end("a")
    talk.now_s = 5.0
    assert talk.poll() == held[:1]
    talk.now_s = 14.9
    assert talk.poll() == []
    talk.now_s = 15.1
    assert talk.poll() == held[1:]


def test_beside_other_requests_half_of_the_engines_are_kept_from_held_turns() -> None:
    talk = Talk(FIRST, SECOND)
    for name in "ab":
        talk.ask(name, 90_000, name)
    talk.ask("chat", 1_000, "")
    held = [talk.ask(name, 90_000, name) for name in "cd"]
    for name in ("a", "b", "chat"):
        talk.end(name)
    talk.now_s = 5.0
    assert talk.poll() == held[:1]
    talk.scheduler.first_token("c", talk.now_s)
    assert talk.poll() == held[1:]
