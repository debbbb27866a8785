from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

import msgspec
import pytest

from epp.learn.tuner.plan import Split, Switchback, parse_plan, render_plan
from epp.learn.tuner.settings import Evidence
from epp.learn.tuner.state import Freeze, Pinned, RollBack, Thaw
from tests.kit.tuning import BOUNDS, INCUMBENT, Deployment, Effect, quick

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from epp.learn.tuner.samples import Sample

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
        (Effect(fails=1.0), ["screen"], "failed requests"),
        (Effect(ttft=0.6, shares=(1.0, 0.0, 0.0)), ["screen", "ramp", "switchback"], "hottest endpoint"),
        (Effect(ttft=8.0), ["screen"], "slow requests"),
        (Effect(ttft=0.8, e2e=1.6), ["screen", "ramp", "switchback"], "slow E2E"),
        (Effect(ttft=1.15), ["screen", "ramp", "switchback"], ""),
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


def test_a_candidate_like_the_incumbent_is_given_up() -> None:
    settings = msgspec.structs.replace(quick(), evidence=Evidence(max_pairs=40))
    world = Deployment(when_new(Effect()), [NEW], settings=settings)
    world.run(lambda w: w.asked == 1 and w.state.phase in ("baseline", "frozen"))
    assert world.state.incumbent == INCUMBENT
    assert "not worth it" in world.words() or "not enough evidence" in world.words()


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


def test_a_promotion_that_breaks_everything_is_undone_at_once() -> None:
    world = Deployment(when_new(Effect(ttft=0.4, e2e=0.85)), [NEW])
    world.run(lambda w: w.state.phase == "probation")
    for _ in range(4):
        world.tick()
    since = world.now_wall_s
    world.effect = when_new(Effect(fails=1.0))
    world.run(lambda w: w.state.phase != "probation")
    assert world.state.incumbent == INCUMBENT
    assert world.now_wall_s - since <= 360.0


def test_search_freezes_when_nothing_is_found() -> None:
    world = Deployment(when_new(Effect()))
    world.run(frozen)
    assert world.state.fruitless == 3
    assert "in a row" in world.state.reason
    assert world.plan.trial is None


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


@pytest.mark.parametrize("event", ["pin", "freeze"])
def test_a_probation_that_an_operator_ends_says_what_stays(event: str) -> None:
    world = Deployment(when_new(Effect(ttft=0.4, e2e=0.85)), [NEW])
    world.run(lambda w: w.state.phase == "probation")
    world.tick()
    now = world.now_wall_s
    world.tell(Pinned(now, {"b": 1.0}) if event == "pin" else Freeze(now, "a launch"))
    assert world.state.incumbent == NEW
    assert "candidate 1 stays, though its probation is not over; the weights before are number 0" in (
        world.notes[-1].reason
    )


def test_two_versions_of_the_weights_at_once_are_told() -> None:
    class Apart(Deployment):
        def samples(self) -> list[Sample]:
            return [
                dataclasses.replace(sample, weights_version="vw"[i % 7 == 0])
                for i, sample in enumerate(super().samples())
            ]

    world = Apart(when_new(Effect()), [NEW])
    for _ in range(100):
        world.tick()
    assert world.state.phase == "baseline"
    assert "two versions of the weights are in force at once" in world.state.reason
    assert {"v", "w"} <= set(world.state.reason.replace(",", "").split())
    assert world.words().count("two versions") == 1


def test_blocks_that_may_not_be_as_long_as_they_should_are_told() -> None:
    world = Deployment(when_new(Effect()), [NEW], settings=quick(block_s=5.0, max_block_s=5.0))
    world.run(lambda w: w.state.phase == "switchback")
    assert "blocks last 5 s, the most that max_block_s allows" in world.words()


def test_an_operator_can_go_back() -> None:
    world = Deployment(when_new(Effect(ttft=0.4, e2e=0.85)), [NEW])
    world.run(lambda w: w.state.phase == "probation")
    world.tell(RollBack(world.now_wall_s, 0, "did not like it"))
    assert (world.plan.weights, world.plan.trial) == (INCUMBENT, None)
    assert world.state.phase == "frozen"
    world.tell(RollBack(world.now_wall_s, 77, "?"))
    assert "no weights with number 77" in world.notes[-1].reason


@pytest.mark.parametrize(
    ("bad", "word"),
    [
        ({"a": 20.0}, "out of bounds"),
        ({"a": math.nan}, "a"),
        ({"z": 1.0}, "unknown"),
        ({}, "changes nothing"),
    ],
)
def test_what_a_search_must_not_propose_is_refused(bad: dict[str, float], word: str) -> None:
    world = Deployment(when_new(Effect()), [bad])
    world.run(lambda w: w.asked == 1)
    assert word in world.words()
    assert all(plan.trial is None for plan in world.plans)


def test_a_dead_tuner_leaves_the_incumbent() -> None:
    world = Deployment(when_new(Effect()), [NEW])
    world.run(lambda w: w.state.phase == "switchback")
    trial = world.plan.trial
    assert trial is not None
    assert trial.block_at(world.now_wall_s + 400.0) is None


def test_no_traffic_for_hours_ends_a_trial_and_breaks_nothing() -> None:
    world = Deployment(when_new(Effect()), [NEW])
    world.run(lambda w: w.state.phase == "screen")
    world.rate_per_s = 0.0
    world.run(lambda w: w.state.phase == "baseline", ticks=900)
    assert "too little traffic" in world.state.reason
    for _ in range(50):
        world.tick()
    assert world.state.phase == "baseline"


def test_quiet_hours_pause_a_trial() -> None:
    hour = (1_700_000_000 % 86_400) / 3600.0
    settings = quick(stage_requests=1200, quiet_hours_utc=((hour + 0.5, (hour + 1.5) % 24),))  # type: ignore[arg-type]
    world = Deployment(when_new(Effect()), [NEW], settings=settings)
    world.run(lambda w: w.state.phase == "screen")
    world.run(lambda w: w.state.paused == "quiet hours", ticks=200)
    assert world.plan.trial is None
    world.run(lambda w: w.state.paused == "", ticks=200)
    assert world.plan.trial is not None


def test_a_clock_that_goes_back_begins_the_schedule_anew() -> None:
    world = Deployment(when_new(Effect(ttft=0.8)), [NEW])
    world.run(lambda w: len(w.state.record.units) > 12 and w.state.phase == "switchback")
    units, name = len(world.state.record.units), world.state.trial.id if world.state.trial else ""
    world.now_wall_s -= 3600.0
    world.tick()
    assert world.state.trial is not None
    assert world.state.trial.id != name
    assert len(world.state.record.units) == units
    assert "clock went back" in world.words()
    world.run(lambda w: len(w.state.record.units) > units + 5, ticks=200)


def test_a_tuner_that_was_away_begins_the_schedule_anew() -> None:
    world = Deployment(when_new(Effect(ttft=0.8)), [NEW])
    world.run(lambda w: len(w.state.record.units) > 12 and w.state.phase == "switchback")
    units, name = len(world.state.record.units), world.state.trial.id if world.state.trial else ""
    world.now_wall_s += 7200.0
    world.restart()
    assert world.state.trial is not None
    assert world.state.trial.id != name
    assert units <= len(world.state.record.units) <= units + 2
