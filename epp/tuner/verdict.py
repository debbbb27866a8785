"""What the evidence of a stage allows: go on, go further, or end, with the reason in words.

Owns every comparison between evidence and margins. Pure.

Rules
- Ending a trial is always allowed and needs little; promoting needs all of it: the objective better, at the
  level that the row of candidates leaves; every guardrail shown to be within its margin; and neither slow
  requests nor slow E2E higher in plain counts.
- Each guardrail is tested at its own full level: all must pass, so none can pass for another
  (intersection-union).
- Units whose differences are correlated are merged by pairs until they are not. The objective must pass both
  before and after merging.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from epp.tuner.betting import interval, log_e_above, log_e_below, lower_bound, upper_bound
from epp.tuner.plan import INCUMBENT, PREVIOUS
from epp.tuner.tally import CONCENTRATION, E2E, ERRORS, SLOW, Tally, differences

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from epp.tuner.plan import Trial
    from epp.tuner.record import Record
    from epp.tuner.settings import Goal, TunerSettings

GO_ON, PASS, END = "go-on", "pass", "end"
#: A difference of rates that ends a trial without further evidence, given enough requests.
_ABRUPT = {SLOW: 0.5, ERRORS: 0.3}
_ABRUPT_REQUESTS = 20
_MIN_MERGED = 8


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to do, why, and the figures behind it."""

    kind: str
    reason: str
    figures: Mapping[str, float] = field(default_factory=dict)


def margins(goal: Goal) -> dict[str, float]:
    """Guardrails of a whole fleet's trial: measure -> rise that is not tolerated."""
    return {E2E: goal.e2e_margin, ERRORS: goal.error_margin, CONCENTRATION: goal.concentration_margin}


def lag_one(values: Sequence[float]) -> float:
    """Correlation of each value with the next; 0 where nothing varies."""
    n = len(values)
    mean = sum(values) / n if n else 0.0
    spread = sum((value - mean) ** 2 for value in values)
    if spread <= 1e-15:
        return 0.0
    return sum((a - mean) * (b - mean) for a, b in pairwise(values)) / spread


def uncorrelated(values: Sequence[float]) -> list[float]:
    """Values, merged by pairs while neighbours are alike beyond chance (2 standard errors)."""
    out = list(values)
    while len(out) >= 2 * _MIN_MERGED and lag_one(out) > 2.0 / math.sqrt(len(out)):
        out = [(a + b) / 2.0 for a, b in zip(out[::2], out[1::2], strict=False)]
    return out


def abrupt(record: Record, trial: Trial) -> Verdict | None:
    """Whether the newer weights fail so plainly that nothing need be waited for, open blocks included."""
    newer, older = (INCUMBENT, PREVIOUS) if trial.arm == PREVIOUS else (trial.arm, INCUMBENT)
    open_blocks = (arms[newer] for arms in record.open.values() if newer in arms)
    fullest = max(open_blocks, key=lambda tally: tally.requests, default=Tally())
    against = record.seen(older)
    if against.requests < _ABRUPT_REQUESTS:
        return None
    for tally in (fullest, record.seen(newer)):
        if tally.requests < _ABRUPT_REQUESTS:
            continue
        found = differences(tally, against)
        for measure, limit in _ABRUPT.items():
            if found[measure] >= limit:
                return Verdict(
                    END,
                    f"share of {_WORDS[measure]} is {_points(found[measure])} above the other arm's",
                    {measure: found[measure]},
                )
    return None


def judge_split(record: Record, settings: TunerSettings) -> Verdict:
    """Whether a split shows harm. It cannot show a benefit: arms of one fleet share what harm one does."""
    goal, evidence = settings.goal, settings.evidence
    figures: dict[str, float] = {"units": len(record.units)}
    limits = {SLOW: goal.slow_margin, **margins(goal)}
    for measure, margin in limits.items():
        if measure == CONCENTRATION:
            low = _concentrated(record)
        else:
            low = lower_bound(uncorrelated(record.values(measure)), alpha=evidence.guard_level)
        figures[f"{measure}_low"] = low
        if low > margin:
            return Verdict(END, _harm(measure, low, margin), figures)
    return Verdict(PASS, "no harm shown", figures)


