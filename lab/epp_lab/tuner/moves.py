"""The moves of a candidate's life, which `epp_lab.tuner.machine` and `epp_lab.tuner.trials` make."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epp.records.weight_files import Change
from epp_lab.tuner import watch
from epp_lab.tuner.state import HISTORY, REFUSED, Note, Rehearse
from epp_lab.tuner.tally import Baseline, Record, forget_open
from epp_lab.tuner.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epp_lab.tuner.state import Action, Phase, Rules, TunerState


class StepRun:
    """One step in progress: a state that may be changed, and the actions so far."""

    def __init__(self, state: TunerState, rules: Rules, now_wall_s: float) -> None:
        self.state, self.rules, self.now_wall_s = state, rules, now_wall_s
        self.settings = rules.settings
        self.actions: list[Action] = []
        self.gap_s = 0.0  # since the time last heard of
        self.skew_s = 0.0

    def go(self, phase: Phase, reason: str) -> None:
        """Enter a phase; evidence of the one before is dropped."""
        state = self.state
        self.actions.append(Note(self.now_wall_s, state.phase, phase, reason))
        state.phase, state.since_wall_s, state.reason = phase, self.now_wall_s, reason
        state.record, state.trial, state.paused = Record(), None, ""
        if phase == "screen":
            state.stage, state.watch = 0, watch.begin(state.watch)
        if phase in ("baseline", "frozen"):
            state.baseline, state.reference = Baseline(), None
        if phase == "search":
            self.actions.append(Rehearse(reason))

    def note(self, reason: str) -> None:
        """Note something that is not a transition."""
        phase = self.state.phase
        self.actions.append(Note(self.now_wall_s, phase, phase, reason))

    def adopt(self, weights: Mapping[str, float], how: str, reason: str) -> None:
        """Make weights the incumbent and remember them."""
        state = self.state
        state.incumbent, state.watch = dict(weights), Watch(skip_until=state.watch.skip_until)
        state.measured = None
        number = state.history[-1].number + 1 if state.history else 0
        change = Change(number, self.now_wall_s, state.incumbent, how, reason)
        state.history = [*state.history, change][-HISTORY:]

    def unproven(self) -> str:
        """Say that the new weights stay, where a probation ends without a verdict."""
        state = self.state
        if state.phase != "probation":
            return ""
        before = next((c.number for c in reversed(state.history) if c.weights == state.previous), None)
        back = "" if before is None else f"; the weights before are number {before}"
        return f"; candidate {state.number} stays, though its probation is not over{back}"

    def drop_candidate(self) -> None:
        """Take nothing on trial any more."""
        self.state.candidate, self.state.previous = None, None

    def refuse(self, weights: Mapping[str, float]) -> None:
        """Remember weights that are not to be proposed again."""
        self.state.refused = [*self.state.refused, dict(weights)][-REFUSED:]

    def fruitless(self, reason: str) -> None:
        """Go on searching after a candidate that came to nothing, or freeze when that happened too often."""
        state = self.state
        self.drop_candidate()
        state.fruitless += 1
        limit = self.settings.stages.freeze_after
        if limit and state.fruitless >= limit:
            state.held = False
            self.go("frozen", f"{reason}; {state.fruitless} in a row without a promotion")
        else:
            self.go("baseline", reason)

    def thaw(self, reason: str) -> None:
        """Search again."""
        self.state.held, self.state.fruitless = False, 0
        self.go("baseline", reason)

    def unschedule(self) -> None:
        """End the schedule in force; complete units stay."""
        self.state.trial = None
        forget_open(self.state.record)

    def quiet(self) -> bool:
        """Check whether this is an hour in which nothing is tried."""
        hour = self.now_wall_s % 86_400.0 / 3600.0
        for begin, end in self.settings.stages.quiet_hours_utc:
            if begin <= hour < end or (begin > end and (hour >= begin or hour < end)):
                return True
        return False
