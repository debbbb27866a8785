from __future__ import annotations

import functools

import msgspec
from hypothesis import example, given, settings
from hypothesis import strategies as st

from epp_lab.tuner.machine import step
from epp_lab.tuner.state import Observed, TunerState
from tests.kit.tuning import NEW, Deployment, Effect, again, quick, when_new


def world() -> Deployment:
    return Deployment(
        when_new(Effect(ttft=0.3, e2e=0.7)),
        [NEW],
        rate_per_s=4.0,
        tick_s=120.0,
        settings=quick(baseline_requests=600, stage_requests=30, stage_s=60.0, probation_pairs=4),
    )


def essence(state: TunerState) -> bytes:
    """All but what counts publications."""
    return msgspec.json.encode(msgspec.structs.replace(state, serial=0, published="", published_wall_s=0.0))


TICKS = 110


@functools.cache
def undisturbed() -> list[bytes]:
    """States after each tick of a life that nothing happens to; too long to be a test's argument."""
    whole, states = world(), []
    for _ in range(TICKS):
        whole.tick()
        states.append(essence(whole.state))
    phases = {msgspec.json.decode(text, type=TunerState).phase for text in states}
    assert {"baseline", "screen", "ramp", "switchback", "probation"} <= phases
    return states


@settings(max_examples=1)
@given(
    kills=st.sets(st.integers(0, TICKS - 1), max_size=20),
    lost=st.sets(st.integers(0, TICKS - 1), max_size=20),
)
@example(kills={2}, lost=set())  # just after a rehearsal was asked for, and answered
def test_killed_anywhere_it_goes_on_as_if_it_had_not_been(kills: set[int], lost: set[int]) -> None:
    killed = world()
    for tick in range(TICKS):
        if tick in lost:  # the step was taken and its state never reached the disk: it is taken again
            step(again(killed.state), Observed(killed.now_wall_s + 120.0, killed.samples()), killed.rules)
        killed.tick()
        if tick in kills:
            killed.restart()
        assert essence(killed.state) == undisturbed()[tick]
