"""A policy that learns while it serves, in virtual time: a simulated fleet and a learner beside it.

Picker, policy and learner are the production objects: the learner takes every decision and outcome that the
flight recorder would hold, trains when its settings say so, and a model that its gate lets through decides so
many seconds later as training and the hand-over of the file take. Nothing is learned before the run unless a
model is given: the first requests are the heuristic's.

What differs from a live learner: samples come at once, not when a file is read; and there is no trial between
gate and promotion (`promotion: screen`), because a trial takes hours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import msgspec

from epp.policies.lodestar import FALLBACKS, Lodestar
from epp.policies.reward_model import PAPER_FEATURES
from epp_lab.baselines.lodestar_paper import LodestarPaper
from epp_lab.reward_model.rounds import Learner
from epp_lab.reward_model.settings import Gate, Guard, LearnerSettings, Network
from epp_lab.sim.fleet import ZERO_WALL_S, FleetSim
from epp_lab.sim.loop import Rank
from epp_lab.sim.scenario import WindowOptions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from epp.policies.reward_model import RewardModel
    from epp.schedule.decision import Decision, Outcome
    from epp_lab.compare.trace import TraceRequest
    from epp_lab.reward_model.rounds import Round
    from epp_lab.sim.results import WindowResult
    from epp_lab.sim.scenario import FleetSpec

#: Virtual time from a round's beginning to its model's first decision: reading records each second, two or
#: three trainings of one or two seconds each on one core, the file, and the picker's look at it.
TRAINING_S = 10.0
#: Without a trial, and without the heuristic's turns: one of them is longer than most windows.
UNTRIED = LearnerSettings(promotion="screen", guard=Guard(rest_s=0.0))
#: As the paper has it: its features and the extremes of its buffer, no price, no gate, no guard.
PUBLISHED = LearnerSettings(
    promotion="screen",
    congestion_price=0.0,
    network=Network(features=PAPER_FEATURES, tail=0.0),
    gate=Gate(on=False),
    guard=Guard(on=False),
)
#: How policies that learn do it, by name.
LEARNERS: dict[str, LearnerSettings] = {Lodestar.name: UNTRIED, LodestarPaper.name: PUBLISHED}


@dataclass(frozen=True, slots=True)
class Learning:
    """How a policy learns during a run.

    Attributes:
        settings: the learner's.
        training_s: from the beginning of a round to its model's first decision.
        freeze_at_s: no round begins later, in seconds after the start of the window.
        model: decides from the start; None for a cold start.
    """

    settings: LearnerSettings = UNTRIED
    training_s: float = TRAINING_S
    freeze_at_s: float = math.inf
    model: RewardModel | None = None

    @property
    def least(self) -> int:
        """Samples that a model must rest on: those of the first round, unless a model is given."""
        return 0 if self.model is not None else self.settings.data.first


@dataclass(slots=True)
class Lesson:
    """What a run says of its learning.

    Attributes:
        rounds: every training.
        in_force_s: when models that passed began to decide, in seconds after the start of the window.
        picks: decisions by who made them: ``model``, ``explored``, or a word of `FALLBACKS`.
        chosen: per request, in the order of decisions: seconds after the start, the decision's fallback code,
            the prediction for it (NaN without one).
        retreats: when models were taken away on regret, and why.
    """

    rounds: list[Round] = field(default_factory=list)
    in_force_s: list[float] = field(default_factory=list)
    picks: dict[str, int] = field(default_factory=dict)
    chosen: list[tuple[float, int, float]] = field(default_factory=list)
    retreats: list[tuple[float, str]] = field(default_factory=list)

    @property
    def first_model_s(self) -> float:
        """When the first learned model began to decide, NaN for never."""
        return min(self.in_force_s, default=math.nan)

    @property
    def passed(self) -> int:
        """Rounds whose model was let through."""
        return sum(training.verdict.passed for training in self.rounds)

    def share(self, word: str) -> float:
        """Share of decisions made by this, among those made once there was a model."""
        after = sum(self.picks.values()) - self.picks.get("no-model", 0)
        return self.picks.get(word, 0) / after if after else math.nan


class LearnedSim(FleetSim):
    """A window in which the policy's model changes while it runs.

    Args:
        requests: the load.
        spec: the fleet.
        policy: the policy; its model is replaced.
        learning: how it learns.
        weights: those that differ from the policy's defaults.
        seed: of network, draws and training.
        options: how the load is sent.
    """

    def __init__(
        self,
        requests: Sequence[TraceRequest],
        spec: FleetSpec,
        policy: Lodestar,
        learning: Learning,
        *,
        weights: Mapping[str, float] | None = None,
        seed: int,
        options: WindowOptions | None = None,
    ) -> None:
        self.learner = Learner(learning.settings, seed)
        self.learner.incumbent = learning.model
        self.lesson = Lesson()
        self._learning = learning
        self._learned = replace(policy, model=learning.model, min_samples=learning.least)
        self._pending: dict[str, Decision] = {}
        self._training = False
        self._model = learning.model
        super().__init__(
            requests,
            spec,
            self._learned,
            weights=weights or {},
            seed=seed,
            options=options or WindowOptions(),
        )

    @property
    def now_s(self) -> float:
        """Seconds after the start of the window."""
        return (self.loop.now_ms - self.start_ms) / 1e3

    @property
    def _now_wall_s(self) -> float:
        return ZERO_WALL_S + self.loop.now_ms / 1e3

    def decided(self, decision: Decision) -> None:
        """Remember it until its outcome comes."""
        self._pending[decision.id] = decision
        lesson, chosen = self.lesson, decision.chosen
        terms = {name: row[chosen] for name, row in decision.ranking.terms.items()}
        code = int(terms["fallback"])
        word = "explored" if terms["explored"] else FALLBACKS[code] or "model"
        lesson.picks[word] = lesson.picks.get(word, 0) + 1
        lesson.chosen.append((self.now_s, code, float(terms.get("predicted_ms", math.nan))))

    def ended(self, outcome: Outcome) -> None:
        """Tell the learner, and let it train when it is due."""
        decision = self._pending.pop(outcome.id, None)
        if decision is None:
            return
        self.learner.take(decision, outcome)
        self._guard()
        if not self._training and self.now_s < self._learning.freeze_at_s and self.learner.due():
            self._train()

    def _train(self) -> None:
        before, training_s = self.learner.incumbent, self._learning.training_s
        self.learner.train(self._now_wall_s)
        after = self.learner.incumbent
        if self.learner.last is not None:
            self.lesson.rounds.append(self.learner.last)
        if after is before:
            return
        if after is not None:
            self.lesson.in_force_s.append(self.now_s + training_s)
        self._training = True
        self.loop.at(self.loop.now_ms + training_s * 1e3, Rank.SIGNAL, self._put_in_force, after)

    def _put_in_force(self, model: RewardModel | None) -> None:
        self._training = False
        if model is self.learner.incumbent:  # else it was taken away while it was on its way
            self._model = model
            self._decide()

    def _decide(self) -> None:
        """Put the model in force, or the heuristic where it is its turn."""
        model = None if self.learner.rests(self._now_wall_s) else self._model
        if model is not self._learned.model:
            self._learned = replace(self._learned, model=model)
            self._scheduler.replace_policy(self._learned)

    def _guard(self) -> None:
        """Retreats, and the heuristic's turns: in force at once, as when the file goes."""
        for reason in self.learner.retreats:
            self.lesson.retreats.append((self.now_s, reason))
            self._model = None
        self.learner.retreats.clear()
        if self.learner.settings.guarded:
            self._decide()


