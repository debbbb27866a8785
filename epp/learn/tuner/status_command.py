"""`epp tune status`: incumbent, candidate, evidence so far and the next step, for people.

Owns the words; figures are `epp.learn.tuner.status`'s. Everything comes from the persisted state, so that it
can be
asked on any machine that sees the shared folder; nothing is judged here that `epp.learn.tuner.verdict` does
not
judge the same.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from epp.learn.sidecar.lock import holder_of
from epp.learn.tuner.settings import TunerSettings
from epp.learn.tuner.status import status
from epp.learn.tuner.tally import CONCENTRATION, E2E, ERRORS, SLOW
from epp.learn.tuner.verdict import judge_switchback, log_e_regret, margins

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from epp.learn.sidecar.paths import WeightsPaths
    from epp.learn.tuner.state import State
    from epp.learn.tuner.status import Status

_LAST_CHANGES = 3
_TITLES = {
    SLOW: "slow requests",
    E2E: "slow E2E",
    ERRORS: "failed",
    CONCENTRATION: "hottest endpoint",
}


def status_lines(
    state: State | None, settings: TunerSettings, paths: WeightsPaths, now_wall_s: float
) -> list[str]:
    """The whole answer.

    Args:
        state: as persisted, None where no tuner has run.
        settings: what the tuner goes by, where its memory does not say.
        paths: of its files.
        now_wall_s: the time.
    """
    runs = running(paths.lock, paths.memory, now_wall_s)
    if state is None:
        return [f"tuner: {runs}", f"no state beside {paths.weights}: no tuner has run on this file"]
    settings = went_by(state, settings)
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
    told = status(state, settings)
    lines += evidence(state, settings, told)
    lines += whole_fleet(state, settings, now_wall_s)
    if state.fruitless:
        limit = settings.stages.freeze_after
        after = f" of {limit} after which it freezes" if limit else ""
        lines.append(f"in a row without a promotion: {state.fruitless}{after}")
    if state.phase == "search" and state.search.get("failed"):
        lines.append(f"the rehearsal failed and is begun again later: {state.search['failed']}")
    lines.append(f"next: {told.next_step}")
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


def went_by(state: State, settings: TunerSettings) -> TunerSettings:
    """What the tuner of this memory went by; the given settings where it says nothing that is understood."""
    try:
        return msgspec.convert(state.settings, TunerSettings) if state.settings else settings
    except msgspec.ValidationError:
        return settings


def evidence(state: State, settings: TunerSettings, told: Status | None = None) -> list[str]:
    """What is known by now, and of what; nothing where no evidence is being gathered.

    Args:
        state: as persisted.
        settings: what the tuner goes by, where its memory does not say.
        told: its figures, where they are at hand.
    """
    settings = went_by(state, settings)
    stages, phase = settings.stages, state.phase
    told = told or status(state, settings)
    if not told.progress.need:
        return []
    if phase == "baseline":
        return [f"{told.enough} to know how the incumbent serves"]
    if phase in ("screen", "ramp"):
        share = [stages.screen_share, *stages.ramp_shares][: state.stage + 1][-1]
        slices = f"{len(state.record.units)} slices of time compared"
        return [f"split at {share:.0%}: {told.enough}, {slices}", *_latencies(settings, told)]
    if phase == "switchback":
        return [*_switchback(state, settings, told), *_latencies(settings, told)]
    need = -math.log(settings.evidence.guard_level)
    regret = log_e_regret(state.record, settings)
    words = f"evidence of regret e^{regret:.2f} of e^{need:.2f}"
    return [f"probation: {told.enough}; {words}", *_latencies(settings, told)]


def _latencies(settings: TunerSettings, told: Status) -> Iterator[str]:
    """The quantile itself: people ask for it. Nothing rests on it."""
    goal = settings.goal
    parts = [
        f"{arm} {found.value_ms:,.0f} ms [{found.low_ms:,.0f}, {found.high_ms:,.0f}] of {found.requests:,}"
        for arm, found in sorted(told.latencies.items())
    ]
    if parts:
        name = "TTFT" if goal.measure == "ttft" else "felt latency"
        yield f"  {name} p{100.0 * goal.quantile:g}, as if requests were independent: {'; '.join(parts)}"


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


def _switchback(state: State, settings: TunerSettings, told: Status) -> Iterator[str]:
    record, rules, figures = state.record, settings.evidence, told.figures
    pairs, requests = len(record.units), sum(unit.requests for unit in record.units)
    yield f"switchback: {told.enough}, at most {rules.max_pairs}; {requests:,} requests judged"
    if not pairs:
        return
    yield (
        f"  objective: {_TITLES[SLOW]} {_span(figures, SLOW)}; evidence e^{figures['log_e']:.2f} "
        f"of e^{figures['log_need']:.2f} that a promotion takes"
    )
    for measure, margin in margins(settings.goal).items():
        yield f"  guard: {_TITLES[measure]} {_span(figures, measure)}, up to {100.0 * margin:+.2f} allowed"
    verdict = judge_switchback(record, settings, math.exp(-figures["log_need"]))
    yield f"  verdict so far: {verdict.reason}"


def _span(figures: Mapping[str, float], measure: str) -> str:
    low, high = (100.0 * figures[f"{measure}_{end}"] for end in ("low", "high"))
    return f"[{low:+.2f}, {high:+.2f}] points"


def running(lock: Path, written: Path, now_wall_s: float) -> str:
    """Who holds a lock, and when it last wrote a file that it writes every few seconds."""
    holder = holder_of(lock)
    if not holder:
        return "not running"
    try:
        return f"{holder}, last wrote {ago(now_wall_s - written.stat().st_mtime)}"
    except OSError:
        return holder


def _at(wall_s: float) -> str:
    return f"{datetime.fromtimestamp(wall_s, UTC):%Y-%m-%d %H:%MZ}"


def ago(seconds: float) -> str:
    """How long something is past, for people."""
    for size, name in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {name} ago"
    return f"{max(seconds, 0.0):.0f} s ago"
