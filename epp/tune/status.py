"""`epp tune status`: incumbent, candidate, evidence so far and the next step, for people.

Owns the words. Everything comes from the persisted state, so that it can be asked on any machine that sees
the shared folder; nothing is judged here that `epp.tuner.verdict` does not judge the same.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from epp.tune.lock import read_holder
from epp.tuner.discoveries import level
from epp.tuner.tally import CONCENTRATION, E2E, ERRORS, SLOW
from epp.tuner.verdict import judge_probation, judge_split, judge_switchback, margins

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from epp.tune.places import Places
    from epp.tuner.settings import TunerSettings
    from epp.tuner.state import State

_LAST_CHANGES = 3
_NEXT = {
    "baseline": "then candidates are searched for and rehearsed in the simulator",
    "search": "the rehearsal's candidate goes to a small split, or nothing does",
    "screen": "where no harm shows, larger splits",
    "ramp": "where no harm shows, the whole fleet switches between both in random order",
    "switchback": "promotion, if it is shown to be better and to do no harm; else the incumbent stays",
    "probation": "the promoted weights are measured against the old ones, and undone on regret",
    "frozen": "nothing, until the workload drifts or somebody says `epp tune thaw`",
}
_HELD = "nothing, until somebody says `epp tune thaw`: it was frozen by request"
_TITLES = {
    SLOW: "slow requests",
    E2E: "slow E2E",
    ERRORS: "failed",
    CONCENTRATION: "hottest endpoint",
}


def status_lines(
    state: State | None, settings: TunerSettings, places: Places, now_wall_s: float
) -> list[str]:
    """The whole answer.

    Args:
        state: as persisted, None where no tuner has run.
        settings: what the tuner goes by.
        places: of its files.
        now_wall_s: the time.
    """
    holder = read_holder(places.lock)
    runs = "not running" if holder is None else f"{holder}, last sign {ago(now_wall_s - holder.beat_wall_s)}"
    if state is None:
        return [f"tuner: {runs}", f"no state beside {places.weights}: no tuner has run on this file"]
    lines = [
        f"tuner: {runs}; policy {state.policy}",
        f"phase: {state.phase}, since {ago(now_wall_s - state.since_wall_s)}: {state.reason}",
        f"incumbent: {values(state.incumbent, state.pins)}",
    ]
    if state.phase == "probation" and state.previous is not None:
        lines.append(f"the incumbent before: {values(state.previous, state.pins)}")
    elif state.candidate is not None:
        lines.append(f"candidate {state.number}: {values(state.candidate, state.pins)}")
    if state.paused:
        lines.append(f"paused: {state.paused}")
    lines += evidence(state, settings)
    lines += whole_fleet(state, settings, now_wall_s)
    held = state.phase == "frozen" and state.held
    lines.append(f"next: {_HELD if held else _NEXT[state.phase]}")
    if state.history:
        lines.append("last changes (`epp weights history` has all):")
        lines += [f"  {line}" for line in history_lines(state, now_wall_s)[-_LAST_CHANGES:]]
    return lines


def values(weights: Mapping[str, float], pins: Mapping[str, float]) -> str:
    """Weights in a line; pinned ones as what they are."""
    return ", ".join(
        f"{name}={pins[name]:.4g} (pinned)" if name in pins else f"{name}={value:.4g}"
        for name, value in sorted(weights.items())
    )


def history_lines(state: State, now_wall_s: float) -> list[str]:
    """One line an incumbent, oldest first."""
    return [
        f"{change.number}: {_at(change.at_wall_s)}, {ago(now_wall_s - change.at_wall_s)}, {change.how}: "
        f"{values(change.weights, {})} - {change.reason}"
        for change in state.history
    ]


def evidence(state: State, settings: TunerSettings) -> list[str]:
    """What is known by now, and of what."""
    stages, phase = settings.stages, state.phase
    if phase == "baseline":
        seen = f"{state.baseline.requests} of {stages.baseline_requests} requests"
        lasted = f"{state.baseline.lasted_s:.0f} of {stages.baseline_s:.0f} s"
        return [f"not enough evidence ({seen}, {lasted}) to know how the incumbent serves"]
    if phase in ("screen", "ramp"):
        served = state.record.seen("candidate").requests
        share = [stages.screen_share, *stages.ramp_shares][state.stage]
        found = judge_split(state.record, settings)
        seen = f"{served} of {stages.stage_requests} requests, {int(found.figures['units'])} slices of time"
        return [f"split at {share:.0%}: not enough evidence ({seen})"]
    if phase == "switchback":
        return list(_switchback(state, settings))
    if phase == "probation":
        verdict = judge_probation(state.record, settings)
        return [f"probation: {verdict.reason}"]
    return []


def whole_fleet(state: State, settings: TunerSettings, now_wall_s: float) -> Iterator[str]:
    """How the guard over the whole fleet sees the trial, and what it did."""
    watch, need = state.watch, 1.0 / settings.evidence.fleet_level
    if state.phase in ("screen", "ramp", "switchback"):
        found = watch.figures()
        yield (
            f"whole fleet: {found['fleet_slow']:.1%} of requests slow in {watch.blocks} blocks, "
            f"{found['fleet_expected']:.1%} before the trial under that load, "
            f"{found['fleet_allowed']:.1%} allowed; evidence of harm {watch.evidence:.3g} of {need:g}"
            if watch.blocks
            else f"whole fleet: not enough evidence ({len(watch.baseline)} blocks of before to compare with)"
        )
        if watch.alone:
            yield f"  {watch.alone} blocks had a load for which there is nothing to compare with"
    if state.ended_for_fleet:
        yield f"trials ended because the whole fleet suffered: {state.ended_for_fleet}"
    if now_wall_s < state.cool_until_wall_s:
        yield f"cooling down for {state.cool_until_wall_s - now_wall_s:.0f} s before anything else is tried"


def _switchback(state: State, settings: TunerSettings) -> Iterator[str]:
    record, rules = state.record, settings.evidence
    pairs = len(record.units)
    requests = sum(unit.requests for unit in record.units)
    alpha = level(rules.false_promotions, max(1, state.tests), state.promotions)
    yield (
        f"switchback: {pairs} pairs of blocks (at least {rules.min_pairs}, at most {rules.max_pairs}), "
        f"{requests} requests"
    )
    if not pairs:
        yield f"not enough evidence (0 of {rules.min_pairs} pairs)"
        return
    verdict = judge_switchback(record, settings, alpha)
    figures = verdict.figures
    yield (
        f"  objective: {_TITLES[SLOW]} {_span(figures, SLOW)}; evidence e^{figures['log_e']:.2f} "
        f"of e^{-math.log(alpha):.2f} that a promotion takes"
    )
    for measure, margin in margins(settings.goal).items():
        if f"{measure}_low" in figures:
            yield f"  guard: {_TITLES[measure]} {_span(figures, measure)}, up to {margin:+.2%} allowed"
    yield f"  verdict so far: {verdict.reason}"


def _span(figures: Mapping[str, float], measure: str) -> str:
    return f"[{figures[f'{measure}_low']:+.2%}, {figures[f'{measure}_high']:+.2%}]"


def _at(wall_s: float) -> str:
    return f"{datetime.fromtimestamp(wall_s, UTC):%Y-%m-%d %H:%MZ}"


def ago(seconds: float) -> str:
    """How long something is past, for people."""
    for size, name in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {name} ago"
    return f"{max(seconds, 0.0):.0f} s ago"
