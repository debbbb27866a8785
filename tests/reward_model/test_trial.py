"""The learned policy as a candidate: proposed when a model is there, tried by the weight, back on regret."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from epp.learn.reward_model.trial import POLICY, STARTING, WEIGHT, Contender
from epp.learn.tuner import machine
from epp.learn.tuner.samples import Sample
from epp.learn.tuner.settings import Evidence, Stages, TunerSettings
from epp.learn.tuner.state import Observed, Rules
from tests.kit.clock import ManualClock
from tests.kit.reward_models import linear_model

if TYPE_CHECKING:
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
    actions = machine.step(state, Observed(101.0, samples), RULES)
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
