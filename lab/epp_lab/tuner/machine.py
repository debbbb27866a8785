"""A candidate's life: events in, a new state and actions out.

Owns the order of things: baseline, search, screen, ramp, switchback, promotion, probation, freeze, thaw.
Knows neither files nor the simulator. `step` changes the state that it is given, and nothing else.

```
baseline -> search -> screen -> ramp ... -> switchback -> (promoted) probation -> baseline
                        |         |             |                        |
                        +---------+-------------+-- ended --> baseline   +-- regret: demoted --> baseline
                                                        too often fruitless: frozen -- drift --> baseline
```

Rules
- Whatever is unclear ends or pauses a trial; only `epp_lab.tuner.verdict` promotes.
- A trial runs on a lease. If the tuner was away for longer, the clock went back, or the trial was paused, its
  schedule begins anew under another name: complete blocks count on, others do not.
- The published plan is a function of the state.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec
import xxhash

from epp.config.plan import Plan
from epp.records.weight_files import Change
from epp_lab.tuner import trials, watch
from epp_lab.tuner.moves import StepRun
from epp_lab.tuner.state import (
    TRIALS,
    NothingBetter,
    Observed,
    OperatorAsked,
    Pinned,
    Proposed,
    Publish,
    Rehearse,
    TunerState,
)
from epp_lab.tuner.tally import Baseline, enter, forget_open, freeze, observe
from epp_lab.tuner.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from epp_lab.tuner.samples import Sample
    from epp_lab.tuner.state import Action, Event, Rules, What

#: A clock that goes back by less has been corrected, not set.
_BACK_S = 2.0


def clipped(weights: Mapping[str, float], rules: Rules) -> tuple[dict[str, float], list[str]]:
    """Return weights within their bounds, and the names of those that were not; unknown ones are left out."""
    out, moved = {}, []
    for name, (low, high) in rules.bounds.items():
        if name in weights:
            out[name] = min(max(weights[name], low), high)
            if out[name] != weights[name]:
                moved.append(name)
    return out, moved


def fitted(weights: Mapping[str, float], rules: Rules) -> tuple[dict[str, float], list[str]]:
    """Return an incumbent for these rules, and in words what was changed.

    It is clipped, without unknown names, missing ones as they are configured.
    """
    out, moved = clipped({**rules.starting, **weights}, rules)
    changes = [name for name in moved if name in weights]
    changes += [f"{name} is no weight any more" for name in sorted(set(weights) - set(rules.bounds))]
    changes += [f"{name} is new" for name in out if name not in weights]
    return out, changes


def start(policy: str, weights: Mapping[str, float], rules: Rules, now_wall_s: float) -> TunerState:
    """Return the state of a tuner that never ran: the weights in force, moved into its bounds."""
    incumbent, moved = clipped(weights, rules)
    reason = "moved into bounds: " + ", ".join(moved) if moved else "in force at the start"
    return TunerState(
        policy=policy,
        incumbent=incumbent,
        settings=rules.settings,
        since_wall_s=now_wall_s,
        clock_wall_s=now_wall_s,
        history=[Change(0, now_wall_s, incumbent, "start", reason)],
    )


def plan_of(state: TunerState) -> Plan:
    """Return what pickers are to follow."""
    return Plan(
        weights=state.incumbent,
        policy=state.policy,
        serial=state.serial,
        written_wall_s=state.published_wall_s,
        reason=state.reason[:2000],
        ended_for_fleet=state.ended_for_fleet,
        trial=state.trial,
    )


def step(state: TunerState, event: Event, rules: Rules) -> list[Action]:
    """Take one event: change the state, which is to be persisted, and return what is then to be done."""
    run = Step(state, rules, event.now_wall_s)
    run.set_clock()
    run.take(event)
    run.advance()
    run.publish()
    return run.actions


def settle(state: TunerState, rules: Rules, now_wall_s: float) -> list[Action]:
    """Do what other rules ask of a persisted state, before anything is judged or published by them.

    What no longer fits is moved or dropped: of no state a plan is made that a picker would refuse.
    """
    run = Step(state, rules, now_wall_s)
    run.resettle()
    run.refit()
    return run.actions


def resume(state: TunerState, rules: Rules, now_wall_s: float) -> list[Action]:
    """Go on with a persisted state that was settled: what was perhaps not done is done again."""
    run = Step(state, rules, now_wall_s)
    run.set_clock()
    run.advance()
    state.published = ""
    run.publish()
    if state.phase == "search" and not any(isinstance(action, Rehearse) for action in run.actions):
        run.actions.append(Rehearse("the tuner was started again"))
    return run.actions


def break_schedule(state: TunerState) -> None:
    """Drop open blocks and the baseline after a step of the clock; the next event begins a schedule anew."""
    state.trial, state.baseline = None, Baseline()
    forget_open(state.record)


class Step(StepRun):
    """One step in progress, from an event to what it leads to."""

    # -- a start by other rules ---------------------------------------------------------------------------

    def resettle(self) -> None:
        """End what was gathered for another goal. What a rehearsal must promise judges no trial."""
        state, before, now = self.state, self.state.settings.goal, self.settings.goal
        state.settings = self.settings
        # A ramp that has fewer steps by now: on the last of them.
        state.stage = min(state.stage, len(self.settings.stages.ramp_shares))
        names = (name for name in now.__struct_fields__ if name != "promise")
        changed = [name for name in names if getattr(before, name) != getattr(now, name)]
        if not changed:
            return
        state.thresholds, state.fruitless = None, 0
        if "measure" in changed:
            state.watch = Watch(skip_until=state.watch.skip_until)
        self._begin_anew(f"the goal has changed ({', '.join(changed)}){self.unproven()}")

    def refit(self) -> None:
        """Move the incumbent into its bounds; end what runs beside it where that is outside."""
        state = self.state
        incumbent, changes = fitted(state.incumbent, self.rules)
        beside = [state.candidate, state.previous, state.trial.weights if state.trial is not None else None]
        known = self.rules.bounds.keys()
        outside = [
            name
            for weights in beside
            if weights
            for name in (*clipped(weights, self.rules)[1], *sorted(weights.keys() - known))
        ]
        if not changes and not outside:
            return
        reason = f"bounds have changed: {', '.join(changes or dict.fromkeys(outside))}{self.unproven()}"
        if changes:
            self.adopt(incumbent, "clipped", reason)
        self._begin_anew(reason)

    def _begin_anew(self, reason: str) -> None:
        self.drop_candidate()
        self.go("frozen" if self.state.held else "baseline", reason)

    # -- what happened ------------------------------------------------------------------------------------

    def set_clock(self) -> None:
        """Notice a clock that went back: times from before it mean nothing any more."""
        state, now = self.state, self.now_wall_s
        self.gap_s = max(0.0, now - state.clock_wall_s)
        if now < state.clock_wall_s - _BACK_S:
            self.note(f"the clock went back by {state.clock_wall_s - now:.0f} s")
            state.since_wall_s = min(state.since_wall_s, now)
            state.pause_until_wall_s = min(state.pause_until_wall_s, now)
            state.cool_until_wall_s = min(state.cool_until_wall_s, now)
            state.baseline, state.watch = Baseline(), Watch()
            if state.thresholds is not None:
                frozen = min(state.thresholds.frozen_wall_s, now)
                state.thresholds = msgspec.structs.replace(state.thresholds, frozen_wall_s=frozen)
            self.unschedule()
        state.clock_wall_s = now

    def take(self, event: Event) -> None:
        """Let an event change the state."""
        match event:
            case Observed():
                self.skew_s = event.skew_s
                self._observed(event.samples)
            case Proposed():
                self._proposed(event)
            case NothingBetter():
                if self.state.phase == "search":
                    self.fruitless(event.reason)
            case OperatorAsked():
                self._obey(
                    event.request.what, event.request.reason or "no reason given", event.request.number
                )
            case Pinned():
                self._pinned(dict(event.pins))

    def _observed(self, samples: Sequence[Sample]) -> None:
        state, goal = self.state, self.settings.goal
        begins_wall_s = max(state.since_wall_s, state.cool_until_wall_s)
        for sample in samples:
            watch.enter(state.watch, sample, self.settings)
            if state.phase in TRIALS:
                if state.trial is not None and state.thresholds is not None:
                    enter(state.record, state.trial, sample, state.thresholds, goal)
            elif sample.stamp is None and sample.dispatched_wall_s >= begins_wall_s:
                trials.silence(self, sample)
                state.baseline = observe(state.baseline, sample, goal)

    def _proposed(self, event: Proposed) -> None:
        state = self.state
        if state.phase != "search":
            self.note(f"a candidate was refused: the tuner is in {state.phase}")
            return
        weights, _ = clipped(event.weights, self.rules)
        if all(
            name in state.pins or math.isclose(value, state.incumbent.get(name, math.nan))
            for name, value in weights.items()
        ):
            self.fruitless("the candidate was refused: it changes nothing")
            return
        state.candidate, state.number, state.unwell = weights, state.number + 1, 0
        self.note(f"candidate {state.number}: {event.reason}")
        frozen, age_s = state.thresholds, self.settings.stages.baseline_age_s
        if frozen is None or self.now_wall_s - frozen.frozen_wall_s > age_s:
            self.go("baseline", f"candidate {state.number} waits for a fresh baseline")
        else:
            self.go("screen", f"candidate {state.number}: {event.reason}")

    def _pinned(self, pins: dict[str, float]) -> None:
        state = self.state
        if pins == state.pins:
            return
        state.pins, state.watch = pins, Watch(skip_until=state.watch.skip_until)
        reason = "pinned by the operator: " + (", ".join(sorted(pins)) or "nothing any more")
        if state.phase == "frozen":
            state.reference, state.baseline = None, Baseline()
            self.note(reason)
        else:
            reason += self.unproven()
            self.drop_candidate()
            self.go("baseline", reason)

    def _obey(self, what: What, reason: str, number: int) -> None:
        state = self.state
        if what == "freeze":
            reason = f"by request: {reason}{self.unproven()}"
            self.drop_candidate()
            state.held = True
            self.go("frozen", reason)
            return
        if what == "thaw":
            if state.phase == "frozen":
                self.thaw(f"by request: {reason}")
            else:
                self.note(f"nothing to thaw: {reason}")
            return
        found = next((c for c in state.history if c.number == number), None)
        if found is None:
            self.note(f"no weights with number {number} to go back to")
            return
        weights, changes = fitted(found.weights, self.rules)
        but = f"; bounds have changed: {', '.join(changes)}" if changes else ""
        self.drop_candidate()
        self.refuse(state.incumbent)
        self.adopt(weights, "rolled-back", f"back to number {number}: {reason}{but}")
        state.held = True
        self.go("frozen", f"back to number {number} by request: {reason}{but}")

    # -- what follows -------------------------------------------------------------------------------------

    def advance(self) -> None:
        """Do what the evidence and the time allow."""
        state = self.state
        trials.watch_fleet(self)
        if state.phase == "baseline":
            self._baseline()
        elif state.phase == "frozen":
            trials.watch(self)
        if state.phase in TRIALS:
            trials.absent(self)
            trials.judge(self)
        if state.phase in TRIALS:
            trials.schedule(self)

    def _baseline(self) -> None:
        state, stages = self.state, self.settings.stages
        baseline = state.baseline
        if baseline.requests < stages.baseline_requests or baseline.lasted_s < stages.baseline_s:
            return
        if baseline.failed_share > self.settings.max_failed_share:
            self._again(f"the fleet is unwell: {baseline.failed_share:.0%} of the baseline failed")
            return
        thresholds = freeze(baseline, self.settings.goal, self.now_wall_s)
        if thresholds is None:
            self._again("too many requests of the baseline were never answered")
            return
        state.thresholds, state.baseline = thresholds, Baseline()
        reason = f"baseline: {baseline.requests} requests, slow above {thresholds.slow_ms:.0f} ms"
        if state.candidate is not None:
            self.go("screen", f"candidate {state.number}; {reason}")
        else:
            self.go("search", reason)

    def _again(self, reason: str) -> None:
        self.state.baseline = Baseline()
        if self.state.reason != reason:
            self.note(reason)
        self.state.reason = reason

    def publish(self) -> None:
        """Publish where the plan says anything else than it last did."""
        state = self.state
        content = msgspec.json.encode(
            (state.incumbent, state.policy, state.reason, state.trial, state.ended_for_fleet)
        )
        digest = xxhash.xxh3_64_hexdigest(content)
        if digest != state.published:
            state.published, state.published_wall_s = digest, self.now_wall_s
            state.serial += 1
            self.actions.append(Publish(plan_of(state)))
