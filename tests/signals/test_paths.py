"""Paths: which connection a request finds, what is learned of it, and what that makes the next one cost."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.signals.paths import NONE_IDLE, ConnectionTiming, PathTable
from epp.types import network_ms, upload_doublings

RTT_MS = 200.0
BODY_BYTES = 72_000
COLD = ConnectionTiming(is_new=True, connect_ms=215.0)


def warm(round_trips: float) -> ConnectionTiming:
    return ConnectionTiming(is_new=False, first_byte_ms=round_trips * RTT_MS)


def table(*paths: str) -> PathTable:
    made = PathTable()
    made.resize(len(paths))
    for slot, path in enumerate(paths):
        made.assign(slot, path)
    return made


def columns(paths: PathTable, now_s: float, count: int = 1) -> list[list[float]]:
    seen = np.empty((3, count))
    paths.fill(seen, slice(0, count), np.full(count, RTT_MS), now_s)
    return [[float(value) for value in row] for row in seen.T]


def told(paths: PathTable, idle: int, what: ConnectionTiming, times: int = 1, slot: int = 0) -> None:
    for _ in range(times):
        paths.observe(slot, idle, what, rtt_ms=RTT_MS, body_bytes=BODY_BYTES)


def test_a_request_takes_the_connection_that_was_used_last() -> None:
    paths = table("far")
    assert paths.started(0, 0.0) == NONE_IDLE
    assert paths.started(0, 0.0) == NONE_IDLE, "one request a connection"
    paths.ended(0, 10.0)
    paths.ended(0, 20.0)
    assert paths.started(0, 20.5) == 0, "idle for half a second"
    assert paths.started(0, 20.5) == 2, "the other one for more than ten"
    assert paths.started(0, 20.5) == NONE_IDLE


def test_nothing_known_costs_nothing_and_leaves_all_of_slow_start() -> None:
    paths = table("far")
    paths.ended(0, 0.0)
    assert columns(paths, 1.0) == [[0.0, 0.0, 1.0]]
    assert paths.describe(np.array([RTT_MS])) == {}


def test_once_one_path_tells_priors_hold_for_the_others() -> None:
    paths = table("far", "near")
    told(paths, NONE_IDLE, COLD)
    paths.ended(1, 10.0)
    (_, opened_ms, _), (young, other_ms, _) = columns(paths, 10.0, 2)
    assert opened_ms == 215.0, "as it was seen"
    assert other_ms == RTT_MS, "a round trip"
    assert young < 0.1
    (_, _, _), (old, _, _) = columns(paths, 400.0, 2)
    assert old > 0.6, "idle for minutes"
    paths.started(1, 400.0)
    assert columns(paths, 400.0, 2)[1][0] > 0.9, "none is idle"


def test_bodies_are_priced_as_they_were_seen_to_travel() -> None:
    paths = table("far")
    told(paths, 0, warm(1.5), 9)
    told(paths, 0, warm(9.0), 3)  # an engine that was busy
    told(paths, 0, ConnectionTiming(is_new=False), 3)
    paths.ended(0, 0.0)
    rounds = columns(paths, 0.5)[0][2]
    assert rounds * upload_doublings(BODY_BYTES) == pytest.approx(0.5)
    assert columns(paths, 30.0)[0][2] == 1.0, "windows that fell back meanwhile were not seen"


# Measured over an emulated link of 210 ms without loss: body, first byte after a connect, and without one.
MEASURED = [(2_000, 212.0, 211.0), (20_000, 431.0, 288.0), (72_000, 750.0, 329.0), (200_000, 1_084.0, 332.0)]


@pytest.mark.parametrize(("body_bytes", "cold", "warm_ms"), MEASURED)
def test_the_formula_of_a_body_is_what_was_measured(body_bytes: int, cold: float, warm_ms: float) -> None:
    learned = table("far")
    for _ in range(5):
        learned.observe(
            0, 0, ConnectionTiming(is_new=False, first_byte_ms=329.0), rtt_ms=210.0, body_bytes=72_000
        )
    learned.ended(0, 0.0)
    rounds = columns(learned, 0.1)[0][2]
    assert network_ms(210.0, body_bytes, rounds) == pytest.approx(warm_ms, rel=0.2)
    assert network_ms(210.0, body_bytes, rounds, cold=1.0) == pytest.approx(cold, rel=0.1)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["start", "end", "cold", "warm", "close", "wait"]),
        st.integers(0, 2),
        st.floats(0, 500),
    ),
    max_size=60,
)


@given(STEPS)
def test_whatever_is_told_chances_are_chances_and_rise_with_idle_time(
    steps: list[tuple[str, int, float]],
) -> None:
    paths, now_s = table("far", "far", "near"), 0.0
    for what, slot, value in steps:
        if what == "start":
            assert 0 <= paths.started(slot, now_s) <= NONE_IDLE
        elif what == "end":
            paths.ended(slot, now_s)
        elif what == "close":
            paths.close(slot)
        elif what == "wait":
            now_s += value
        else:
            seen = ConnectionTiming(what == "cold", value, value * 10)
            paths.observe(slot, int(value) % (NONE_IDLE + 1), seen, rtt_ms=value, body_bytes=int(value * 1e3))
    before = columns(paths, now_s, 3)
    later = columns(paths, now_s + 30.0, 3)
    for (chance, opened_ms, rounds), (older, _, _) in zip(before, later, strict=True):
        assert 0.0 <= chance <= older <= 1.0
        assert opened_ms >= 0.0
        assert 0.0 <= rounds <= 1.0
