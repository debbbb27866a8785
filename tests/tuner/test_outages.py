"""What is nobody's doing: outages, silence, time away, steps of the clock; and drift, which they are not."""

from __future__ import annotations

import msgspec
import pytest

from epp.learn.tuner.record import forget_open
from tests.kit.tuning import INCUMBENT, Deployment, Effect, quick
from tests.tuner.test_life import NEW, frozen, when_new


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


def frozen_world() -> Deployment:
    """Frozen for long enough to have something to compare with."""
    world = Deployment(when_new(Effect()))
    world.run(frozen)
    world.run(lambda w: w.state.reference is not None)
    for _ in range(20):
        world.tick()
    return world


@pytest.mark.parametrize("silent_s", [1200.0, 7200.0])
def test_silence_or_a_step_of_the_clock_is_no_drift(silent_s: float) -> None:
    world = frozen_world()
    world.now_wall_s += silent_s
    stays_frozen(world)
    world.prompt_tokens = 3000
    world.run(lambda w: not frozen(w), ticks=200)
    assert "drift: mean prompt" in world.state.reason


def test_silence_is_no_time_of_a_baseline() -> None:
    world = Deployment(when_new(Effect()), rate_per_s=60.0)
    world.tick()  # a burst, of more requests than a baseline needs
    assert world.state.baseline.requests > world.settings.stages.baseline_requests
    for _ in range(3):
        world.now_wall_s += 3600.0
        world.rate_per_s = 0.1
        world.tick()
    assert world.state.phase == "baseline"
    assert world.state.baseline.lasted_s < 4 * world.tick_s
    world.rate_per_s = 6.0
    world.run(lambda w: w.state.thresholds is not None, ticks=12)


def test_a_baseline_of_rare_requests_is_made_all_the_same() -> None:
    world = Deployment(when_new(Effect()), settings=quick(baseline_requests=20), rate_per_s=0.001)
    world.run(lambda w: w.state.thresholds is not None, ticks=2000)


@pytest.mark.parametrize(("fails", "ticks"), [(1.0, 150), (0.95, 5), (0.1, 150)])
def test_an_outage_is_no_drift(fails: float, ticks: int) -> None:
    world = frozen_world()
    world.effect = lambda _: Effect(fails=fails)
    stays_frozen(world, ticks)
    world.effect = lambda _: Effect()
    stays_frozen(world)
    world.effect = lambda _: Effect(ttft=2.5)
    world.run(lambda w: not frozen(w), ticks=200)
    assert "drift: share of slow requests" in world.state.reason


def test_what_is_compared_with_is_not_made_of_an_outage() -> None:
    world = Deployment(when_new(Effect()))
    world.run(frozen)
    world.effect = lambda _: Effect(fails=0.9)
    for _ in range(70):
        world.tick()
    world.effect = lambda _: Effect()
    stays_frozen(world, 200)
    assert "compared with nothing" in world.words()


def test_a_fleet_that_fails_is_nobodys_fault() -> None:
    world = Deployment(when_new(Effect()), [NEW], settings=quick(stage_requests=3000))
    world.run(lambda w: w.state.phase == "screen")
    for _ in range(8):
        world.tick()
    world.effect = lambda _: Effect(fails=0.9)
    world.run(lambda w: w.state.paused != "", ticks=20)
    assert "unwell" in world.state.paused
    assert world.plan.trial is None
    world.effect = when_new(Effect())
    world.run(lambda w: not w.state.paused, ticks=60)
    assert world.state.phase == "screen"
    assert world.plan.trial is not None


