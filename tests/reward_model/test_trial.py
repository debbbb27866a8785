"""The learned policy as a candidate: proposed when a model is there, tried by the weight, back on regret."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from epp.clock import ManualClock
from epp.learn.reward_model.challenger import POLICY, STARTING, WEIGHT
from epp.learn.reward_model.trial import Contender
from epp.learn.tuner import machine
from epp.learn.tuner.plan import render_plan
from epp.learn.tuner.samples import Sample
from epp.learn.tuner.settings import Evidence, Stages, TunerSettings
from epp.learn.tuner.state import Observed, Proposed, Publish, Rules
from epp.policies.lodestar import Lodestar
from epp.schedule.weights import WeightBook
from tests.kit.learnedlife import LearnedLife, faster_by_the_model
from tests.kit.reward_models import linear_model

if TYPE_CHECKING:
    from pathlib import Path

    from epp.learn.tuner.state import Action, State
    from epp.policies.reward_model import RewardModel

QUICK = TunerSettings(
    evidence=Evidence(min_pairs=8, max_pairs=60, min_block_requests=5),
    stages=Stages(baseline_requests=100, baseline_s=10.0, stage_requests=20, stage_s=10.0),
)
RULES = Rules(QUICK, {WEIGHT: (0.0, 1.0)})


def searching() -> State:
    """A machine that asks for a candidate: the heuristic was watched for long enough."""
    state = machine.start(POLICY, STARTING, RULES, 0.0)
    blank = Sample("x", None, "v", 0.0, 0.0, "e:1", "s", 100, 100.0, 500.0)
    samples = [replace(blank, id=f"{n}", dispatched_wall_s=n * 0.5, ttft_ms=100.0 + n) for n in range(200)]
    state, actions = machine.step(state, Observed(101.0, samples), RULES)
    assert state.phase == "search"
    assert asked(actions)
    return state


def asked(actions: list[Action]) -> bool:
    return any(type(action).__name__ == "Rehearse" for action in actions)


def test_it_is_proposed_when_a_model_passed_the_gate_and_only_then() -> None:
    models: list[RewardModel] = []
    contender = Contender(lambda: models[0] if models else None, ManualClock(), 3600.0)
    assert contender.poll() is None
    contender.start(searching(), "begin")
    assert contender.poll() is None
    models.append(linear_model({"running_requests": 1.0}))
    found = contender.poll()
    assert found is not None
    assert found.weights == {WEIGHT: 1.0}
    assert "passed the gate: round 3" in found.reason
    assert contender.poll() is None  # once


def test_a_trial_runs_by_the_weight_and_pickers_understand_its_file() -> None:
    state = searching()
    state, actions = machine.step(state, Proposed(102.0, {WEIGHT: 1.0}, "a model"), RULES)
    state, more = machine.step(state, Observed(103.0), RULES)
    assert state.phase == "screen"
    plan = [action.plan for action in [*actions, *more] if isinstance(action, Publish)][-1]
    book = WeightBook(policy=POLICY, specs=Lodestar.weight_specs, configured={}, bounds={}, source="epp.yaml")
    assert book.current.values[WEIGHT] == 1.0  # without a learner's file a model that is there decides
    assert book.update("tuner", render_plan(plan), "weights.yaml")
    assert book.current.values[WEIGHT] == 0.0
    assert plan.trial is not None
    at_s = plan.trial.valid_from_wall_s + 1.0
    drawn = [book.choose(at_s, f"session {n}")[0].values[WEIGHT] for n in range(400)]
    assert 0 < sum(drawn) < 60
    assert book.choose(plan.trial.valid_until_wall_s + 1.0, "s")[0].values[WEIGHT] == 0.0


def test_after_a_trial_that_came_to_nothing_it_waits_and_a_settled_one_is_left_alone() -> None:
    clock = ManualClock()
    model = linear_model({"running_requests": 1.0})
    contender = Contender(lambda: model, clock, 3600.0)
    state = searching()
    state.fruitless = 1
    contender.start(state, "again")
    assert contender.poll() is None
    clock.advance(3601.0)
    assert contender.poll() is not None
    settled = searching()
    settled.incumbent = {WEIGHT: 1.0}
    contender.start(settled, "search")
    assert contender.poll() is None


def test_a_model_below_the_weight_does_not_decide() -> None:
    policy = Lodestar(model=linear_model({"running_requests": 1.0}), min_samples=0)
    weights = Lodestar.default_weights()
    assert policy.usable({**weights, WEIGHT: 1.0})[0] is not None
    assert policy.usable({**weights, WEIGHT: 0.0}) == (None, "switched-off")


def test_the_learned_policy_decides_after_its_trial_and_the_heuristic_again_on_regret(tmp_path: Path) -> None:
    world = LearnedLife(tmp_path, ttft_ms=faster_by_the_model)
    world.start()
    world.run(20)
    assert world.state.phase == "baseline"
    assert world.book.current.values[WEIGHT] == 0.0  # a model that is there decides nothing yet
    world.until("probation")
    world.run(3)
    assert world.book.current.values[WEIGHT] == 1.0
    assert world.published_version() in {entry.stem.split(".")[1] for entry in world.models.versions()}
    world.ttft_ms = lambda weights: 400.0 if weights[WEIGHT] >= 0.5 else 100.0
    world.until("baseline")
    world.run(3)
    assert "demoted" in world.state.history[-1].how
    assert world.book.current.values[WEIGHT] == 0.0
    assert not world.picker_errors
