"""The trial between gate and promotion, in virtual time: what production does before a model decides."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from epp.decide.picker import Picker, PickerSettings
from epp.decide.weights import WeightBook
from epp.learner.challenger import POLICY, WEIGHT
from epp.policies.lodestar import Lodestar
from epp.policies.registry import create
from epp.replay.learned import Learning, run_learned
from epp.replay.learned_trial import Trial
from epp.replay.workloads.tool_agent import ToolAgent, generate
from epp.signals.endpoint import Endpoint
from epp.signals.fleet import Fleet
from epp.signals.prefix_index import PrefixIndex
from epp.tuner.settings import Evidence, Goal, Stages, TunerSettings
from tests.kit.records import ask_of
from tests.kit.reward_models import linear_model
from tests.replay.test_learned import SETTINGS, pool

if TYPE_CHECKING:
    from collections.abc import Callable

    from epp.decide.records import Decision
    from epp.learner.settings import LearnerSettings

QUICK = TunerSettings(
    goal=Goal(slow_ms=215.0, e2e_margin=0.1, error_margin=0.1, concentration_margin=0.4),
    evidence=Evidence(min_pairs=8, max_pairs=60, min_block_requests=5, block_bound=0.5),
    stages=Stages(
        baseline_requests=100,
        baseline_s=10.0,
        screen_share=0.3,
        ramp_shares=(0.5,),
        stage_requests=10,
        stage_s=10.0,
        block_s=10.0,
        max_block_s=10.0,
        drop_share=0.0,
        late_s=5.0,
        probation_pairs=10,
        probation_every=1,
    ),
)
PER_S = 6
WALL_S = 1_700_000_000.0


@dataclass
class Life:
    """Requests that are answered as fast as whoever chose says, and the machine beside them.

    Attributes:
        ttft_ms: of a request, by the weight that was in force for it.
        silent: answers that never come, by the same.
    """

    ttft_ms: Callable[[float], float]
    silent: Callable[[float], bool] = lambda _: False

    def __post_init__(self) -> None:
        book = WeightBook(
            policy=POLICY, specs=Lodestar.weight_specs, configured={}, bounds={}, source="simulation"
        )
        self.book, self.now_s, self.number = book, 0.0, 0
        self.model: Any = linear_model({"running_requests": 1.0})
        self.trial = Trial(tried(SETTINGS, QUICK), book, WALL_S)
        self.picker = Picker(
            fleet=Fleet(PrefixIndex()),
            policy=Lodestar(self.model, min_samples=0),
            balance=create("least-request"),
            weights=book,
            settings=PickerSettings(warmup_s=0.0),
            new_id=lambda: f"r{self.number}",
        )
        self.picker.set_pool([Endpoint(f"10.0.0.{n}:8000") for n in range(2)], 0.0)

    def second(self) -> None:
        for part in range(PER_S):
            self.number += 1
            at_s = self.now_s + part / PER_S
            ask = ask_of(self.number, session=f"s{self.number}")
            decision = self.picker.pick(ask, at_s, WALL_S + at_s)
            self.trial.decided(decision)
            self._answer(decision, at_s)
        self.now_s += 1.0
        self.trial.tick(self.model, WALL_S + self.now_s)

    def _answer(self, decision: Decision, at_s: float) -> None:
        weight = decision.weights[WEIGHT]
        if self.silent(weight):
            return
        took_s = self.ttft_ms(weight) * (0.8 + 0.4 * (self.number % 10) / 10.0) / 1e3
        self.picker.first_token(decision.id, at_s + took_s)
        outcome = self.picker.end(decision.id, "stream-end", at_s + took_s + 0.2)
        assert outcome is not None
        self.trial.ended(decision, outcome)

    def until(self, phase: str, seconds: int = 1500) -> None:
        for _ in range(seconds):
            self.second()
            if self.trial.state.phase == phase:
                return
        raise AssertionError(f"never in {phase}: {[step.reason for step in self.trial.steps][-3:]}")


def tried(settings: LearnerSettings, trial: TunerSettings) -> LearnerSettings:
    return msgspec.structs.replace(settings, trial=trial)


def test_a_better_policy_is_promoted_by_the_switchback_alone_and_demoted_on_regret() -> None:
    life = Life(lambda weight: 60.0 if weight >= 0.5 else 200.0)
    assert life.book.current.values[WEIGHT] == 0.0
    life.until("switchback")
    assert not life.trial.learned_decides
    assert life.book.current.values[WEIGHT] == 0.0
    life.until("probation")
    assert life.trial.learned_decides
    assert life.book.current.values[WEIGHT] == 1.0
    life.ttft_ms = lambda weight: 400.0 if weight >= 0.5 else 100.0
    life.until("baseline")
    assert not life.trial.learned_decides
    assert life.book.current.values[WEIGHT] == 0.0
    assert "demoted" in life.trial.state.history[-1].how
    entered = [step.after for step in life.trial.steps if step.after != step.before]
    assert entered == ["search", "screen", "ramp", "switchback", "probation", "baseline"]


@pytest.mark.parametrize("how", ["slower", "silent"])
def test_a_worse_policy_is_never_promoted(how: str) -> None:
    life = Life(lambda weight: 300.0 if how == "slower" and weight >= 0.5 else 100.0)
    life.until("screen")
    if how == "silent":
        life.silent = lambda weight: weight >= 0.5
    life.until("baseline")
    assert not life.trial.learned_decides
    assert life.book.current.values[WEIGHT] == 0.0
    assert [change.how for change in life.trial.state.history] == ["start"]
    assert life.trial.state.fruitless == 1


def test_nothing_is_tried_before_there_is_a_model() -> None:
    life = Life(lambda _: 100.0)
    life.model = None
    life.until("search")
    for _ in range(30):
        life.second()
    assert life.trial.state.phase == "search"


def test_in_a_run_on_trial_the_heuristic_decides_until_blocks_say_otherwise() -> None:
    load = generate(ToolAgent(duration_s=75.0, rate_rps=12.0, divisor=4), 1)
    learning = Learning(tried(SETTINGS, QUICK), 3.0, on_trial=True)
    result, lesson = run_learned(load, pool(), Lodestar(), learning, seed=1)
    assert all(request.ok for request in result.requests)
    assert lesson.passed >= 1
    began_s = next(at_s for at_s, _, after, _ in lesson.trial if after == "screen")
    assert began_s >= lesson.first_model_s - 3.0
    assert lesson.picks["switched-off"] > 0.5 * len(load)
    assert lesson.picks["model"] > 0  # a share of the sessions
    assert not math.isnan(lesson.first_model_s)
