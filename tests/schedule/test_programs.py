"""Who keeps a place in a KV cache: conversations with the active sets, worked out by hand.

Engines hold 1,000 tokens and take .04 s a token: a cache is filled in 40 s, which is the lease.
"""

from __future__ import annotations

import math

import pytest

from epp.schedule.program_book import ProgramBook
from epp.schedule.programs import Guard, Program, ProgramSets
from epp.types import RequestInfo

FIRST, SECOND = 0, 1


def sets_of(engines: int = 1) -> ProgramSets:
    sets = ProgramSets(quantum_s=300.0, age_s=120.0)
    for slot in range(engines):
        sets.set_engine(slot, 1_000.0, 0.04)
    return sets


def admitted(sets: ProgramSets, tokens: float, now_s: float = 0.0, *, slot: int = FIRST) -> Program:
    """Return a program that has a place and is idle from then on."""
    program = Program(context_tokens=tokens)
    assert sets.place(program, {slot}, 0.0, now_s) == slot
    return program


def test_programs_are_admitted_up_to_95_percent_of_the_cache() -> None:
    sets = sets_of()
    admitted(sets, 500.0)
    assert sets.place(Program(context_tokens=451.0), {FIRST}, 0.0, 0.0) is None
    assert sets.place(Program(context_tokens=450.0), {FIRST}, 0.0, 0.0) == FIRST


def test_what_programs_share_takes_no_room() -> None:
    sets = sets_of()
    admitted(sets, 900.0)
    assert sets.place(Program(context_tokens=450.0, shared_tokens=400.0), {FIRST}, 0.0, 0.0) == FIRST


def test_a_program_is_admitted_at_home_and_else_where_there_is_most_room() -> None:
    sets = sets_of(2)
    admitted(sets, 300.0, slot=FIRST)
    assert sets.place(Program(context_tokens=100.0), {FIRST, SECOND}, 0.0, 0.0) == SECOND
    assert sets.place(Program(home=FIRST, context_tokens=100.0), {FIRST, SECOND}, 0.0, 0.0) == FIRST
    assert sets.place(Program(home=SECOND, context_tokens=900.0), {FIRST, SECOND}, 0.0, 0.0) is None


def test_a_context_larger_than_a_cache_is_admitted_where_nothing_else_is() -> None:
    sets = sets_of()
    assert sets.place(Program(context_tokens=2_000.0), {FIRST}, 0.0, 0.0) == FIRST
    assert sets.place(Program(context_tokens=10.0), {FIRST}, 0.0, 0.0) is None


def test_an_idle_program_keeps_its_place_for_a_lease_and_longer_where_nobody_needs_it() -> None:
    sets = sets_of()
    old, young = admitted(sets, 450.0), admitted(sets, 450.0, now_s=10.0)
    waits = Program(context_tokens=400.0)
    assert sets.place(waits, {FIRST}, 39.0, 39.0) is None
    assert sets.place(waits, {FIRST}, 40.0, 40.0) == FIRST
    assert (old.active, young.active) == (False, True)


def test_a_program_with_a_turn_at_its_engine_keeps_its_place() -> None:
    sets = sets_of()
    busy = admitted(sets, 900.0)
    sets.sent(busy, FIRST, 0.0)
    waits = Program(context_tokens=400.0)
    assert sets.place(waits, {FIRST}, 1_000.0, 1_000.0) is None
    sets.ended(busy, 1_001.0)
    assert sets.place(waits, {FIRST}, 1_001.0, 1_001.0) == FIRST
    assert (busy.active, busy.home) == (False, FIRST)


def test_a_turn_beyond_its_age_displaces_only_who_ran_a_quantum() -> None:
    sets = sets_of()
    program = admitted(sets, 900.0)
    for now_s in (280.0, 299.0):  # it comes back in time, again and again
        sets.sent(program, FIRST, now_s)
        sets.ended(program, now_s)
    waits = Program(context_tokens=400.0)
    assert sets.place(waits, {FIRST}, 299.0, 299.0) is None
    assert sets.place(waits, {FIRST}, 119.0, 301.0) is None
    assert sets.place(waits, {FIRST}, 120.0, 301.0) == FIRST


def test_a_turn_beyond_its_age_drains_one_engine_turn_by_turn() -> None:
    sets = sets_of(2)
    idle, busy = admitted(sets, 450.0), admitted(sets, 450.0)
    other = admitted(sets, 900.0, slot=SECOND)
    for program in (busy, other):
        sets.sent(program, program.home, 1.0)
    sets.sent(idle, FIRST, 399.0)
    sets.ended(idle, 399.0)
    waits = Program(context_tokens=900.0)
    assert sets.place(waits, {FIRST, SECOND}, 200.0, 400.0) is None
    assert (idle.active, busy.active, other.active) == (False, True, True)
    sets.ended(busy, 410.0)
    assert sets.place(waits, {FIRST, SECOND}, 210.0, 410.0) == FIRST
    assert other.active


