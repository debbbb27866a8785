"""The stages of a trial: their schedules, their ends, and the watch over a frozen incumbent.

Owns shares, lengths of blocks, leases and pauses. `epp_lab.tuner.machine` calls it with the step in
progress.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from epp.config.plan import Split, Switchback
from epp_lab.tuner import watch as fleet
from epp_lab.tuner.settings import LONGEST_WAIT_S
from epp_lab.tuner.state import Features
from epp_lab.tuner.tally import Baseline, bin_of, close, freeze
from epp_lab.tuner.verdict import (
    END,
    PASS,
    abrupt,
    fails_now,
    judge_probation,
    judge_split,
    judge_switchback,
    promotion_level,
    unwell,
)

if TYPE_CHECKING:
    from epp.config.plan import Trial
    from epp_lab.tuner.moves import StepRun
    from epp_lab.tuner.samples import Sample
    from epp_lab.tuner.settings import Drift, Stages, TunerSettings
    from epp_lab.tuner.state import TunerState
    from epp_lab.tuner.tally import Thresholds

#: Until every picker has read the file.
START_DELAY_S = 10.0
#: After the time at which a reader gives up waiting for an outcome.
_CLOSE_SLACK_S = 15.0
_UNWELL_PAUSE_S = 900.0
_UNWELL_TIMES = 2
#: Pickers whose clocks differ by more than this share of a block pause a trial, for so long each time.
_SKEW_SHARE, _SKEW_PAUSE_S = 0.1, 15.0
#: Slices of a split.
_SPLIT_S = 60.0
#: Silence for so much of a stretch of time, and for so many times the time between two requests, is no part
#: of it.
_SILENT_SHARE, _SILENT_TIMES = 0.2, 20.0


def late_s(state: TunerState, settings: TunerSettings) -> float:
    """How long after its dispatch a reader waits for a request's outcome; then it hands it on without one."""
    thresholds = state.thresholds
    p99_s = thresholds.e2e_p99_ms / 1000.0 if thresholds is not None else 0.0
    return min(max(settings.stages.late_s, p99_s), LONGEST_WAIT_S)


def block_s(stages: Stages, thresholds: Thresholds) -> float:
    """Length of a switchback's blocks: the dropped part covers E2E p99, as far as `max_block_s` allows."""
    wanted_s = thresholds.e2e_p99_ms / 1000.0 / stages.drop_share
    return max(min(wanted_s, stages.max_block_s), stages.block_s)


def level(state: TunerState) -> float:
    """Return level at which the candidate on trial is tested."""
    return promotion_level(
        state.settings.evidence.false_promotions, max(1, state.tests), promotions=state.promotions
    )


def absent(run: StepRun) -> None:
    """Take what was no time of a stage out of it, before anything is judged: no schedule was in force.

    The lease had run out, or the clock was stepped. The time on pause is `schedule`'s.
    """
    state, now = run.state, run.now_wall_s
    if not state.paused:
        lost_s = run.gap_s if state.trial is None else max(0.0, now - state.trial.valid_until_wall_s)
        state.since_wall_s = min(state.since_wall_s + lost_s, max(now, state.since_wall_s))


def schedule(run: StepRun) -> None:
    """Pause, begin, renew or begin anew the schedule of the present stage."""
    state, now, stages = run.state, run.now_wall_s, run.settings.stages
    if run.quiet():
        state.pause_until_wall_s = max(state.pause_until_wall_s, now + 1.0)
        _pause(run, "quiet hours")
    elif run.skew_s > _SKEW_SHARE * _stage_block_s(run):
        state.pause_until_wall_s = max(state.pause_until_wall_s, now + _SKEW_PAUSE_S)
        _pause(run, f"the clocks of pickers differ by {run.skew_s:g} s")
    elif now >= state.pause_until_wall_s and state.paused:
        run.note(f"going on after a pause: {state.paused}")
        state.paused = ""
        state.since_wall_s += max(0.0, now - state.paused_wall_s)  # the time on pause does not count
    if state.paused:
        return
    trial = state.trial
    if trial is not None and now >= trial.valid_until_wall_s:
        run.note("the schedule ran out while the tuner was away; it begins anew")
        run.unschedule()
        trial = None
    if trial is None:
        state.trial = _begin(run)
    elif trial.valid_until_wall_s - now < 0.5 * stages.lease_s:
        state.trial = msgspec.structs.replace(trial, valid_until_wall_s=now + stages.lease_s)


def _pause(run: StepRun, reason: str) -> None:
    if not run.state.paused:
        run.note(f"paused: {reason}")
        run.state.paused, run.state.paused_wall_s = reason, run.now_wall_s
        run.unschedule()


def _stage_block_s(run: StepRun) -> float:
    thresholds = run.state.thresholds
    if run.state.phase in ("screen", "ramp"):
        return _SPLIT_S
    assert thresholds is not None  # noqa: S101 - no trial begins without a baseline
    return block_s(run.settings.stages, thresholds)


