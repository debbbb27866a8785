"""Where the tuner stands, in figures: how much evidence there is, what the next step takes, what comes next.

Owns the counting. Lines for people are made of it by `epp.learn.tuner.status_command` and by the demos. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from epp.learn.tuner.discoveries import level
from epp.learn.tuner.histogram import quantile, quantile_bounds
from epp.learn.tuner.verdict import figures

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epp.learn.tuner.settings import TunerSettings
    from epp.learn.tuner.state import State


@dataclass(frozen=True, slots=True)
class Latency:
    """An arm's quantile of the goal's measure with bounds that hold at all times; NaN without requests."""

    requests: int
    value_ms: float
    low_ms: float
    high_ms: float


@dataclass(frozen=True, slots=True)
class Progress:
    """Evidence of the present stage beside what the next step takes at least.

    Attributes:
        have: in the unit of ``need``.
        need: 0 where no evidence is being gathered.
        unit: ``requests`` or ``pairs``.
        next_step: what comes next, in words.
        lasted_s: since the stage began.
        least_s: for which it must last; 0 for no matter how long.
    """

    have: int
    need: int
    unit: str
    next_step: str
    lasted_s: float = 0.0
    least_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Status:
    """Where the tuner stands.

    Attributes:
        phase: of the candidate's life.
        progress: evidence so far and what comes next.
        figures: of a switchback, from `epp.learn.tuner.verdict.figures`; empty before its first pair.
        latencies: arm -> its quantile.
    """

    phase: str
    progress: Progress
    figures: Mapping[str, float]
    latencies: Mapping[str, Latency]

    @property
    def next_step(self) -> str:
        """What comes next, in words."""
        return self.progress.next_step

    @property
    def enough(self) -> str:
        """``not enough evidence (n of N requests)``, or that there is."""
        found = self.progress
        if not found.need:
            return "no evidence is being gathered"
        is_enough = found.have >= found.need and found.lasted_s >= found.least_s
        what = "enough evidence to be judged" if is_enough else "not enough evidence"
        time = f", {found.lasted_s:.0f} of {found.least_s:.0f} s" if found.least_s else ""
        return f"{what} ({found.have} of {found.need} {found.unit}{time})"


def status(state: State, settings: TunerSettings) -> Status:
    """A state in figures."""
    record, evidence = state.record, settings.evidence
    found: Mapping[str, float] = {}
    if state.phase == "switchback" and record.units:
        needed = level(evidence.false_promotions, max(1, state.tests), state.promotions)
        found = figures(record, settings, needed)
    q, alpha = settings.goal.quantile, evidence.guard_level
    latencies = {
        arm: Latency(
            sum(histogram.values()), quantile(histogram, q), *quantile_bounds(histogram, q, alpha=alpha)
        )
        for arm, histogram in record.latencies_ms.items()
    }
    return Status(state.phase, _progress(state, settings), found, latencies)


def _progress(state: State, settings: TunerSettings) -> Progress:
    stages, record = settings.stages, state.record
    match state.phase:
        case "baseline":
            then = "the screen" if state.candidate is not None else "the search"
            return Progress(
                state.baseline.requests,
                stages.baseline_requests,
                "requests",
                f"the incumbent's quantile is frozen, then {then}",
                state.baseline.lasted_s,
                stages.baseline_s,
            )
        case "search":
            return Progress(
                0, 0, "", "a rehearsal in the simulator proposes a candidate, or finds nothing better"
            )
        case "screen" | "ramp":
            shares = [stages.screen_share, *stages.ramp_shares, 1.0]
            larger = shares[min(state.stage, len(stages.ramp_shares)) + 1]  # of a ramp that had more steps
            where = f"{larger:.0%} of sessions" if larger < 1.0 else "the switchback of the whole fleet"
            served = record.totals.get("candidate")
            return Progress(
                served.requests if served is not None else 0,
                stages.stage_requests,
                "requests",
                f"where no harm shows, {where}",
                max(0.0, state.clock_wall_s - state.since_wall_s),
                stages.stage_s,
            )
        case "switchback":
            what = "promotion, if it is shown to be better and to do no harm; else the incumbent stays"
            return Progress(len(record.units), settings.evidence.min_pairs, "pairs", what)
        case "probation":
            what = "the new weights stay, or on regret the old ones are back"
            return Progress(len(record.units), stages.probation_pairs, "pairs", what)
        case "frozen":
            thaw = "somebody says `epp tune thaw`"
            held = f"nothing, until {thaw}: it was frozen by request"
            return Progress(0, 0, "", held if state.held else f"nothing, until the workload drifts or {thaw}")
    raise AssertionError(state.phase)
