"""The learner: samples in, rounds of training, one reward model in force.

Owns what is remembered and the order within a round: hold out, train, judge, train once more on all, choose
what is kept. No clock, no file: whoever drives it brings decisions, outcomes and times.

```
learner = Learner(LearnerSettings(), seed=0)
learner.take(decision, outcome)         # every finished request
if learner.due():
    model = learner.train(now_wall_s)   # a new incumbent, or None when the gate refused it
```
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from epp_lab.reward_model.fitting import fit, most_different
from epp_lab.reward_model.gate import GateVerdict, calibration, errors_ms, judge, regret
from epp_lab.reward_model.guard import GuardState, rests, take
from epp_lab.reward_model.samples import Logged, Sample, log_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from epp.policies.reward_model import RewardModel
    from epp.schedule.decision import Decision, Outcome
    from epp_lab.reward_model.settings import LearnerSettings

#: The held-out part grows to so many times its size while logged choices overlap too little.
MOST_HELD = 3
#: While nothing is trained, so many times the replay pool may wait for the choice; then the oldest go.
_WAITING = 4
#: Rows of candidates that bounds are taken from, about, beside those that are trained on.
_MOST_BESIDE = 100_000
#: Seeds of what is trained beside a round's model.
_JUDGE, _REFIT = 1, 2


@dataclass(frozen=True, slots=True)
class Round:
    """One training, for people.

    Attributes:
        number: from 1.
        at_wall_s: Unix time.
        seen: samples seen in all.
        trained: rows that the model on trial was trained on.
        replayed: of them, older ones.
        held_out: rows that it was judged on.
        verdict: of the gate.
        version: of the model that is in force after it, empty for none.
        withdrawn: the incumbent was taken back, on regret or because it predicts worse than one number would.
        calibration: of the model on trial, on held-out rows: predicted and seen, by tenths of the
        predictions.
    """

    number: int
    at_wall_s: float
    seen: int
    trained: int
    replayed: int
    held_out: int
    verdict: GateVerdict
    version: str = ""
    withdrawn: bool = False
    calibration: Sequence[tuple[float, float]] = ()


class Memory(msgspec.Struct):
    """What a learner knows beside its models; persisted.

    Attributes:
        recent: the newest samples, in the order of their arrival.
        older: chosen ones, then those that fell out of `recent` since the last choice.
        log: newest choices, with every candidate's inputs.
        guard: what is known of the fleet under the heuristic and under models.
        seen: samples in all.
        since: of them, since the last round.
        rounds: trainings in all.
        passed: of them, those that the gate let through.
        short: how many times more than usual is held out, because logged choices overlapped too little.
    """

    recent: list[Sample] = []
    older: list[Sample] = []
    log: list[Logged] = []
    guard: GuardState = msgspec.field(default_factory=GuardState)
    seen: int = 0
    since: int = 0
    rounds: int = 0
    passed: int = 0
    short: int = 0


class Learner:
    """Learns.

    Args:
        settings: what to do.
        seed: of all draws.
        memory: of an earlier life.
    """

    def __init__(self, settings: LearnerSettings, seed: int = 0, memory: Memory | None = None) -> None:
        self.settings = settings
        self._seed = seed
        self.memory = memory or Memory()
        #: The last model that passed, None before there is one, and after it was taken away.
        self.incumbent: RewardModel | None = None
        #: The last round of this life.
        self.last: Round | None = None
        #: Why models were taken away between rounds, for whoever reports it; emptied by it.
        self.retreats: list[str] = []

    def rests(self, now_wall_s: float) -> bool:
        """Whether it is the heuristic's turn, whatever model there is (`epp_lab.reward_model.guard`)."""
        return self.settings.guarded and rests(self.settings.guard, self._seed, now_wall_s)

    def in_force(self, now_wall_s: float) -> RewardModel | None:
        """Return the model that decides: the incumbent, where it is not the heuristic's turn."""
        return None if self.rests(now_wall_s) else self.incumbent

    def take(self, decision: Decision, outcome: Outcome) -> None:
        """Take a finished request, if it says anything."""
        entry = log_of(decision, outcome, self.settings.network.features)
        if entry is not None:
            self.add(entry)

    def add(self, entry: Logged) -> None:
        """Take a request that says something."""
        memory, data = self.memory, self.settings.data
        memory.recent.append(entry.sample)
        memory.log.append(entry)
        memory.seen += 1
        memory.since += 1
        if len(memory.recent) > data.recent and data.replay:
            memory.older.append(memory.recent[0])
        del memory.recent[: -data.recent]
        del memory.older[: -_WAITING * data.replay or None]
        del memory.log[: -MOST_HELD * self.settings.gate.held_out]
        reason = take(memory.guard, entry, self.settings) if self.settings.guarded else ""
        if reason:
            self.retreats.append(reason)
            self.incumbent = None

    def due(self) -> bool:
        """Check whether a round is to be held."""
        return self.missing <= 0

    @property
    def missing(self) -> int:
        """Samples before the next round."""
        data, memory = self.settings.data, self.memory
        return (data.every if memory.rounds else data.first) - memory.since

    def train(self, now_wall_s: float) -> RewardModel | None:
        """Hold a round, due or not; return the model that is in force from now on, None when nothing changed.

        `last` describes the round. One without an answered sample to train on, or to judge by, is over at
        once, as is one whose numbers come to nothing.
        """
        memory = self.memory
        memory.rounds, memory.since = memory.rounds + 1, 0
        held = min((1 + memory.short) * self.settings.gate.held_out, len(memory.recent) // 2)
        split = len(memory.recent) - held
        training, held_out = [*memory.older, *memory.recent[:split]], memory.recent[split:]
        self.last = Round(
            number=memory.rounds,
            at_wall_s=now_wall_s,
            seen=memory.seen,
            trained=len(training),
            replayed=len(memory.older),
            held_out=held,
            verdict=GateVerdict(False, "refused: no answered requests to learn from"),
            version="" if self.incumbent is None else self.incumbent.version,
        )
        if not any(sample.answered for sample in training) or not any(s.answered for s in held_out):
            return None
        try:
            return self._held(self.last, training, held_out)
        except ValueError as error:  # inputs or outcomes that no training survives
            self.last = replace(
                self.last, verdict=GateVerdict(False, f"refused: the training failed: {error}")
            )
            return None

    def _held(
        self, begun: Round, training: Sequence[Sample], held_out: Sequence[Sample]
    ) -> RewardModel | None:
        memory = self.memory
        candidate = fit(training, self.settings, self._seed_of(0), beside=self._beside())
        verdict = self._allowed(self._judged(candidate, training, held_out), begun.at_wall_s)
        self._note_overlap(verdict)
        model = None
        if verdict.passed:
            model = self._final(candidate, training, held_out)
            model = replace(
                model,
                seen=max(memory.seen, model.samples),
                round=memory.rounds,
                trained_at_s=begun.at_wall_s,
                validation=dict(verdict.figures),
            )
            self.incumbent, memory.passed = model, memory.passed + 1
        figures = verdict.figures
        errs = figures.get("incumbent_error_ms", math.nan) > figures.get("hindsight_error_ms", math.nan)
        withdrawn = not verdict.passed and (verdict.regretted or errs)
        if withdrawn:
            self.incumbent = None
        self.last = replace(
            begun,
            verdict=verdict,
            version="" if self.incumbent is None else self.incumbent.version,
            withdrawn=withdrawn,
            calibration=calibration(candidate, held_out),
        )
        replay = self.settings.data.replay
        if len(memory.older) > replay:
            kept = np.sort(most_different(model or candidate, memory.older, replay))
            memory.older = [memory.older[index] for index in kept]
        return model

    def _beside(self) -> list[NDArray[np.float64]]:
        """Return inputs of all candidates of the newest decisions, each so manieth where there are many."""
        log = self.memory.log
        step = -(-sum(len(entry.choice.rows) for entry in log) // _MOST_BESIDE) or 1
        return [entry.choice.rows for entry in log[::step]]

    def _seed_of(self, salt: int) -> int:
        return (self._seed * 1_000_003 + self.memory.rounds) * 4 + salt

    def _judged(
        self, candidate: RewardModel, training: Sequence[Sample], held_out: Sequence[Sample]
    ) -> GateVerdict:
        memory, settings, incumbent = self.memory, self.settings, self.incumbent
        # Neither the candidate nor the incumbent: each errs low where it chooses, and one of the two has
        # chosen what is in the log, the other what is on trial.
        judge_model = fit(training, settings, self._seed_of(_JUDGE))
        newest = memory.log[-len(held_out) :]
        verdict = judge(
            candidate,
            incumbent,
            judge_model,
            held_out=held_out,
            log=newest,
            settings=settings,
            constant_ms=float(np.mean([sample.ttft_ms for sample in training if sample.answered])),
            fresh=0 if incumbent is None else max(memory.seen - incumbent.seen, 0),
        )
        if incumbent is None:
            return verdict
        found, regretted = regret(newest, judge_model, settings)
        verdict = replace(verdict, figures={**verdict.figures, **found})
        if not regretted or not settings.gate.on:
            return verdict
        reason = f"refused: the heuristic would have cost {found['regret_ms']:.1f} ms less than what ran"
        return replace(verdict, passed=False, reason=reason, regretted=True)

    def _allowed(self, verdict: GateVerdict, now_wall_s: float) -> GateVerdict:
        """Refuse while models are held back after a retreat."""
        guard = self.memory.guard
        left_s = guard.held_until_wall_s - now_wall_s
        if not verdict.passed or not self.settings.guarded or left_s <= 0.0:
            return verdict
        reason = f"refused: held back for {left_s:.0f} s more after retreat {guard.retreats} to the heuristic"
        return replace(verdict, passed=False, reason=reason)

    def _final(
        self, candidate: RewardModel, training: Sequence[Sample], held_out: Sequence[Sample]
    ) -> RewardModel:
        """The model that goes out: trained on what it was judged by too, unless that made it worse there."""
        whole = fit([*training, *held_out], self.settings, self._seed_of(_REFIT), beside=self._beside())
        before, after = (errors_ms(model, held_out).mean() for model in (candidate, whole))
        # It has seen these by now, so it must not err more on them; a training can go astray.
        return whole if after <= before else candidate

    def _note_overlap(self, verdict: GateVerdict) -> None:
        memory = self.memory
        wanted, effective = self.settings.gate.min_effective, verdict.figures["effective_samples"]
        if verdict.short:  # as many times more as would have been enough, so that no round is lost on the way
            enough = math.ceil((1 + memory.short) * wanted / max(effective, 1.0)) - 1
            memory.short = min(max(memory.short + 1, enough), MOST_HELD - 1)
        elif effective > 2.0 * wanted:
            memory.short = max(memory.short - 1, 0)