def _begin(run: StepRun) -> Split | Switchback:
    state, stages, now = run.state, run.settings.stages, run.now_wall_s
    state.segment += 1
    begin, probation = now + START_DELAY_S, state.phase == "probation"
    common: dict[str, Any] = {
        "id": f"c{state.number}-{state.phase}-{state.segment}-{int(now)}",
        "weights": dict((state.previous if probation else state.candidate) or {}),
        "valid_from_wall_s": begin,
        "valid_until_wall_s": begin + stages.lease_s,
        "block_s": _stage_block_s(run),
        "seed": run.settings.seed + state.number,
    }
    if state.phase in ("screen", "ramp"):
        return Split(**common, share=[stages.screen_share, *stages.ramp_shares][state.stage])
    return Switchback(
        **common,
        arm="previous" if probation else "candidate",
        drop_share=stages.drop_share,
        every=stages.probation_every if probation else 1,
    )


def watch_fleet(run: StepRun) -> None:
    """Look at the whole fleet: the baseline outside of a trial, and whether it suffers during one."""
    state, settings = run.state, run.settings
    on_trial = state.phase in ("screen", "ramp", "switchback") and state.thresholds is not None
    slow_ms = state.thresholds.slow_ms if on_trial and state.thresholds is not None else None
    wait_s = late_s(state, settings) + _CLOSE_SLACK_S
    fleet.close(state.watch, settings, run.now_wall_s, late_s=wait_s, slow_ms=slow_ms)
    reason = fleet.harmed(state.watch, settings) if on_trial else ""
    if reason:
        state.ended_for_fleet += 1
        state.cool_until_wall_s = run.now_wall_s + settings.stages.cooldown_s
        _ended(run, reason)


def judge(run: StepRun) -> None:
    """Close what is complete and act on what it shows."""
    state, settings = run.state, run.settings
    if state.trial is None or _unwell(run, state.trial):
        return
    if plain := abrupt(state.record, state.trial):
        _ended(run, plain)
        return
    if _doubted(run):
        return
    added = close(
        state.record,
        state.trial,
        run.now_wall_s,
        late_s=late_s(state, settings) + _CLOSE_SLACK_S,
        min_requests=settings.evidence.min_block_requests,
    )
    if state.phase in ("screen", "ramp"):
        _split(run, added)
    elif state.phase == "switchback":
        _switchback(run, added)
    else:
        _probation(run, added)


def _unwell(run: StepRun, trial: Trial) -> bool:
    """Check whether the fleet fails as a whole, whichever weights choose: then nothing can be learned now.

    It is nobody's fault: no promotion is undone for it, and a candidate that ends by it is no fruitless one.
    """
    state = run.state
    share = unwell(state.record, trial, run.settings)
    if not share:
        return False
    state.unwell += 1
    if state.unwell >= _UNWELL_TIMES and state.phase != "probation":
        reason = f"the fleet became unwell {state.unwell} times in this trial: {share}"
        run.drop_candidate()
        run.go("baseline", f"candidate {state.number} ended in {state.phase}: {reason}")
    else:
        state.pause_until_wall_s = run.now_wall_s + _UNWELL_PAUSE_S
        _pause(run, f"the fleet is unwell: {share}")
    return True


def _doubted(run: StepRun) -> bool:
    """Measure every pair where promoted weights begin to fail: the other arm's next turn may be far."""
    state, trial = run.state, run.state.trial
    if not isinstance(trial, Switchback) or trial.every == 1 or not fails_now(state.record, trial):
        return False
    run.note("the new weights fail: every pair is measured from now on")
    run.unschedule()
    state.trial = msgspec.structs.replace(_begin(run), every=1)
    return True


def _ended(run: StepRun, reason: str) -> None:
    state = run.state
    run.refuse(state.candidate or state.incumbent)
    if state.phase != "probation":
        run.fruitless(f"candidate {state.number} ended in {state.phase}: {reason}")
        return
    demoted = f"candidate {state.number} demoted: {reason}"
    run.adopt(state.previous or state.incumbent, "demoted", demoted)
    run.fruitless(demoted)


def _split(run: StepRun, added: int) -> None:
    state, stages = run.state, run.settings.stages
    lasted_s = run.now_wall_s - state.since_wall_s
    verdict = judge_split(state.record, run.settings)
    if added and verdict.kind == END:
        _ended(run, verdict.reason)
        return
    served = state.record.totals.get("candidate")
    if served is not None and served.requests >= stages.stage_requests and lasted_s >= stages.stage_s:
        reason = f"candidate {state.number}: {verdict.reason} in {served.requests} requests"
        if state.stage < len(stages.ramp_shares):
            stage = state.stage + 1
            run.go("ramp", f"{reason}; to {stages.ramp_shares[stage - 1]:.0%}")
            state.stage = stage
        else:
            state.tests += 1
            run.go("switchback", reason)
    elif lasted_s > stages.stage_max_s:
        _ended(run, f"too little traffic: {served.requests if served else 0} requests")


