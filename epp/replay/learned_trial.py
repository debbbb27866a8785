"""A trial in virtual time: the tuner's machine on the decisions and outcomes of a simulated fleet.

Owns what `epp.tune` does for a live one: hand samples and the time to the machine, put what it publishes in
force, ask for the learned policy when it searches. The machine, its settings and the rule that proposes are
the production objects, as is the picker's book of weights, which reads the published text as it would a file.

What differs from live: there is no file to be late, and no folder of records to be read.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from epp.learner.challenger import CHALLENGE, POLICY, STARTING, WEIGHT, Challenger
from epp.learner.samples import ended_of
from epp.tuner import machine
from epp.tuner.plan import render_plan
from epp.tuner.state import Note, Observed, Proposed, Publish, Rehearse, Rules
from epp.tuner.trials import late_s

if TYPE_CHECKING:
    from epp.decide.records import Decision, Outcome
    from epp.decide.weights import WeightBook
    from epp.learner.settings import LearnerSettings
    from epp.policies.reward_model import RewardModel
    from epp.tuner.samples import Sample
    from epp.tuner.state import Action, Event, State

#: The live loop looks so often.
TICK_S = 1.0


@dataclass(frozen=True, slots=True)
class Step:
    """A transition of the machine, or a note without one.

    Attributes:
        at_wall_s: virtual Unix time.
        before: phase.
        after: phase, possibly the same.
        reason: in words.
    """

    at_wall_s: float
    before: str
    after: str
    reason: str


class Trial:
    """Tries the learned policy against its heuristic while a window runs.

    Args:
        settings: of the learner; its `trial` is the machine's.
        book: of the picker's weights; told of every publication.
        now_wall_s: virtual Unix time.
    """

    def __init__(self, settings: LearnerSettings, book: WeightBook, now_wall_s: float) -> None:
        self._rules = Rules(settings.trial, {WEIGHT: book.bounds[WEIGHT]})
        self._book = book
        self._rule = Challenger(settings.retry_s)
        self._new: list[Sample] = []
        self._running: deque[Decision] = deque()
        self._over: set[str] = set()
        #: What happened, in order.
        self.steps: list[Step] = []
        self.state: State = machine.start(POLICY, STARTING, self._rules, now_wall_s)
        self._do(machine.resume(self.state, self._rules, now_wall_s), now_wall_s)

    @property
    def learned_decides(self) -> bool:
        """Whether the learned policy was promoted, and not demoted since."""
        return self.state.incumbent[WEIGHT] == CHALLENGE[WEIGHT]

    def decided(self, decision: Decision) -> None:
        """A decision was made."""
        self._running.append(decision)

    def ended(self, decision: Decision, outcome: Outcome) -> None:
        """It is over; one that was given up waiting for counts no second time."""
        if decision.id in self._over:
            self._over.discard(decision.id)
            return
        self._over.add(decision.id)
        sample = ended_of(decision, outcome)
        if sample is not None:
            self._new.append(sample)

    def tick(self, model: RewardModel | None, now_wall_s: float) -> None:
        """What the live loop does each second.

        Args:
            model: the learner's incumbent.
            now_wall_s: virtual Unix time.
        """
        self._give_up(now_wall_s)
        samples, self._new = self._new, []
        self._handle(Observed(now_wall_s, samples))
        reason = self._rule.proposes(model, now_wall_s)
        if reason:
            self._handle(Proposed(now_wall_s, CHALLENGE, reason))

    def _give_up(self, now_wall_s: float) -> None:
        """Hand on without an outcome what has run for too long."""
        wait_s = late_s(self.state, self._rules.settings)
        while self._running and now_wall_s - self._running[0].at_wall_s > wait_s:
            decision = self._running.popleft()
            if decision.id in self._over:
                self._over.discard(decision.id)
                continue
            self._over.add(decision.id)
            waited_ms = (now_wall_s - decision.at_wall_s) * 1e3
            sample = ended_of(decision, None, waited_ms=waited_ms)
            if sample is not None:
                self._new.append(sample)

    def _handle(self, event: Event) -> None:
        self._do(machine.step(self.state, event, self._rules), event.now_wall_s)

    def _do(self, outcome: tuple[State, list[Action]], now_wall_s: float) -> None:
        self.state, actions = outcome
        for action in actions:
            if isinstance(action, Publish):
                self._book.update("tuner", render_plan(action.plan), "simulation")
            elif isinstance(action, Rehearse):
                self._rule.search(self.state, now_wall_s)
            elif isinstance(action, Note):
                self.steps.append(Step(action.at_wall_s, action.before, action.after, action.reason))
