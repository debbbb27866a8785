"""Paths: which connection a request finds, what is learned of it, and what that makes the next one cost."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.signals.duration import cold_ms, foretell, network_ms
from epp.signals.paths import IDLE_S, NONE_IDLE, PathTable, Travelled, cold_body_ms
from epp.types import FIRST_FLIGHT_BYTES, RequestView, upload_doublings
from tests.kit.fleets import fleet_view

RTT_MS = 200.0
BODY_BYTES = 72_000
COLD = Travelled(anew=True, opened_ms=215.0)


def warm(round_trips: float) -> Travelled:
    return Travelled(anew=False, first_byte_ms=round_trips * RTT_MS)


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


def told(paths: PathTable, idle: int, what: Travelled, times: int = 1, slot: int = 0) -> None:
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


@pytest.mark.parametrize(("idle_s", "expected"), [(0.0, 0), (IDLE_S[0], 1), (5.0, 2), (59.0, 3), (1e4, 5)])
def test_idle_times_are_told_apart(idle_s: float, expected: int) -> None:
    paths = table("far")
    paths.ended(0, 100.0)
    assert paths.started(0, 100.0 + idle_s) == expected


def test_connections_go_with_the_process_and_with_the_endpoint() -> None:
    for gone in ("close", "forget"):
        paths = table("far")
        paths.ended(0, 1.0)
        getattr(paths, gone)(0)
        assert paths.started(0, 1.0) == NONE_IDLE
        if gone == "forget":
            paths.ended(0, 2.0)
            assert paths.started(0, 2.0) == NONE_IDLE, "an end of a request to one that has left"


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


def test_endpoints_of_a_region_share_what_is_learned_and_not_their_connections() -> None:
    paths = table("far", "far", "near")
    for what in (COLD, warm(1.0)):
        told(paths, 0, what, 25)
    for slot in range(3):
        paths.ended(slot, 10.0)
    paths.started(0, 10.1)
    first, second, other = columns(paths, 10.1, 3)
    assert first[0] > 0.8, "none of its own is idle"
    assert second[0] == pytest.approx(0.5, abs=0.05)
    assert other[0] < 0.1


def test_engines_that_close_early_are_found_out() -> None:
    paths = table("far")
    told(paths, 1, warm(1.5), 50)
    told(paths, 2, COLD, 50)
    paths.ended(0, 0.0)
    chances = [columns(paths, at_s)[0][0] for at_s in (2.0, 10.0, 30.0)]
    assert chances[0] < 0.1
    assert chances[1] > 0.9
    assert chances[2] >= chances[1], "an older one is no likelier to be there"


def test_few_long_lived_connections_make_the_chance_go_to_nothing_by_themselves() -> None:
    paths = table("far")
    told(paths, NONE_IDLE, COLD, 2)
    assert columns(paths, 0.0)[0][0] > 0.9
    told(paths, NONE_IDLE, warm(1.2), 200)
    assert columns(paths, 0.0)[0][0] < 0.05, "not even with more in flight than ever"


def test_what_was_long_ago_fades() -> None:
    paths = table("far")
    told(paths, 0, COLD, 500)
    told(paths, 0, warm(1.0), 2500)
    assert columns(paths, 0.0)[0][0] < 1.0
    paths.ended(0, 0.0)
    assert columns(paths, 0.5)[0][0] < 0.02


def test_bodies_are_priced_as_they_were_seen_to_travel() -> None:
    paths = table("far")
    told(paths, 0, warm(1.5), 9)
    told(paths, 0, warm(9.0), 3)  # an engine that was busy
    told(paths, 0, Travelled(anew=False), 3)
    paths.ended(0, 0.0)
    rounds = columns(paths, 0.5)[0][2]
    assert rounds * upload_doublings(BODY_BYTES) == pytest.approx(0.5)
    assert columns(paths, 30.0)[0][2] == 1.0, "windows that fell back meanwhile were not seen"


@pytest.mark.parametrize(
    ("what", "rtt_ms", "body_bytes"),
    [
        (Travelled(anew=False, first_byte_ms=250.0), RTT_MS, FIRST_FLIGHT_BYTES),
        (Travelled(anew=False, first_byte_ms=2.0), 1.0, BODY_BYTES),
        (Travelled(anew=False, first_byte_ms=250.0), math.nan, BODY_BYTES),
        (Travelled(anew=False, first_byte_ms=-1.0), RTT_MS, BODY_BYTES),
        (Travelled(anew=False, first_byte_ms=1e9), RTT_MS, BODY_BYTES),
        (Travelled(anew=True, opened_ms=200.0, first_byte_ms=600.0), RTT_MS, BODY_BYTES),
    ],
)
def test_what_tells_nothing_of_a_warm_body_teaches_nothing(
    what: Travelled, rtt_ms: float, body_bytes: int
) -> None:
    paths = table("far")
    paths.observe(0, 0, what, rtt_ms=rtt_ms, body_bytes=body_bytes)
    paths.ended(0, 0.0)
    assert columns(paths, 0.5)[0][2] == 1.0


# Measured over an emulated link of 210 ms without loss: body, first byte after a connect, and without one.
MEASURED = [(2_000, 212.0, 211.0), (20_000, 431.0, 288.0), (72_000, 750.0, 329.0), (200_000, 1_084.0, 332.0)]


@pytest.mark.parametrize(("body_bytes", "cold", "warm_ms"), MEASURED)
def test_the_formula_of_a_cold_body_is_what_was_measured(
    body_bytes: int, cold: float, warm_ms: float
) -> None:
    assert cold_body_ms(210.0, body_bytes) == pytest.approx(cold, rel=0.1)
    assert cold_ms(210.0, body_bytes, 215.0) == pytest.approx(215.0 + cold, rel=0.1)
    learned = table("far")
    for _ in range(5):
        learned.observe(0, 0, Travelled(anew=False, first_byte_ms=329.0), rtt_ms=210.0, body_bytes=72_000)
    learned.ended(0, 0.0)
    rounds = columns(learned, 0.1)[0][2]
    assert network_ms(210.0, body_bytes, rounds) == pytest.approx(warm_ms, rel=0.2)


def test_people_see_what_a_body_of_the_path_costs() -> None:
    paths = table("far", "far", "near")
    told(paths, NONE_IDLE, COLD, 1)
    told(paths, 0, warm(1.5), 3)
    shown = paths.describe(np.array([RTT_MS, math.nan, 5.0]))
    assert set(shown) == {"far"}
    far = shown["far"]
    assert (far.requests, far.cold, far.connect_ms, far.body_bytes) == (4, 1, 215.0, BODY_BYTES)
    assert far.cold_share == pytest.approx(0.25, abs=0.01)
    assert far.warm_ms == pytest.approx(1.5 * RTT_MS)
    assert far.cold_ms == pytest.approx(215.0 + cold_body_ms(RTT_MS, BODY_BYTES))


def test_a_path_nobody_uses_any_more_is_forgotten() -> None:
    paths = table("far", "far")
    told(paths, 0, COLD, 100)
    paths.forget(0)
    assert paths.describe(np.array([RTT_MS, RTT_MS]))["far"].requests == 100
    paths.forget(1)
    assert paths.describe(np.array([RTT_MS, RTT_MS])) == {}
    paths.assign(0, "far")
    paths.ended(0, 0.0)
    assert columns(paths, 0.1)[0][0] < 0.1


def test_a_cold_chance_is_in_what_is_foretold() -> None:
    request = RequestView("d", body_bytes=BODY_BYTES)
    base: dict[str, Any] = {"rtt_ms": [RTT_MS], "connect_ms": [215.0], "prefill_base_ms": [0.0]}
    seen = {
        chance: foretell(request, fleet_view(1, **base, cold_chance=[chance], upload_rounds=[0.2]), 0)
        for chance in (0.0, 0.5, 1.0)
    }
    assert seen[0.0].first_token_s * 1e3 == pytest.approx(network_ms(RTT_MS, BODY_BYTES, 0.2))
    assert seen[1.0].first_token_s * 1e3 == pytest.approx(cold_ms(RTT_MS, BODY_BYTES, 215.0))
    both = (seen[0.0].first_token_s + seen[1.0].first_token_s) / 2
    assert seen[0.5].first_token_s == pytest.approx(both)


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
            seen = Travelled(what == "cold", value, value * 10)
            paths.observe(slot, int(value) % (NONE_IDLE + 1), seen, rtt_ms=value, body_bytes=int(value * 1e3))
    before = columns(paths, now_s, 3)
    later = columns(paths, now_s + 30.0, 3)
    for (chance, opened_ms, rounds), (older, _, _) in zip(before, later, strict=True):
        assert 0.0 <= chance <= older <= 1.0
        assert opened_ms >= 0.0
        assert 0.0 <= rounds <= 1.0
