"""A candidate's life in the machine, and what a start under other bounds, weights or settings makes of its state."""

from __future__ import annotations

import msgspec
import pytest

from epp.config.plan import Split, Switchback, parse_plan, render_plan
from epp_lab.tuner.settings import Goal, TunerSettings
from epp_lab.tuner.state import OperatorAsked, OperatorRequest, Pinned, Rules
from tests.kit.tuning import BOUNDS, INCUMBENT, NEW, Deployment, Effect, quick, reached, when_new


def frozen(world: Deployment) -> bool:
    return world.state.phase == "frozen"


def test_a_better_candidate_goes_all_the_way() -> None:
    world = Deployment(when_new(Effect(ttft=0.4, e2e=0.85)), [NEW])
    world.run(lambda w: w.state.incumbent == NEW)
    assert world.phases() == ["search", "screen", "ramp", "ramp", "switchback", "probation"]
    world.run(frozen)
    assert world.state.incumbent == NEW
    assert "nothing to regret" in world.words()
    assert [change.how for change in world.state.history] == ["start", "promoted"]
    shares = {plan.trial.share for plan in world.plans if isinstance(plan.trial, Split)}
    assert shares == {0.05, 0.2, 0.5}
    assert all(note.reason for note in world.notes)
    for plan in world.plans:
        parse_plan(render_plan(plan), "weights.yaml", policy="gorgo-ms", bounds=BOUNDS)


@pytest.mark.parametrize(
    ("effect", "phases", "word"),
    [
        (Effect(fails=0.5), ["screen"], "failed requests"),
        (Effect(ttft=0.6, shares=(1.0, 0.0, 0.0)), ["screen", "ramp", "switchback"], "hottest endpoint"),
        (Effect(ttft=0.8, e2e=1.6), ["screen", "ramp", "switchback"], "slow E2E"),
        (Effect(ttft=0.8, fails=0.04), ["screen", "ramp", "switchback"], "failed requests"),
    ],
)
def test_a_harmful_candidate_is_never_promoted(effect: Effect, phases: list[str], word: str) -> None:
    world = Deployment(when_new(effect), [NEW])
    world.run(lambda w: w.asked == 1 and w.state.phase in ("baseline", "frozen"))
    ended = next(note for note in world.notes if "ended in" in note.reason)
    assert ended.before in phases
    assert word in ended.reason
    assert world.state.incumbent == INCUMBENT
    assert world.plan.trial is None


def test_a_promotion_is_undone_on_regret() -> None:
    world = Deployment(when_new(Effect(ttft=0.4, e2e=0.85)), [NEW], settings=quick(probation_pairs=100))
    world.run(lambda w: w.state.phase == "probation")
    world.effect = when_new(Effect(ttft=2.5))
    world.run(lambda w: w.state.phase != "probation")
    assert world.state.incumbent == INCUMBENT
    assert [change.how for change in world.state.history] == ["start", "promoted", "demoted"]
    trial = next(plan.trial for plan in reversed(world.plans) if plan.trial is not None)
    assert isinstance(trial, Switchback)
    assert (trial.arm, trial.weights, trial.every) == ("previous", INCUMBENT, 2)


def test_a_request_to_freeze_holds_until_a_request_to_thaw() -> None:
    world = Deployment(when_new(Effect(ttft=0.7)), [NEW])
    world.run(lambda w: w.state.phase == "ramp")
    world.tell(OperatorAsked(world.now_wall_s, OperatorRequest("thaw", "by mistake")))
    assert (world.state.phase, world.notes[-1].reason) == ("ramp", "nothing to thaw: by mistake")
    world.tell(OperatorAsked(world.now_wall_s, OperatorRequest("freeze", "a launch")))
    assert world.plan.trial is None
    world.prompt_tokens = 5000
    for _ in range(200):
        world.tick()
    assert world.state.phase == "frozen"
    world.tell(OperatorAsked(world.now_wall_s, OperatorRequest("thaw", "launched")))
    assert world.phases()[-1] == "baseline"


