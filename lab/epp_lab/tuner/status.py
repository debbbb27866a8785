"""`epp tune status`: incumbent, candidate, evidence so far and the next step, for people.

Everything comes from the persisted state, so that it can be asked on any machine that sees the shared folder,
and by the settings that its tuner goes by. Nothing is judged here that `epp_lab.tuner.verdict` does not
judge.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from epp.records.weight_files import ago, history_lines, values
from epp_lab.sidecar.process import running
from epp_lab.tuner.tally import CONCENTRATION, E2E, ERRORS, SLOW
from epp_lab.tuner.trials import level
from epp_lab.tuner.verdict import intervals, judge_switchback, log_e, log_e_regret, margins
from epp_lab.tuner.watch import comparison

if TYPE_CHECKING:
    from collections.abc import Iterator

    from epp.records.weight_files import WeightsPaths
    from epp_lab.tuner.state import TunerState

_LAST_CHANGES = 3
_TITLES = {SLOW: "slow requests", E2E: "slow E2E", ERRORS: "failed", CONCENTRATION: "hottest endpoint"}
_THAW = "somebody says `epp tune thaw`"


def status_lines(state: TunerState | None, paths: WeightsPaths, now_wall_s: float) -> Iterator[str]:
    """Write the whole answer.

    Args:
        state: as persisted, None where no tuner has run.
        paths: of its files.
        now_wall_s: the time.
    """
    runs = running(paths.lock, paths.memory, now_wall_s)
    if state is None:
        yield f"tuner: {runs}"
        yield f"no state beside {paths.weights}: no tuner has run on this file"
        return
    yield f"tuner: {runs}; policy {state.policy}"
    yield f"phase: {state.phase}, since {ago(now_wall_s - state.since_wall_s)}: {state.reason}"
    yield f"incumbent: {values(state.incumbent, state.pins)}"
    if state.phase == "probation" and state.previous is not None:
        yield f"the incumbent before: {values(state.previous, state.pins)}"
    elif state.candidate is not None:
        yield f"candidate {state.number}: {values(state.candidate, state.pins)}"
    if state.paused:
        yield f"paused: {state.paused}"
    yield from evidence(state)
    yield from _whole_fleet(state, now_wall_s)
    if state.fruitless:
        limit = state.settings.stages.freeze_after
        after = f" of {limit} after which it freezes" if limit else ""
        yield f"in a row without a promotion: {state.fruitless}{after}"
    if state.phase == "search" and state.rehearsal_failed:
        yield f"the rehearsal failed and is begun again later: {state.rehearsal_failed}"
    yield f"next: {_next_step(state)}"
    yield "last changes (`epp weights history` has all):"
    yield from (f"  {line}" for line in history_lines(state.history, now_wall_s)[-_LAST_CHANGES:])


def evidence(state: TunerState) -> Iterator[str]:
    """Write what is known by now beside what the next step takes; nothing where none is gathered."""
    stages, rules, record = state.settings.stages, state.settings.evidence, state.record
    pairs = len(record.units)
    match state.phase:
        case "baseline":
            baseline = state.baseline
            enough = _enough(
                baseline.requests, stages.baseline_requests, "requests", baseline.lasted_s, stages.baseline_s
            )
            yield f"{enough} to know how the incumbent serves"
        case "screen" | "ramp":
            share = [stages.screen_share, *stages.ramp_shares][state.stage]
            served = record.totals["candidate"].requests if "candidate" in record.totals else 0
            lasted_s = max(0.0, state.clock_wall_s - state.since_wall_s)
            enough = _enough(served, stages.stage_requests, "requests", lasted_s, stages.stage_s)
            yield f"split at {share:.0%}: {enough}, {pairs} slices of time compared"
        case "switchback":
            requests = sum(unit.requests for unit in record.units)
            enough = _enough(pairs, rules.min_pairs, "pairs")
            yield f"switchback: {enough}, at most {rules.max_pairs}; {requests:,} requests judged"
            if pairs:
                yield from _switchback(state)
        case "probation":
            need, regret = -math.log(rules.guard_level), log_e_regret(record, state.settings)
            enough = _enough(pairs, stages.probation_pairs, "pairs")
            yield f"probation: {enough}; evidence of regret e^{regret:.2f} of e^{need:.2f}"


def _enough(have: int, need: int, unit: str, lasted_s: float = 0.0, least_s: float = 0.0) -> str:
    is_enough = have >= need and lasted_s >= least_s
    time = f", {lasted_s:.0f} of {least_s:.0f} s" if least_s else ""
    words = "enough evidence to be judged" if is_enough else "not enough evidence"
    return f"{words} ({have} of {need} {unit}{time})"


def _switchback(state: TunerState) -> Iterator[str]:
    record, settings, needed = state.record, state.settings, level(state)
    found = {
        measure: f"[{100.0 * low:+.2f}, {100.0 * high:+.2f}] points"
        for measure, (low, high) in intervals(record, settings).items()
    }
    yield (
        f"  objective: {_TITLES[SLOW]} {found[SLOW]}; evidence e^{log_e(record, settings):.2f} "
        f"of e^{-math.log(needed):.2f} that a promotion takes"
    )
    for measure, margin in margins(settings.goal).items():
        yield f"  guard: {_TITLES[measure]} {found[measure]}, up to {100.0 * margin:+.2f} allowed"
    yield f"  verdict so far: {judge_switchback(record, settings, needed).reason}"


def _whole_fleet(state: TunerState, now_wall_s: float) -> Iterator[str]:
    """Write how the guard over the whole fleet sees the trial, and what it did."""
    watch, need = state.watch, 1.0 / state.settings.evidence.fleet_level
    if state.phase in ("screen", "ramp", "switchback"):
        none = f"not enough evidence ({len(watch.baseline)} blocks of before to compare with)"
        found = comparison(watch, "before the trial under that load") if watch.blocks else none
        yield f"whole fleet: {found}; evidence of harm {watch.evidence:.3g} of {need:g}"
        if watch.alone:
            yield f"  {watch.alone} blocks had a load for which there is nothing to compare with"
    if state.ended_for_fleet:
        yield f"trials ended because the whole fleet suffered: {state.ended_for_fleet}"
    if now_wall_s < state.cool_until_wall_s:
        yield f"cooling down for {state.cool_until_wall_s - now_wall_s:.0f} s before anything else is tried"


def _next_step(state: TunerState) -> str:
    stages = state.settings.stages
    match state.phase:
        case "baseline":
            then = "the screen" if state.candidate is not None else "the search"
            return f"the incumbent's quantile is frozen, then {then}"
        case "search":
            return "a rehearsal in the simulator proposes a candidate, or finds nothing better"
        case "screen" | "ramp":
            if state.stage < len(stages.ramp_shares):
                return f"where no harm shows, {stages.ramp_shares[state.stage]:.0%} of sessions"
            return "where no harm shows, the switchback of the whole fleet"
        case "switchback":
            return "promotion, if it is shown to be better and to do no harm; else the incumbent stays"
        case "probation":
            return "the new weights stay, or on regret the old ones are back"
        case "frozen":
            until = f"until {_THAW}: it was frozen by request"
            return f"nothing, {until if state.held else f'until the workload drifts or {_THAW}'}"