def _switchback(run: StepRun, added: int) -> None:
    state, evidence = run.state, run.settings.evidence
    assert state.trial is not None  # noqa: S101 - `judge` has looked
    if added:
        verdict = judge_switchback(state.record, run.settings, level(state))
        if verdict.kind == PASS:
            _promoted(run, verdict.reason)
            return
        if verdict.kind == END:
            _ended(run, verdict.reason)
            return
    longest_s = 4.0 * evidence.max_pairs * state.trial.block_s
    if run.now_wall_s - state.since_wall_s > longest_s:
        _ended(run, f"too little traffic: {len(state.record.units)} pairs in all this time")


def _promoted(run: StepRun, reason: str) -> None:
    state = run.state
    old = state.incumbent
    run.adopt({**old, **(state.candidate or {})}, "promoted", f"candidate {state.number}: {reason}")
    state.previous, state.candidate = old, None
    state.promotions += 1
    state.fruitless = 0
    run.go("probation", f"candidate {state.number} promoted: {reason}")


def _probation(run: StepRun, added: int) -> None:
    state, stages = run.state, run.settings.stages
    verdict = judge_probation(state.record, run.settings) if added else None
    if verdict is not None and verdict.kind == END:
        _ended(run, verdict.reason)
    elif verdict is not None and verdict.kind == PASS:
        _settled(run, verdict.reason)
    elif run.now_wall_s - state.since_wall_s > stages.probation_max_s:
        _settled(run, f"nothing to regret in {len(state.record.units)} pairs; time is up")


def _settled(run: StepRun, reason: str) -> None:
    run.drop_candidate()
    run.go("baseline", f"candidate {run.state.number} stays: {reason}")


def watch(run: StepRun) -> None:
    """Compare stretches of time with the first one after freezing; thaw on drift."""
    state, settings = run.state, run.settings
    baseline, drift = state.baseline, settings.drift
    if baseline.requests < drift.min_requests or baseline.lasted_s < drift.lasting_s:
        return
    state.baseline = Baseline()
    if baseline.failed_share > settings.max_failed_share:
        share = f"{baseline.failed_share:.0%} failed"
        run.note(f"the fleet is unwell: {share}; this time is compared with nothing")
        return
    state.thresholds = state.thresholds or freeze(baseline, settings.goal, run.now_wall_s)
    if state.thresholds is None:
        return
    now = _features(baseline, state.thresholds)
    if state.reference is None:
        state.reference = now
        return
    change = drifted(state.reference, now, drift)
    if change and not state.held:
        run.thaw(f"drift: {change}")


def _features(baseline: Baseline, thresholds: Thresholds) -> Features:
    """Features of a stretch of time in which the incumbent served; failures are no drift and left out."""
    limit = bin_of(thresholds.slow_ms)
    slow = sum(n for place, n in baseline.measure_ms.items() if place > limit) - baseline.failed
    return Features(
        weights_version=baseline.weights_version,
        rate_per_s=baseline.requests / max(baseline.lasted_s, 1.0),
        prompt_tokens=baseline.prompt_tokens / max(1, baseline.requests),
        slow_share=max(0, slow) / max(1, baseline.requests - baseline.failed),
    )


def drifted(before: Features, now: Features, settings: Drift) -> str:
    """Say what has changed; empty where nothing has."""
    if now.weights_version != before.weights_version:
        return "other weights are in force than those that were frozen"
    for name, a, b in (
        ("arrival rate", before.rate_per_s, now.rate_per_s),
        ("mean prompt", before.prompt_tokens, now.prompt_tokens),
    ):
        if a > 0.0 and b > 0.0 and not 1.0 / settings.factor <= b / a <= settings.factor:
            return f"{name} is {b / a:.2f} times what it was"
    change = now.slow_share - before.slow_share
    if abs(change) > settings.slow_change:
        return f"share of slow requests moved from {before.slow_share:.3f} to {now.slow_share:.3f}"
    return ""


def silence(run: StepRun, sample: Sample) -> None:
    """Leave time out in which nothing came for long before a sample: a rate over it would say nothing.

    Nor is it time of a baseline: a burst, and one request an hour later, would complete it. A stretch that
    is compared begins anew. Where requests are rare anyway, a pause is one of many times the usual time
    between two.
    """
    state, settings = run.state, run.settings
    baseline, frozen = state.baseline, state.phase == "frozen"
    lasting_s = settings.drift.lasting_s if frozen else settings.stages.baseline_s
    usual_s = baseline.lasted_s / max(1, baseline.requests - 1)
    silent_s = sample.dispatched_wall_s - baseline.until_wall_s
    if not baseline.requests or silent_s <= max(_SILENT_SHARE * lasting_s, _SILENT_TIMES * usual_s):
        return
    if frozen:
        state.baseline = Baseline()
    else:
        baseline.since_wall_s += silent_s
