"""What a start with a persisted state makes of other bounds, other weights and other settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from epp.learn.tuner.plan import Split, parse_plan, render_plan
from epp.learn.tuner.settings import Goal, TunerSettings
from epp.learn.tuner.state import Freeze, RollBack, Rules
from epp.learn.tuner.status import status
from tests.kit.tuning import BOUNDS, INCUMBENT, Deployment, Effect

if TYPE_CHECKING:
    from collections.abc import Mapping

NEW = {"a": 2.0, "b": 1.0}
FEWER = {"a": (0.1, 10.0)}
MORE = {**BOUNDS, "c": (0.0, 5.0)}


def better(weights: Mapping[str, float]) -> Effect:
    return Effect(ttft=0.4, e2e=0.85) if weights["a"] == 2.0 else Effect()


def started_again(world: Deployment, rules: Rules) -> str:
    """A new start by other rules: its plan is one that pickers take. What it says."""
    world.rules, told = rules, len(world.notes)
    world.restart()
    for plan in (world.plan, world.plans[-1]):
        parse_plan(render_plan(plan), "weights.yaml", policy="gorgo-ms", bounds=dict(rules.bounds))
    return "\n".join(note.reason for note in world.notes[told:])


@pytest.mark.parametrize("phase", ["screen", "switchback"])
def test_bounds_that_leave_only_the_candidate_outside_end_its_trial(phase: str) -> None:
    world = Deployment(better, [NEW])
    world.run(lambda w: w.state.phase == phase)
    world.tick()
    said = started_again(world, Rules(world.settings, {"a": (0.1, 1.5), "b": BOUNDS["b"]}))
    assert "bounds have changed: a" in said
    assert (world.state.phase, world.state.candidate, world.plan.trial) == ("baseline", None, None)
    assert world.state.incumbent == INCUMBENT
    assert [change.how for change in world.state.history] == ["start"]
    world.run(lambda w: w.state.phase == "frozen")


def test_bounds_that_leave_the_old_weights_outside_end_a_probation() -> None:
    world = Deployment(better, [NEW])
    world.run(lambda w: w.state.phase == "probation")
    world.tick()
    said = started_again(world, Rules(world.settings, {"a": (1.5, 10.0), "b": BOUNDS["b"]}))
    assert "candidate 1 stays, though its probation is not over; the weights before are number 0" in said
    assert (world.state.phase, world.state.incumbent, world.state.previous) == ("baseline", NEW, None)


@pytest.mark.parametrize("phase", ["baseline", "screen", "switchback", "probation", "frozen"])
def test_a_weight_that_is_gone_is_forgotten(phase: str) -> None:
    world = Deployment(better, [NEW])
    world.run(lambda w: w.state.phase == phase)
    world.tick()
    said = started_again(world, Rules(world.settings, FEWER))
    assert "b is no weight any more" in said
    assert (world.state.phase, world.plan.trial) == ("baseline", None)
    assert set(world.state.incumbent) == {"a"}
    world.tick()


def test_a_new_weight_begins_as_it_is_configured() -> None:
    world = Deployment(better, [NEW])
    world.run(lambda w: w.state.phase == "screen")
    said = started_again(world, Rules(world.settings, MORE, {"a": 7.0, "c": 9.0}))
    assert "c is new" in said
    assert world.state.incumbent == {**INCUMBENT, "c": 5.0}
    world.tell(RollBack(world.now_wall_s, 0, "as it was"))
    assert world.state.incumbent == {**INCUMBENT, "c": 5.0}
    assert world.state.reason == "back to number 0 by request: as it was; bounds have changed: c is new"


def test_what_was_frozen_by_request_stays_frozen_in_other_bounds() -> None:
    world = Deployment(better, [NEW])
    world.tell(Freeze(world.now_wall_s, "a launch"))
    started_again(world, Rules(world.settings, {"a": (1.5, 10.0), "b": BOUNDS["b"]}))
    assert (world.state.phase, world.state.incumbent["a"]) == ("frozen", 1.5)


def with_goal(settings: TunerSettings, **changes: float | str) -> TunerSettings:
    return msgspec.structs.replace(settings, goal=Goal(**changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("phase", ["baseline", "screen", "switchback", "probation", "frozen"])
@pytest.mark.parametrize(
    "changes", [{"measure": "felt", "slow_ms": 9000.0}, {"e2e_margin": 0.02}, {"quantile": 0.9}]
)
def test_another_goal_begins_anew(phase: str, changes: dict[str, float | str]) -> None:
    world = Deployment(better, [NEW])
    world.run(lambda w: w.state.phase == phase)
    world.tick()
    kept = NEW if phase in ("probation", "frozen") else INCUMBENT
    said = started_again(world, Rules(with_goal(world.settings, **changes), BOUNDS))
    assert f"the goal has changed ({', '.join(changes)})" in said
    assert ("candidate 1 stays" in said) == (phase == "probation")
    state = world.state
    assert (state.phase, state.candidate, state.thresholds, state.fruitless) == ("baseline", None, None, 0)
    assert (state.incumbent, world.plan.trial, state.baseline.requests) == (kept, None, 0)
    assert "goal" not in started_again(world, world.rules)


def test_the_same_goal_and_another_promise_end_nothing() -> None:
    world = Deployment(better, [NEW])
    world.run(lambda w: w.state.phase == "switchback" and len(w.state.record.units) > 3)
    pairs = len(world.state.record.units)
    started_again(world, Rules(with_goal(world.settings, promise=0.2), BOUNDS))
    assert (world.state.phase, len(world.state.record.units)) == ("switchback", pairs)


@pytest.mark.parametrize("shares", [(0.3,), ()])
def test_a_ramp_with_fewer_steps_goes_on_from_the_last_of_them(shares: tuple[float, ...]) -> None:
    world = Deployment(better, [NEW])
    world.run(lambda w: w.state.stage == 2)
    world.tick()
    world.now_wall_s += 3600.0  # the lease is over: a schedule begins anew
    stages = msgspec.structs.replace(world.settings.stages, ramp_shares=shares)
    started_again(world, Rules(msgspec.structs.replace(world.settings, stages=stages), BOUNDS))
    trial = world.plan.trial
    assert isinstance(trial, Split)
    assert (world.state.phase, trial.share) == ("ramp", [stages.screen_share, *shares][-1])
    status(world.state, world.rules.settings)
    world.run(lambda w: w.state.phase == "switchback")