@pytest.mark.parametrize("phase", ["screen", "switchback", "probation"])
@pytest.mark.parametrize("seed", [1, 4, 8, 11])
def test_an_outage_is_charged_to_no_arm_whenever_it_begins(phase: str, seed: int) -> None:
    world = Deployment(when_new(Effect(ttft=0.4, e2e=0.85)), [NEW], seed=seed, tick_s=10.0)
    world.run(lambda w: w.state.phase == phase)
    for _ in range(8 + seed):
        world.tick()
    assert world.state.phase == phase
    incumbent = world.state.incumbent
    world.effect = lambda _: Effect(fails=0.95)
    world.run(lambda w: w.state.paused != "", ticks=60)
    assert "unwell" in world.state.paused
    assert (world.state.phase, world.state.incumbent) == (phase, incumbent)


def test_outages_undo_no_promotion_however_many_there_are() -> None:
    world = Deployment(when_new(Effect(ttft=0.4, e2e=0.85)), [NEW], settings=quick(probation_pairs=60))
    world.run(lambda w: w.state.phase == "probation")
    for _ in range(3):
        world.effect = lambda _: Effect(fails=0.9)
        world.run(lambda w: w.state.paused != "", ticks=60)
        world.effect = when_new(Effect(ttft=0.4, e2e=0.85))
        world.run(lambda w: not w.state.paused, ticks=60)
    assert (world.state.phase, world.state.incumbent) == ("probation", NEW)


def test_a_trial_that_meets_two_outages_ends_and_is_no_fruitless_one() -> None:
    world = Deployment(when_new(Effect()), [NEW], settings=quick(stage_requests=3000))
    world.run(lambda w: w.state.phase == "screen")
    world.effect = lambda _: Effect(fails=0.9)
    world.run(lambda w: w.state.phase != "screen", ticks=200)
    assert "became unwell 2 times" in world.words()
    assert (world.state.phase, world.state.fruitless, world.state.candidate) == ("baseline", 0, None)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("phase", "within_s"), [("screen", 240.0), ("switchback", 240.0), ("probation", 480.0)]
)
def test_weights_that_fail_by_themselves_still_end_quickly(phase: str, within_s: float, seed: int) -> None:
    settings = quick(probation_every=4)
    world = Deployment(when_new(Effect(ttft=0.4, e2e=0.85)), [NEW], seed=seed, tick_s=10.0, settings=settings)
    world.run(lambda w: w.state.phase == phase)
    for _ in range(8):
        world.tick()
    since = world.now_wall_s
    world.effect = when_new(Effect(fails=0.95))
    world.run(lambda w: w.state.phase != phase)
    assert "failed requests" in world.state.reason
    assert world.state.incumbent == INCUMBENT
    assert world.now_wall_s - since <= within_s


def test_all_requests_failing_starts_nothing() -> None:
    world = Deployment(lambda _: Effect(fails=1.0), [NEW])
    for _ in range(100):
        world.tick()
    assert (world.state.phase, world.asked) == ("baseline", 0)
    assert "unwell" in world.state.reason


@pytest.mark.parametrize(("phase", "away_s"), [("screen", 7 * 3600.0), ("probation", 49 * 3600.0)])
@pytest.mark.parametrize("stepped", [False, True])
def test_time_away_is_no_time_of_a_stage(phase: str, away_s: float, *, stepped: bool) -> None:
    world = Deployment(when_new(Effect(ttft=0.4, e2e=0.85)), [NEW], settings=quick(stage_s=600.0))
    world.run(lambda w: w.state.phase == phase)
    world.tick()
    lasted_s = world.now_wall_s - world.state.since_wall_s
    if stepped:  # as the loop does where the clock steps forward while it lives
        record = msgspec.structs.replace(world.state.record)
        forget_open(record)
        world.state = msgspec.structs.replace(world.state, trial=None, record=record)
    world.now_wall_s += away_s
    if not stepped:
        world.restart()
    for _ in range(2):
        world.tick()
    assert (world.state.phase, world.state.fruitless) == (phase, 0)
    assert world.state.trial is not None
    assert world.now_wall_s - world.state.since_wall_s <= lasted_s + world.settings.stages.lease_s + 90.0
