"""The learner: samples in, rounds of training, one reward model in force.

Owns the pools, the incumbent, and the order within a round: hold out, train, judge, train once more on all,
watch, choose what is remembered. No clock, no file: whoever drives it brings decisions, outcomes and times.

```
learner = Learner(LearnerSettings(), seed=0)
learner.take(decision, outcome)         # every finished request
if learner.due():
    model = learner.train(now_wall_s)   # a new incumbent, or None when the gate refused it
```
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from epp.learn.reward_model.coreset import farthest_first, gradients
from epp.learn.reward_model.fitting import Origin, fit, hidden_of, inputs_for, targets_of, with_validation
from epp.learn.reward_model.gate import Verdict, judge, regret
from epp.learn.reward_model.guard import GuardState, look_at_the_clock, rests, take
from epp.learn.reward_model.monitors import (
    Bin,
    Frozen,
    calibration,
    calibration_error_ms,
    errors_ms,
    forgetting,
    freeze,
)
from epp.learn.reward_model.network import residuals
from epp.learn.reward_model.pools import Pools
from epp.learn.reward_model.samples import log_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from epp.learn.reward_model.samples import Logged, Sample
    from epp.learn.reward_model.settings import LearnerSettings
    from epp.policies.reward_model import RewardModel
    from epp.schedule.decision import Decision, Outcome

#: The held-out part grows to so many times its size while logged choices overlap too little.
MOST_HELD = 3
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
        replayed: of them, from the replay pool.
        held_out: rows that it was judged on.
        verdict: of the gate.
        version: of the model that is in force after it, empty for none.
        withdrawn: the incumbent was taken back, on regret or because it predicts worse than one number would.
        calibration: of the model on trial, on held-out rows.
        forgetting: of the model in force: mean absolute error on each past round's frozen samples.
        forgotten_ms: mean rise of that error over each round's own.
    """

    number: int
    at_wall_s: float
    seen: int
    trained: int
    replayed: int
    held_out: int
    verdict: Verdict
    version: str = ""
    withdrawn: bool = False
    calibration: tuple[Bin, ...] = ()
    forgetting: dict[int, float] = field(default_factory=dict)
    forgotten_ms: float = math.nan


@dataclass(slots=True)
class Memory:
    """All that a learner knows: what is persisted.

    Attributes:
        pools: samples to train on.
        logged: newest choices, with every candidate's inputs.
        incumbent: model in force, None for none.
        newest: model trained last, in force or not; the next choice of what is remembered asks it.
        frozen: samples of past rounds.
        seen: samples in all.
        since: of them, since the last round.
        rounds: trainings in all.
        passed: of them, those that the gate let through.
        silent: requests that said nothing.
        short: how many times more than usual is held out, because logged choices overlapped too little.
        guard: what is known of the fleet under the heuristic and under models.
    """

    pools: Pools
    logged: deque[Logged]
    incumbent: RewardModel | None = None
    newest: RewardModel | None = None
    frozen: list[Frozen] = field(default_factory=list)
    seen: int = 0
    since: int = 0
    rounds: int = 0
    passed: int = 0
    silent: int = 0
    short: int = 0
    guard: GuardState = field(default_factory=GuardState)


def blank(settings: LearnerSettings) -> Memory:
    """A memory of nothing."""
    data = settings.data
    return Memory(Pools(data.recent, data.replay), deque(maxlen=MOST_HELD * settings.gate.held_out))