def test_pins_end_a_trial_and_pinned_weights_are_not_tried() -> None:
    world = Deployment(when_new(Effect(ttft=0.7)), [NEW, NEW])
    world.run(lambda w: w.state.phase == "switchback")
    world.tell(Pinned(world.now_wall_s, {"a": 1.0}))
    assert (world.state.phase, world.plan.trial) == ("baseline", None)
    world.run(lambda w: w.asked == 2)
    assert "changes nothing" in world.state.reason
    assert world.state.incumbent == INCUMBENT


def test_quiet_hours_pause_a_trial() -> None:
    hour = (1_700_000_000 % 86_400) / 3600.0
    settings = quick(stage_requests=1200, quiet_hours_utc=((hour + 0.5, (hour + 1.5) % 24),))  # type: ignore[arg-type]
    world = Deployment(when_new(Effect()), [NEW], settings=settings)
    world.run(lambda w: w.state.phase == "screen")
    world.run(lambda w: w.state.paused == "quiet hours", ticks=200)
    assert world.plan.trial is None
    world.run(lambda w: w.state.paused == "", ticks=200)
    assert world.plan.trial is not None


MORE = {**BOUNDS, "c": (0.0, 5.0)}


BETTER = Effect(ttft=0.4, e2e=0.85)


def started_again(world: Deployment, rules: Rules) -> str:
    """A new start by other rules: its plan is one that pickers take. What it says."""
    world.rules, told = rules, len(world.notes)
    world.restart()
    for plan in (world.plan, world.plans[-1]):
        parse_plan(render_plan(plan), "weights.yaml", policy="gorgo-ms", bounds=dict(rules.bounds))
    return "\n".join(note.reason for note in world.notes[told:])


def test_bounds_that_leave_only_the_candidate_outside_end_its_trial() -> None:
    world = reached("switchback", BETTER)
    world.tick()
    said = started_again(world, Rules(world.settings, {"a": (0.1, 1.5), "b": BOUNDS["b"]}))
    assert "bounds have changed: a" in said
    assert (world.state.phase, world.state.candidate, world.plan.trial) == ("baseline", None, None)
    assert world.state.incumbent == INCUMBENT
    assert [change.how for change in world.state.history] == ["start"]
    world.run(lambda w: w.state.phase == "frozen")


def test_a_new_weight_begins_as_it_is_configured() -> None:
    world = reached("screen", BETTER)
    said = started_again(world, Rules(world.settings, MORE, {"a": 7.0, "c": 9.0}))
    assert "c is new" in said
    assert world.state.incumbent == {**INCUMBENT, "c": 5.0}
    world.tell(OperatorAsked(world.now_wall_s, OperatorRequest("rollback", "as it was", 0)))
    assert world.state.incumbent == {**INCUMBENT, "c": 5.0}
    assert world.state.reason == "back to number 0 by request: as it was; bounds have changed: c is new"


def with_goal(settings: TunerSettings, **changes: float | str) -> TunerSettings:
    return msgspec.structs.replace(settings, goal=Goal(**changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("phase", ["screen", "probation", "frozen"])
def test_another_goal_begins_anew(phase: str) -> None:
    changes: dict[str, float | str] = {"measure": "felt", "slow_ms": 9000.0}
    world = reached(phase, BETTER)
    world.tick()
    kept = NEW if phase in ("probation", "frozen") else INCUMBENT
    said = started_again(world, Rules(with_goal(world.settings, **changes), BOUNDS))
    assert f"the goal has changed ({', '.join(changes)})" in said
    assert ("candidate 1 stays" in said) == (phase == "probation")
    state = world.state
    assert (state.phase, state.candidate, state.thresholds, state.fruitless) == ("baseline", None, None, 0)
    assert (state.incumbent, world.plan.trial, state.baseline.requests) == (kept, None, 0)
    assert "goal" not in started_again(world, world.rules)
