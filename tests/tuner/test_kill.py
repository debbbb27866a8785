from __future__ import annotations

import functools

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from epp.learn.tuner.machine import resume, start, step
from epp.learn.tuner.state import Observed, Rules, State, from_json, to_json
from tests.kit.tuning import BOUNDS, INCUMBENT, Deployment, Effect, quick

NEW = {"a": 2.0, "b": 1.0}


def world() -> Deployment:
    return Deployment(
        lambda weights: Effect(ttft=0.3, e2e=0.7) if weights["a"] == 2.0 else Effect(),
        [NEW],
        rate_per_s=4.0,
        tick_s=120.0,
        settings=quick(baseline_requests=600, stage_requests=30, stage_s=60.0, probation_pairs=4),
    )


def essence(state: State) -> bytes:
    """All but what counts publications."""
    return to_json(msgspec.structs.replace(state, serial=0, published="", published_wall_s=0.0))


TICKS = 110


@functools.cache
def undisturbed() -> list[bytes]:
    """States after each tick of a life that nothing happens to; too long to be a test's argument."""
    whole, states = world(), []
    for _ in range(TICKS):
        whole.tick()
        states.append(essence(whole.state))
    phases = {from_json(text).phase for text in states}
    assert {"baseline", "screen", "ramp", "switchback", "probation"} <= phases
    return states


@settings(max_examples=2, deadline=None)
@given(
    kills=st.sets(st.integers(0, TICKS - 1), max_size=20),
    lost=st.sets(st.integers(0, TICKS - 1), max_size=20),
)
@example(kills={2}, lost=set())  # just after a rehearsal was asked for, and answered
def test_killed_anywhere_it_goes_on_as_if_it_had_not_been(kills: set[int], lost: set[int]) -> None:
    killed = world()
    for tick in range(TICKS):
        if tick in lost:  # the step was taken and its state never reached the disk: it is taken again
            step(killed.state, Observed(killed.now_wall_s + 120.0, killed.samples(), "?"), killed.rules)
        killed.tick()
        if tick in kills:
            killed.restart()
        assert essence(killed.state) == undisturbed()[tick]


def test_a_step_leaves_its_state_alone() -> None:
    run = world()
    for _ in range(30):
        before = to_json(run.state)
        step(run.state, Observed(run.now_wall_s + 120.0, run.samples(), "x"), run.rules)
        assert to_json(run.state) == before
        run.tick()


def test_other_bounds_after_a_restart_are_obeyed() -> None:
    run = world()
    run.run(lambda w: w.state.phase == "switchback")
    rules = Rules(run.settings, {"a": (1.5, 10.0), "b": BOUNDS["b"]})
    state, _ = resume(run.state, rules, run.now_wall_s)
    assert state.incumbent == {"a": 1.5, "b": 1.0}
    assert (state.phase, state.trial, state.history[-1].how) == ("baseline", None, "clipped")


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"policy": "x"}'])
def test_a_state_that_is_none_is_refused(text: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        from_json(text)


def test_every_cut_of_a_state_is_refused() -> None:
    text = to_json(start("p", INCUMBENT, Rules(quick(), BOUNDS), 1.0))
    for end in range(len(text)):
        with pytest.raises(msgspec.DecodeError):
            from_json(text[:end])