class Learner:
    """Learns.

    Args:
        settings: what to do.
        seed: of all draws, beside that of the settings.
        memory: of an earlier life.
    """

    def __init__(
        self,
        settings: LearnerSettings,
        seed: int = 0,
        memory: Memory | None = None,
    ) -> None:
        self.settings = settings
        self._seed = seed + settings.seed
        self.memory = blank(settings) if memory is None else memory
        #: The last round of this life.
        self.last: Round | None = None
        #: Why models were taken away between rounds, for whoever tells people; emptied by it.
        self.retreats: list[str] = []

    @property
    def incumbent(self) -> RewardModel | None:
        """The last model that passed, None before there is one, and after it was taken away."""
        return self.memory.incumbent

    def rests(self, now_wall_s: float) -> bool:
        """Whether it is the heuristic's turn, whatever model there is (`epp.learn.reward_model.guard`)."""
        return self.settings.guarded and rests(self.settings.guard, self._seed, now_wall_s)

    def in_force(self, now_wall_s: float) -> RewardModel | None:
        """The model that decides: the incumbent, where it is not the heuristic's turn."""
        return None if self.rests(now_wall_s) else self.memory.incumbent

    def take(self, decision: Decision, outcome: Outcome | None, *, waited_ms: float = math.nan) -> bool:
        """A finished request; whether it says anything.

        Args:
            decision: as made.
            outcome: how it ended; None for a request that was given up waiting for.
            waited_ms: how long such a request was waited for.
        """
        logged = log_of(decision, outcome, self.settings.network.features, waited_ms=waited_ms)
        if logged is None:
            self.memory.silent += 1
            return False
        self.add(logged)
        return True

    def look_at_the_clock(self, now_wall_s: float, *, stepped_s: float = 0.0) -> None:
        """Tell the time to who goes by that of requests: a clock may have been set back.

        Args:
            now_wall_s: the time.
            stepped_s: by how much the clock was seen to step since the last look.
        """
        look_at_the_clock(self.memory.guard, now_wall_s, self.settings, stepped_s=stepped_s)

    def add(self, logged: Logged) -> None:
        """A request that says something."""
        memory = self.memory
        memory.pools.add(logged.sample)
        memory.logged.append(logged)
        memory.seen += 1
        memory.since += 1
        if self.settings.guarded:
            reason = take(memory.guard, logged, self.settings)
            if reason:
                self.retreats.append(reason)
                memory.incumbent = None

    def due(self) -> bool:
        """Whether a round is to be held."""
        data, memory = self.settings.data, self.memory
        return memory.since >= (data.every if memory.rounds else data.first)

    def train(self, now_wall_s: float) -> RewardModel | None:
        """Hold a round, due or not; the model that is in force from now on, None when nothing changed.

        `last` tells about the round. One without an answered sample to train on, or to judge by, is over at
        once, as is one whose numbers come to nothing.
        """
        memory = self.memory
        memory.rounds, memory.since = memory.rounds + 1, 0
        held = (1 + memory.short) * self.settings.gate.held_out
        training, held_out = memory.pools.training(held)
        if not any(sample.answered for sample in training) or not any(s.answered for s in held_out):
            verdict = Verdict(False, "refused: no answered requests to learn from")
            self.last = self._told(now_wall_s, 0, 0, verdict)
            return None
        try:
            return self._held(now_wall_s, training, held_out)
        except ValueError as error:  # inputs or outcomes that no training survives
            verdict = Verdict(False, f"refused: the training failed: {error}")
            self.last = self._told(now_wall_s, len(training), len(held_out), verdict)
            return None

    def _held(
        self, now_wall_s: float, training: Sequence[Sample], held_out: Sequence[Sample]
    ) -> RewardModel | None:
        memory = self.memory
        origin = Origin(memory.seen, memory.rounds, now_wall_s, self._seed_of(0))
        candidate = fit(training, self.settings, origin, beside=self._beside())
        verdict = self._allowed(self._judged(candidate, training, held_out), now_wall_s)
        self._note_overlap(verdict)
        found = calibration(
            candidate.predict(inputs_for(candidate, held_out))[:, 0], held_out, self.settings.monitors.bins
        )
        figures = {**verdict.figures, "calibration_error_ms": calibration_error_ms(found)}
        model = None
        if verdict.passed:
            model = self._final(candidate, training, held_out, origin, figures)
            memory.incumbent, memory.passed = model, memory.passed + 1
        withdrawn = not verdict.passed and self._withdraws(verdict)
        if withdrawn:
            memory.incumbent = None
        memory.newest = model or candidate
        self.last = replace(
            self._remembered(self._told(now_wall_s, len(training), len(held_out), verdict)),
            withdrawn=withdrawn,
            calibration=found,
        )
        self._freeze(memory.newest, training)
        memory.pools.choose(self._most_different)
        return model

    def _beside(self) -> list[NDArray[np.float64]]:
        """Inputs of all candidates of the newest decisions, each so manieth where pools are large."""
        logged = self.memory.logged
        rows = sum(len(entry.rows) for entry in logged)
        step = -(-rows // _MOST_BESIDE) or 1
        return [entry.rows for entry in islice(logged, 0, None, step)]

    def _seed_of(self, salt: int) -> int:
        return (self._seed * 1_000_003 + self.memory.rounds) * 4 + salt

    def _judged(
        self, candidate: RewardModel, training: Sequence[Sample], held_out: Sequence[Sample]
    ) -> Verdict:
        memory, settings = self.memory, self.settings
        # Neither the candidate nor the incumbent: each errs low where it chooses, and one of the two has
        # chosen what is in the log, the other what is on trial.
        origin = Origin(memory.seen, memory.rounds, candidate.trained_at_s, self._seed_of(_JUDGE))
        judge_model = fit(training, settings, origin)
        answered = [sample.ttft_ms for sample in training if sample.answered]
        newest = list(memory.logged)[-len(held_out) :]
        constant_ms = float(np.mean(answered))
        verdict = judge(
            candidate,
            memory.incumbent,
            judge_model,
            held_out=held_out,
            logged=newest,
            settings=settings,
            constant_ms=constant_ms,
            fresh=0 if memory.incumbent is None else max(memory.seen - memory.incumbent.seen, 0),
        )
        if memory.incumbent is None:
            return verdict
        found, regretted = regret(newest, judge_model, settings)
        verdict = replace(verdict, figures={**verdict.figures, **found})
        if not regretted or not settings.gate.on:
            return verdict
        reason = f"refused: the heuristic would have cost {found['regret_ms']:.1f} ms less than what ran"
        return replace(verdict, passed=False, reason=reason, regretted=True)

    def _allowed(self, verdict: Verdict, now_wall_s: float) -> Verdict:
        """The verdict, refused while models are held back after a retreat."""
        guard = self.memory.guard
        left_s = guard.held_until_wall_s - now_wall_s
        if not verdict.passed or not self.settings.guarded or left_s <= 0.0:
            return verdict
        reason = f"refused: held back for {left_s:.0f} s more after retreat {guard.retreats} to the heuristic"
        return replace(verdict, passed=False, reason=reason)

    def _final(
        self,
        candidate: RewardModel,
        training: Sequence[Sample],
        held_out: Sequence[Sample],
        origin: Origin,
        figures: dict[str, float],
    ) -> RewardModel:
        """The model that goes out: trained on what it was judged by too, unless that made it worse there."""
        if not self.settings.gate.refit:
            return with_validation(candidate, figures)
        origin = replace(origin, seed=self._seed_of(_REFIT))
        whole = fit(
            [*training, *held_out],
            self.settings,
            origin,
            figures,
            beside=self._beside(),
        )
        quantile = self.settings.data.failed_quantile
        before, after = (float(errors_ms(m, held_out, quantile).mean()) for m in (candidate, whole))
        # It has seen these by now, so it must not err more on them; a training can go astray.
        return whole if after <= before else with_validation(candidate, figures)

    def _note_overlap(self, verdict: Verdict) -> None:
        memory = self.memory
        wanted, effective = self.settings.gate.min_effective, verdict.figures.get("effective_samples", 0.0)
        if verdict.short:  # as many times more as would have been enough, so that no round is lost on the way
            enough = math.ceil((1 + memory.short) * wanted / max(effective, 1.0)) - 1
            memory.short = min(max(memory.short + 1, enough), MOST_HELD - 1)
        elif effective > 2.0 * wanted:
            memory.short = max(memory.short - 1, 0)

    def _withdraws(self, verdict: Verdict) -> bool:
        error_ms = verdict.figures.get("incumbent_error_ms", math.nan)
        one_number_ms = verdict.figures.get("hindsight_error_ms", math.nan)
        return verdict.regretted or error_ms > self.settings.monitors.withdraw * one_number_ms

    def _told(self, now_wall_s: float, trained: int, held_out: int, verdict: Verdict) -> Round:
        memory = self.memory
        return Round(
            number=memory.rounds,
            at_wall_s=now_wall_s,
            seen=memory.seen,
            trained=trained,
            replayed=len(memory.pools.older),
            held_out=held_out,
            verdict=verdict,
            version=memory.incumbent.version if memory.incumbent is not None else "",
        )

    def _remembered(self, told: Round) -> Round:
        memory = self.memory
        if memory.incumbent is None or not memory.frozen:
            return told
        found = forgetting(memory.incumbent, memory.frozen, self.settings.data.failed_quantile)
        rises = [found[left.round] - left.error_ms for left in memory.frozen]
        return replace(told, forgetting=found, forgotten_ms=float(np.mean(rises)))

    def _freeze(self, model: RewardModel, training: Sequence[Sample]) -> None:
        monitors, memory = self.settings.monitors, self.memory
        left = freeze(
            model,
            training,
            monitors.frozen,
            seed=self._seed,
            failed_quantile=self.settings.data.failed_quantile,
        )
        memory.frozen = [*memory.frozen, left][-monitors.rounds :]

    def _most_different(self, samples: Sequence[Sample], count: int) -> NDArray[np.intp]:
        model = self.memory.newest
        assert model is not None  # noqa: S101 - a round has just trained one
        x = inputs_for(model, samples)
        targets = targets_of(samples, model.heads, self.settings.data.failed_quantile)
        predicted = ((model.predict(x) - model.offset) / model.scale).astype(np.float32)
        wanted = ((targets.values - model.offset) / model.scale).astype(np.float32)
        residual = residuals(predicted, wanted, targets.bounds)[:, 0]
        vectors = gradients(hidden_of(model, x), residual)
        return farthest_first(vectors, count)
