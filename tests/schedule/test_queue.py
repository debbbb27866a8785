"""Whose turn it is in the queue: bands, flows, deadlines, warm prefixes, patience, bounds."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest

from epp.config.schema import BandSettings, QueueBand, QueueSection
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


def queue(*waiters: Waiter, **settings: Any) -> RequestQueue:
    made = RequestQueue(QueueSection(**{"max_requests": 100, "max_bytes": 10_000, **settings}))
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


def test_in_a_round_robin_flows_take_turns_by_name_and_who_comes_late_has_the_turn_of_its_name() -> None:
    made = queue(
        *(waiter(f"{flow}{n}", flow=flow, tokens=900 * (flow == "a")) for n in range(3) for flow in "ac"),
        waiter("x0"),
        fairness="round-robin",
    )
    first = [made.take(lambda _: BOTH) for _ in range(2)]
    for one in first:
        assert one is not None
        made.served(0, one.flow, one.tokens, 0.0)
    made.put(waiter("A0", flow="A"))
    made.put(waiter("b0", flow="b"))
    names = [one.request.decision_id for one in first if one is not None]
    assert names + taken(made) == ["x0", "a0", "b0", "c0", "A0", "a1", "c1", "a2", "c2"]


def test_where_priorities_alone_are_fair_all_flows_are_one() -> None:
    made = queue(
        waiter("b0", flow="b"), waiter("b1", flow="b"), waiter("a0", flow="a"), fairness="global-strict"
    )
    assert taken(made) == ["b0", "b1", "a0"]


@pytest.mark.parametrize(
    ("served", "came_s", "first"),
    [
        # By hand: 0.8 (served - least) / (most - least) + 0.2 (came - first) / (last - first), the least wins.
        ({"a": [(500, 60)], "b": [(1_000, 60)]}, {"a": 2, "b": 0, "c": 4}, "c"),  # 0.5, 0.8, 0.2
        ({"a": [(500, 60)], "b": [(1_000, 60)]}, {"a": 2, "b": 0}, "a"),  # 0.2, 0.8
        ({"a": [(900, 60)], "b": [(1_000, 60)]}, {"a": 4, "b": 0, "c": 4}, "c"),  # 0.92, 0.8, 0.2
        (
            {"a": [(900, 60)], "b": [(1_000, 60)], "c": [(9_000, 60)]},
            {"a": 4, "b": 0, "c": 4},
            "b",
        ),  # .2, .01, 1
        ({"a": [(800, 0)], "b": [(500, 60)]}, {"a": 2, "b": 0}, "a"),  # 400 and 500: 0.2, 0.8
        ({"a": [(800, 0), (200, 60)], "b": [(500, 60)]}, {"a": 2, "b": 0}, "b"),  # 600 and 500: 1, 0
        ({}, {"a": 2, "b": 0}, "b"),
    ],
)
def test_by_attained_service_the_flow_goes_that_was_served_least_lately_and_waits_long(
    served: dict[str, list[tuple[float, float]]], came_s: dict[str, float], first: str
) -> None:
    made = queue(fairness="program-aware")
    for flow, charges in served.items():
        for tokens, at_s in charges:
            made.served(0, flow, tokens, at_s)
    for flow, at_s in came_s.items():
        made.put(waiter(flow, flow=flow, came_s=at_s))
    one = made.take(lambda _: BOTH)
    assert one is not None
    assert one.flow == first


@pytest.mark.parametrize(
    ("came_s", "first"),
    [
        ({"deep": 20.0, "new": 19.0}, "deep"),  # its fourth turn: 4 against 1 and 0.05
        ({"deep": 90.0, "new": 10.0}, "new"),  # 4 against 1 and 80 * 0.05
        ({"deep": 150.0, "new": 149.0}, "new"),  # it was idle for more than 120 s
    ],
)
def test_by_turns_the_flow_goes_that_had_most_unless_another_waits_long(
    came_s: dict[str, float], first: str
) -> None:
    made = queue(fairness="turn-priority")
    for at_s in (1.0, 2.0, 3.0):
        made.served(0, "deep", 1000.0, at_s)
    for flow, at_s in came_s.items():
        made.put(waiter(flow, flow=flow, came_s=at_s))
    one = made.take(lambda _: BOTH)
    assert one is not None
    assert one.flow == first


def test_bands_have_bounds_of_their_own_and_all_of_them_one() -> None:
    bands = [QueueBand(priority=5, max_requests=1)]
    negative = BandSettings(max_bytes=15)
    made = queue(bands=bands, negative=negative, total_requests=5, total_bytes=70)

    def admitted(band: int, held_bytes: int = 10) -> bool:
        try:
            made.put(waiter("", band=band, held_bytes=held_bytes))
        except NotAdmittedError:
            return False
        return True

    assert [admitted(5), admitted(5)] == [True, False]
    assert [admitted(-1), admitted(-1), admitted(-2)] == [True, False, True]
    assert [admitted(0, 50), admitted(0), admitted(0), admitted(0)] == [False, True, True, False]


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
