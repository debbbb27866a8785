"""What is nobody's doing: outages, silence, time away, steps of the clock; and drift, which they are not."""

from __future__ import annotations

import copy
import functools

import pytest

from tests.kit.tuning import INCUMBENT, NEW, Deployment, Effect, quick, reached, when_new
from tests.tuner.test_life import BETTER, frozen


def stays_frozen(world: Deployment, ticks: int = 150) -> None:
    """Nothing thaws it for so long."""
    for _ in range(ticks):
        world.tick()
        assert frozen(world), world.state.reason


def test_drift_thaws_and_sameness_does_not() -> None:
    world = Deployment(when_new(Effect()))
    world.run(frozen)
    stays_frozen(world)
    world.prompt_tokens = 3000
    world.run(lambda w: not frozen(w), ticks=200)
    assert "drift: mean prompt" in world.state.reason
    world.run(frozen)
    for _ in range(150):  # a stretch of time to compare with is only begun once frozen
        world.tick()
    world.effect = lambda _: Effect(ttft=2.5)
    world.run(lambda w: not frozen(w), ticks=200)
    assert "slow requests" in world.state.reason


@functools.cache
def _frozen_world() -> Deployment:
    world = Deployment(when_new(Effect()))
    world.run(frozen)
    world.run(lambda w: w.state.reference is not None)
    for _ in range(20):
        world.tick()
    return world


def frozen_world() -> Deployment:
    """Frozen for long enough to have something to compare with."""
    return copy.deepcopy(_frozen_world())


def test_silence_is_no_drift() -> None:
    world = frozen_world()
    world.now_wall_s += 7200.0
    stays_frozen(world)
    world.prompt_tokens = 3000
    world.run(lambda w: not frozen(w), ticks=200)
    assert "drift: mean prompt" in world.state.reason


def test_bursts_with_silence_between_them_make_a_baseline() -> None:
    world = Deployment(when_new(Effect()), settings=quick(baseline_s=300.0), tick_s=100.0)
    for _ in range(4):
        assert "requests, slow above" not in world.words(), "silence is no time of it"
        world.tick()
        world.now_wall_s += 600.0
    assert "requests, slow above" in world.words()


def test_an_outage_is_no_drift() -> None:
    world = frozen_world()
    world.effect = lambda _: Effect(fails=0.95)
    stays_frozen(world, 5)
    world.effect = lambda _: Effect()
    stays_frozen(world)
    world.effect = lambda _: Effect(ttft=2.5)
    world.run(lambda w: not frozen(w), ticks=200)
    assert "drift: share of slow requests" in world.state.reason


@pytest.mark.parametrize("phase", ["screen", "switchback", "probation"])
@pytest.mark.parametrize("seed", [1, 8])
def test_an_outage_is_charged_to_no_arm_whenever_it_begins(phase: str, seed: int) -> None:
    world = reached(phase, BETTER, seed=seed, tick_s=10.0)
    for _ in range(8 + seed):
        world.tick()
    assert world.state.phase == phase
    incumbent = world.state.incumbent
    world.effect = lambda _: Effect(fails=0.95)
    world.run(lambda w: w.state.paused != "", ticks=60)
    assert "unwell" in world.state.paused
    assert (world.state.phase, world.state.incumbent) == (phase, incumbent)


def test_a_trial_that_meets_two_outages_ends_and_is_no_fruitless_one() -> None:
    world = Deployment(when_new(Effect()), [NEW], settings=quick(stage_requests=3000))
    world.run(lambda w: w.state.phase == "screen")
    world.effect = lambda _: Effect(fails=0.9)
    world.run(lambda w: w.state.phase != "screen", ticks=200)
    assert "became unwell 2 times" in world.words()
    assert (world.state.phase, world.state.fruitless, world.state.candidate) == ("baseline", 0, None)


@pytest.mark.parametrize(
    ("phase", "within_s"), [("screen", 240.0), ("switchback", 240.0), ("probation", 480.0)]
)
def test_weights_that_fail_by_themselves_still_end_quickly(phase: str, within_s: float) -> None:
    world = reached(phase, BETTER, tick_s=10.0, settings=quick(probation_every=4))
    for _ in range(8):
        world.tick()
    since = world.now_wall_s
    world.effect = when_new(Effect(fails=0.95))
    world.run(lambda w: w.state.phase != phase)
    assert "failed requests" in world.state.reason
    assert world.state.incumbent == INCUMBENT
    assert world.now_wall_s - since <= within_s


@pytest.mark.parametrize(("phase", "away_s"), [("screen", 7 * 3600.0), ("probation", 49 * 3600.0)])
def test_time_away_is_no_time_of_a_stage(phase: str, away_s: float) -> None:
    world = reached(phase, BETTER, settings=quick(stage_s=600.0))
    world.tick()
    lasted_s = world.now_wall_s - world.state.since_wall_s
    world.now_wall_s += away_s
    world.restart()
    for _ in range(2):
        world.tick()
    assert (world.state.phase, world.state.fruitless) == (phase, 0)
    assert world.state.trial is not None
    assert world.now_wall_s - world.state.since_wall_s <= lasted_s + world.settings.stages.lease_s + 90.0
