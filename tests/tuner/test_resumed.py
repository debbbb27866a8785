"""What a start with a persisted state makes of other bounds, other weights and other settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from epp.config.plan import parse_plan, render_plan
from epp.learn.tuner.settings import Goal, TunerSettings
from epp.learn.tuner.state import RollBack, Rules
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


def test_bounds_that_leave_only_the_candidate_outside_end_its_trial() -> None:
    world = Deployment(better, [NEW])
    world.run(lambda w: w.state.phase == "switchback")
    world.tick()
    said = started_again(world, Rules(world.settings, {"a": (0.1, 1.5), "b": BOUNDS["b"]}))
    assert "bounds have changed: a" in said
    assert (world.state.phase, world.state.candidate, world.plan.trial) == ("baseline", None, None)
    assert world.state.incumbent == INCUMBENT
    assert [change.how for change in world.state.history] == ["start"]
    world.run(lambda w: w.state.phase == "frozen")


def test_a_new_weight_begins_as_it_is_configured() -> None:
    world = Deployment(better, [NEW])
    world.run(lambda w: w.state.phase == "screen")
    said = started_again(world, Rules(world.settings, MORE, {"a": 7.0, "c": 9.0}))
    assert "c is new" in said
    assert world.state.incumbent == {**INCUMBENT, "c": 5.0}
    world.tell(RollBack(world.now_wall_s, 0, "as it was"))
    assert world.state.incumbent == {**INCUMBENT, "c": 5.0}
    assert world.state.reason == "back to number 0 by request: as it was; bounds have changed: c is new"


def with_goal(settings: TunerSettings, **changes: float | str) -> TunerSettings:
    return msgspec.structs.replace(settings, goal=Goal(**changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("phase", ["screen", "probation", "frozen"])
def test_another_goal_begins_anew(phase: str) -> None:
    changes: dict[str, float | str] = {"measure": "felt", "slow_ms": 9000.0}
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