def run_learned(
    requests: Sequence[TraceRequest],
    fleet: FleetSpec,
    policy: Lodestar,
    learning: Learning,
    *,
    weights: Mapping[str, float] | None = None,
    seed: int = 0,
    options: WindowOptions | None = None,
) -> tuple[WindowResult, Lesson]:
    """Simulate a window in which the policy learns; equal arguments give equal results on one machine."""
    sim = LearnedSim(requests, fleet, policy, learning, weights=weights, seed=seed, options=options)
    return sim.run(), sim.lesson


def taught_by_heuristic(
    requests: Sequence[TraceRequest],
    fleet: FleetSpec,
    policy: Lodestar,
    settings: LearnerSettings,
    *,
    weights: Mapping[str, float] | None = None,
    seed: int,
) -> Learner:
    """Return a learner that has seen all of a run that the heuristic served, and trained on nothing.

    Its `Learner.train` then gives the model of a policy learned offline, None where the run says too little.
    """
    whole = msgspec.structs.replace(
        settings,
        data=msgspec.structs.replace(settings.data, first=len(requests) + 1, recent=len(requests) + 1),
    )
    sim = LearnedSim(
        requests, fleet, replace(policy, model=None), Learning(whole), weights=weights, seed=seed
    )
    sim.run()
    return sim.learner