def test_contexts_that_outgrow_the_cache_by_5_percent_pause_who_ran_longest() -> None:
    sets = sets_of()
    old, young = admitted(sets, 450.0), admitted(sets, 450.0, now_s=5.0)
    sets.resize(young, 600.0, 0.0)
    sets.shrink(FIRST, 10.0)
    assert old.active
    sets.resize(young, 601.0, 0.0)
    sets.shrink(FIRST, 10.0)
    assert (old.active, young.active) == (False, True)


def test_other_traffic_takes_room_that_fades_within_a_lease() -> None:
    sets = sets_of()
    admitted(sets, 100.0, now_s=39.0)
    sets.count_others(FIRST, 300.0, 39.0)
    program = Program(context_tokens=600.0)
    assert sets.place(program, {FIRST}, 0.0, 39.0) is None  # .95 x (1,000 - 300) - 100 = 565
    assert sets.place(program, {FIRST}, 0.0, 59.0) == FIRST  # .95 x (1,000 - 300 / e^.5) - 100 = 677


def test_a_turn_that_went_elsewhere_takes_its_place_along() -> None:
    sets = sets_of(2)
    program = admitted(sets, 500.0)
    sets.sent(program, SECOND, 1.0)
    assert {slot: engine.used_tokens for slot, engine in sets.engines.items()} == {FIRST: 0.0, SECOND: 500.0}


def test_an_engine_that_dies_leaves_its_programs_without_a_home() -> None:
    sets = sets_of(2)
    program = admitted(sets, 500.0)
    sets.forget(FIRST)
    assert not program.active
    assert sets.place(program, {SECOND}, 0.0, 1.0) == SECOND


def test_the_guard_holds_while_contexts_are_a_fifth_of_engine_time_and_lets_go_later() -> None:
    guard, held = Guard(), list[bool]()
    for second in range(600):  # a fifth of one engine, then a sixth of it, then none
        guard.count(0.21 if second < 500 else 0.17 if second < 590 else 0.0, float(second))
        held.append(guard.look(1, float(second)))
    assert not held[100]
    assert all(held[499:])
    assert not guard.look(1, 700.0)
    share = guard.share
    guard.look(1, 820.0)
    assert guard.share == pytest.approx(share / math.e)


def ask(blocks: range, tokens: int, **known: object) -> RequestInfo:
    hashed: dict[str, object] = {"prompt_hash": tokens, "blocks": list(blocks)}
    return RequestInfo(prompt_tokens=tokens, block_tokens=10.0, **hashed | known)  # type: ignore[arg-type]


def book() -> ProgramBook:
    return ProgramBook(lambda _: None)


def test_a_key_names_one_program_of_a_model() -> None:
    found = book()
    one = found.find(ask(range(5), 50, program="a", namespace=1))
    assert one.known
    assert found.find(ask(range(9), 90, program="a", namespace=1)) is one
    assert found.find(ask(range(9), 90, program="a", namespace=2)) is not one


def test_without_a_key_a_prompt_that_goes_on_from_an_answered_one_is_the_same_program() -> None:
    found = book()
    first = found.find(ask(range(5), 55))
    assert not first.known
    found.answered(first, ask(range(5), 55))
    assert found.find(ask(range(5), 55)) is not first  # no longer: it does not go on
    assert found.find(ask(range(4), 99)) is not first
    assert found.find(ask(range(8), 80)) is first
    assert first.known


def test_a_turn_that_was_refused_and_is_sent_again_is_of_the_same_program() -> None:
    found = book()
    first = found.find(ask(range(5), 55))
    found.answered(first, ask(range(5), 55))
    assert found.find(ask(range(8), 80)) is first
    assert found.find(ask(range(8), 80)) is first
    assert found.find(ask(range(7), 77)) is not first  # another one that goes on from there: a template


def test_a_template_that_a_prompt_ends_with_names_no_program() -> None:
    found = book()
    template, more = ask(range(5), 51), ask(range(5), 58)
    found.answered(found.find(template), template)
    found.answered(found.find(more), more)  # goes on from it, as any request of that template would
    assert not found.find(ask(range(9), 90)).known


def test_a_response_that_is_gone_on_from_names_the_program() -> None:
    found = book()
    first = found.find(ask(range(5), 55))
    found.sent(first, ask(range(5), 55, stores=True), "d")
    found.stored("d", 77)
    assert found.find(ask(range(1), 9, previous_response=77)) is first