def _concentrated(record: Record) -> float:
    """How much more the candidate concentrates at least, from all of its requests.

    Slices of a small share hold too few requests: the hottest of a few is hot by chance. Requests of a session
    stay together, so ten of them are taken as one; 3 standard errors.
    """
    arm = next((name for name in record.totals if name != INCUMBENT), None)
    if arm is None or not record.totals[arm].requests:
        return -1.0
    found = differences(record.totals[arm], record.totals.get(INCUMBENT, Tally()))
    return found[CONCENTRATION] - 3.0 * math.sqrt(0.25 * 10.0 / record.totals[arm].requests)


def judge_switchback(record: Record, settings: TunerSettings, level: float) -> Verdict:
    """Whether a candidate may be promoted.

    Args:
        record: the evidence.
        settings: margins and bounds.
        level: of the test of the objective, from `epp.tuner.discoveries`.
    """
    goal, evidence = settings.goal, settings.evidence
    bound, n = evidence.block_bound, len(record.units)
    slow = record.values(SLOW)
    log_e = min(log_e_below(part, bound=bound) for part in (slow, uncorrelated(slow)))
    low, high = interval(uncorrelated(slow), alpha=evidence.guard_level, bound=bound)
    figures = {"units": n, "log_e": log_e, "log_need": -math.log(level), "slow_low": low, "slow_high": high}
    if low > 0.0:
        return Verdict(END, f"shown to be worse: slow requests {_points(low)} up at least", figures)
    undecided = []
    for measure, margin in margins(goal).items():
        values = uncorrelated(record.values(measure))
        span = 1.0 if measure == CONCENTRATION else bound
        below = lower_bound(values, alpha=evidence.guard_level, bound=span)
        above = upper_bound(values, alpha=evidence.guard_level, bound=span)
        figures[f"{measure}_low"], figures[f"{measure}_high"] = below, above
        if below > margin:
            return Verdict(END, _harm(measure, below, margin), figures)
        if above >= margin:
            undecided.append(f"{_WORDS[measure]} (up to {_points(above)} up)")
    if n < evidence.min_pairs:
        return Verdict(GO_ON, f"{n} pairs of at least {evidence.min_pairs}", figures)
    if low > -goal.worth:
        return Verdict(END, f"not worth it: better by {_points(-low)} at most", figures)
    better = log_e >= -math.log(level)
    means = {measure: sum(record.values(measure)) / n for measure in (SLOW, E2E)}
    if better and not undecided and means[SLOW] < 0.0 and means[E2E] <= 0.0:
        return Verdict(PASS, f"slow requests {_points(-high)} to {_points(-low)} down, no harm", figures)
    if n >= evidence.max_pairs:
        what = "no proof that it is better" if not better else "no proof that it does no harm"
        return Verdict(END, f"{what} after {n} pairs", figures)
    open_points = ([] if better else ["objective"]) + undecided
    return Verdict(GO_ON, f"not enough evidence yet on {', '.join(open_points) or 'plain counts'}", figures)


def judge_probation(record: Record, settings: TunerSettings) -> Verdict:
    """Whether a promoted candidate is to be regretted."""
    goal, evidence = settings.goal, settings.evidence
    bound = evidence.block_bound
    slow = record.values(SLOW)
    log_e = min(log_e_above(part, bound=bound) for part in (slow, uncorrelated(slow)))
    figures = {"units": float(len(record.units)), "log_e_regret": log_e}
    if log_e >= -math.log(evidence.guard_level):
        return Verdict(END, "slow requests shown to have risen against the old weights", figures)
    for measure, margin in margins(goal).items():
        span = 1.0 if measure == CONCENTRATION else bound
        low = lower_bound(uncorrelated(record.values(measure)), alpha=evidence.guard_level, bound=span)
        figures[f"{measure}_low"] = low
        if low > margin:
            return Verdict(END, _harm(measure, low, margin), figures)
    if len(record.units) >= settings.stages.probation_pairs:
        return Verdict(PASS, f"nothing to regret in {len(record.units)} pairs", figures)
    return Verdict(GO_ON, f"{len(record.units)} pairs of {settings.stages.probation_pairs}", figures)


_WORDS = {
    SLOW: "slow requests",
    E2E: "requests with slow E2E",
    ERRORS: "failed requests",
    CONCENTRATION: "the hottest endpoint's requests",
}


def _points(share: float) -> str:
    return f"{100.0 * share:.2f} points"


def _harm(measure: str, low: float, margin: float) -> str:
    return f"harm: share of {_WORDS[measure]} up by {_points(low)} at least, {_points(margin)} allowed"
