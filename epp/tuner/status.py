"""What an operator is told of the tuner: where it stands, how much evidence there is, what comes next."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from epp.tuner.discoveries import level
from epp.tuner.histogram import quantile, quantile_bounds
from epp.tuner.verdict import figures

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epp.tuner.state import Rules, State


@dataclass(frozen=True, slots=True)
class Latency:
    """An arm's quantile of the goal's measure with bounds that hold at all times; NaN without requests."""

    requests: int
    value_ms: float
    low_ms: float
    high_ms: float


@dataclass(frozen=True, slots=True)
class Status:
    """Where the tuner stands.

    Attributes:
        phase: of the candidate's life.
        since_wall_s: when it began.
        reason: why.
        incumbent: weights in force.
        candidate: weights on trial, None when there are none.
        have: evidence so far, in the unit of ``need``.
        need: evidence that the next step takes at least.
        unit: ``requests`` or ``pairs``.
        next_step: what comes next, in words.
        evidence: figures of the present stage.
        latencies: arm -> its quantile.
        pins: weights that the operator fixed.
    """

    phase: str
    since_wall_s: float
    reason: str
    incumbent: Mapping[str, float]
    candidate: Mapping[str, float] | None
    have: int
    need: int
    unit: str
    next_step: str
    evidence: Mapping[str, float]
    latencies: Mapping[str, Latency]
    pins: Mapping[str, float]

    @property
    def enough(self) -> str:
        """``not enough evidence (n of N)``, or that there is."""
        if not self.need:
            return "no evidence is being gathered"
        what = "enough evidence for a verdict" if self.have >= self.need else "not enough evidence"
        return f"{what} ({self.have} of {self.need} {self.unit})"


def status(state: State, rules: Rules) -> Status:
    """The state in figures and words."""
    have, need, unit, next_step = _progress(state, rules)
    evidence: Mapping[str, float] = {}
    settings = rules.settings
    if state.phase == "switchback" and state.record.units:
        needed = level(settings.evidence.false_promotions, max(1, state.tests), state.promotions)
        evidence = figures(state.record, settings, needed)
    q, alpha = settings.goal.quantile, settings.evidence.guard_level
    latencies = {
        arm: Latency(
            sum(histogram.values()), quantile(histogram, q), *quantile_bounds(histogram, q, alpha=alpha)
        )
        for arm, histogram in state.record.latencies_ms.items()
    }
    return Status(
        phase=state.phase,
        since_wall_s=state.since_wall_s,
        reason=state.reason,
        incumbent=state.incumbent,
        candidate=state.candidate,
        have=have,
        need=need,
        unit=unit,
        next_step=next_step if not state.paused else f"paused ({state.paused}); then {next_step}",
        evidence=evidence,
        latencies=latencies,
        pins=state.pins,
    )


def _progress(state: State, rules: Rules) -> tuple[int, int, str, str]:
    stages, evidence = rules.settings.stages, rules.settings.evidence
    record = state.record
    match state.phase:
        case "baseline":
            then = "the screen" if state.candidate is not None else "the search"
            what = f"the incumbent's quantile is frozen, then {then}"
            return state.baseline.requests, stages.baseline_requests, "requests", what
        case "search":
            return 0, 0, "", "a rehearsal in the simulator proposes a candidate, or finds nothing better"
        case "screen" | "ramp":
            tally = record.totals.get("candidate")
            shares = [stages.screen_share, *stages.ramp_shares]
            last = state.stage + 1 >= len(shares)
            what = (
                "the switchback of the whole fleet" if last else f"{shares[state.stage + 1]:.0%} of sessions"
            )
            return tally.requests if tally else 0, stages.stage_requests, "requests", what
        case "switchback":
            return len(record.units), evidence.min_pairs, "pairs", "promotion, or the candidate's end"
        case "probation":
            return len(record.units), stages.probation_pairs, "pairs", "the new weights stay, or are demoted"
        case "frozen":
            what = "a request thaws" if state.held else "drift of workload or latency thaws"
            return 0, 0, "", what
    raise AssertionError(state.phase)


def measured(value: float) -> str:
    """A figure for people; a dash for what is not known."""
    return "-" if math.isnan(value) else f"{value:.4g}"
