"""Whose turn it is in the queue: bands, flows, deadlines, warm prefixes, patience, bounds."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest

from epp.config.schema import QueueSection
from epp.errors import NotAdmittedError
from epp.schedule.queue import RequestQueue, Waiter
from epp.types import RequestInfo

if TYPE_CHECKING:
    from collections.abc import Collection

BOTH = frozenset({0, 1})
NEVER = math.inf


def waiter(
    name: str,
    *,
    band: int = 0,
    flow: str = "",
    tokens: int = 100,
    best: int | frozenset[int] = BOTH,
    came_s: float = 0.0,
    patience_s: float = 0.0,
    deadline_s: float = NEVER,
    expires_s: float = 30.0,
    held_bytes: int = 10,
) -> Waiter:
    request = RequestInfo(decision_id=name, priority=band, prompt_tokens=tokens)
    return Waiter(request, flow, held_bytes, came_s, best, BOTH, patience_s, deadline_s, expires_s)


def queue(*waiters: Waiter, max_requests: int = 100, max_bytes: int = 10_000) -> RequestQueue:
    made = RequestQueue(QueueSection(max_requests=max_requests, max_bytes=max_bytes))
    for one in waiters:
        made.put(one)
    return made


def taken(made: RequestQueue, open_slots: Collection[int] = BOTH) -> list[str]:
    """Name what is taken, in order, each charged to its flow."""
    names = []
    while (one := made.take(lambda _: open_slots)) is not None:
        made.served(one.request.priority, one.flow, one.tokens, one.came_s)
        names.append(one.request.decision_id)
    return names


def test_the_highest_band_goes_first() -> None:
    assert taken(queue(waiter("low"), waiter("high", band=1), waiter("least", band=-1))) == [
        "high",
        "low",
        "least",
    ]


def test_a_flow_with_prompts_twice_as_long_has_half_as_many_turns() -> None:
    long = [waiter(f"a{n}", flow="a", tokens=200) for n in range(3)]
    short = [waiter(f"b{n}", flow="b", tokens=100) for n in range(6)]
    assert "".join(name[0] for name in taken(queue(*long, *short))) == "abbabbabb"


def test_a_flow_that_comes_late_has_saved_up_no_turns() -> None:
    made = queue(*(waiter(f"a{n}", flow="a") for n in range(6)))
    for _ in range(3):
        one = made.take(lambda _: BOTH)
        assert one is not None
        made.served(0, "a", one.tokens, 0.0)
    for n in range(3):
        made.put(waiter(f"b{n}", flow="b"))
    assert taken(made) == ["b0", "a3", "b1", "a4", "b2", "a5"]


def test_what_goes_without_waiting_counts_as_a_turn() -> None:
    made = queue(waiter("a", flow="a"), waiter("b", flow="b"))
    made.served(0, "a", 1_000.0, 0.0)
    assert taken(made) == ["b", "a"]


def test_within_a_flow_the_earliest_deadline_goes_first_and_those_without_one_last() -> None:
    made = queue(waiter("none"), waiter("late", deadline_s=9.0), waiter("soon", deadline_s=5.0))
    assert taken(made) == ["soon", "late", "none"]


def test_a_request_waits_for_its_best_engine_until_its_patience_is_over() -> None:
    made = queue(waiter("x", best=0, patience_s=4.0))
    assert taken(made, {1}) == []
    assert made.due_s == 4.0
    assert made.expire(4.0) == []
    assert taken(made, {1}) == ["x"]


def test_an_engine_takes_who_is_warm_there_before_the_impatient_who_came_little_earlier() -> None:
    cold, warm = waiter("cold", best=0, patience_s=4.0), waiter("warm", best=1, came_s=3.0, patience_s=9.0)
    made = queue(cold, warm)
    made.expire(5.0)
    assert taken(made, {1}) == ["warm", "cold"]


def test_an_engine_takes_the_impatient_before_the_warm_who_came_much_later() -> None:
    cold, warm = waiter("cold", best=0, patience_s=4.0), waiter("warm", best=1, came_s=6.0, patience_s=9.0)
    made = queue(cold, warm)
    made.expire(6.0)
    assert taken(made, {1}) == ["cold", "warm"]


def test_what_is_put_back_waits_in_its_old_place() -> None:
    made = queue(waiter("first"), waiter("second"))
    first = made.take(lambda _: BOTH)
    assert first is not None
    made.put_back(first, impatient=True)
    assert taken(made) == ["first", "second"]


def test_what_outlives_its_time_is_dropped() -> None:
    made = queue(waiter("old", expires_s=3.0), waiter("young", expires_s=9.0))
    assert [one.request.decision_id for one in made.expire(3.0)] == ["old"]
    assert taken(made) == ["young"]


@pytest.mark.parametrize(("requests", "held"), [(2, 10_000), (100, 25)])
def test_a_full_band_takes_no_more_and_others_do(requests: int, held: int) -> None:
    made = queue(waiter("a"), waiter("b"), max_requests=requests, max_bytes=held)
    with pytest.raises(NotAdmittedError):
        made.put(waiter("c"))
    made.put(waiter("high", band=1))
    assert taken(made) == ["high", "a", "b"]


def test_who_leaves_frees_its_place() -> None:
    gone = waiter("gone", best=0, patience_s=1.0)
    made = queue(gone, waiter("stays"), max_requests=2)
    made.expire(2.0)  # it waits for any engine as well by now
    made.remove(gone)
    made.put(waiter("new"))
    assert taken(made) == ["stays", "new"]


def test_flows_without_requests_are_forgotten() -> None:
    made = queue(waiter("stays"))
    for n in range(5_000):
        made.served(0, f"flow{n}", 10.0, 0.0)
    assert len(made._bands[0].flows) < 1_100
