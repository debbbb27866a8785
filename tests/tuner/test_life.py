from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from epp.config.plan import Split, Switchback, parse_plan, render_plan
from epp.learn.tuner.state import Freeze, Pinned, Thaw
from tests.kit.tuning import BOUNDS, INCUMBENT, Deployment, Effect, quick

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


NEW = {"a": 2.0, "b": 1.0}


def when_new(effect: Effect) -> Callable[[Mapping[str, float]], Effect]:
    return lambda weights: effect if weights["a"] == 2.0 else Effect()


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
    world.tell(Thaw(world.now_wall_s, "by mistake"))
    assert (world.state.phase, world.notes[-1].reason) == ("ramp", "nothing to thaw: by mistake")
    world.tell(Freeze(world.now_wall_s, "a launch"))
    assert world.plan.trial is None
    world.prompt_tokens = 5000
    for _ in range(200):
        world.tick()
    assert world.state.phase == "frozen"
    world.tell(Thaw(world.now_wall_s, "launched"))
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
