"""What the evidence of a stage allows: go on, go further, or end, with the reason in words.

Owns every comparison between evidence and margins. Pure.

Rules
- Ending a trial is always allowed and needs little, but a burst of load within one block is not enough.
  Promoting needs all of it: the objective better, at the level that the row of candidates leaves; every
  guardrail shown to be within its margin; and neither slow requests nor slow E2E higher in plain counts.
- Each guardrail is tested at its own full level: all must pass, so none can pass for another
  (intersection-union).
- Concentration stands for harm that a split cannot see. In a switchback the harm itself is seen, at full
  share: there it counts only while latency does not gain beyond doubt, TTFT and E2E alike. An incumbent that
  spreads whatever it costs is not the measure of herding.
- Tests see winsorised differences, so that one wild block decides nothing; the plain means must agree.
- Units whose differences are correlated are merged by pairs until they are not. The objective must pass both
  before and after merging.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from epp.learn.tuner.betting import (
    interval,
    log_e_above,
    log_e_below,
    lower_bound,
    shown_above,
    shown_below,
    upper_bound,
)
from epp.learn.tuner.plan import INCUMBENT, PREVIOUS, Switchback
from epp.learn.tuner.tally import CONCENTRATION, E2E, ERRORS, SLOW, Tally, differences

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from epp.learn.tuner.plan import Trial
    from epp.learn.tuner.record import Record
    from epp.learn.tuner.settings import Goal, TunerSettings

GO_ON, PASS, END = "go-on", "pass", "end"
#: A difference of rates that ends a trial without further evidence, given enough requests.
_ABRUPT = {ERRORS: 0.3, SLOW: 0.5}
_ABRUPT_REQUESTS = 20
#: In a switchback so many of the latest pairs, those under way included, must be slow beyond that limit.
_ABRUPT_PAIRS, _LATEST_PAIRS = 2, 4
_MIN_MERGED = 8
_SPAN_MARGINS = 20.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to do, and why."""

    kind: str
    reason: str


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


def _arms(trial: Trial) -> tuple[str, str]:
    """The arm with the newer weights, and the other one."""
    return (INCUMBENT, PREVIOUS) if trial.arm == PREVIOUS else (trial.arm, INCUMBENT)


def unwell(record: Record, trial: Trial, settings: TunerSettings) -> str:
    """How much of the fleet fails, whichever weights choose; empty while one arm at least does well."""
    shares = []
    for arm in _arms(trial):
        newest = record.newest(arm, _ABRUPT_REQUESTS)
        shares.append(newest.failed / newest.requests if newest.requests >= _ABRUPT_REQUESTS else 0.0)
    if min(shares) <= settings.max_failed_share:
        return ""
    return f"{shares[0]:.0%} and {shares[1]:.0%} of the newest requests fail in the two arms"


def abrupt(record: Record, trial: Trial) -> Verdict | None:
    """Whether the newer weights fail so plainly that nothing need be waited for, open blocks included.

    The arms of a switchback have their blocks at different times, so a burst of load within one block looks
    like slow weights: there a second pair must say the same. An outage looks like weights that fail: there
    the other arm must have done well in a later block, or a second pair must say the same; in a split, in
    the same block. What failed is not called slow here.
    """
    newer, older = _arms(trial)
    found = _fails_alone(record, newer, older, trial)
    if found >= _ABRUPT[ERRORS]:
        return _plain(ERRORS, found)
    open_blocks = (arms[newer] for arms in record.open.values() if newer in arms)
    fullest = max(open_blocks, key=lambda tally: tally.requests, default=Tally())
    against = record.seen(older)
    if against.requests < _ABRUPT_REQUESTS:
        return None
    for tally in (fullest, record.seen(newer)):
        if tally.requests < _ABRUPT_REQUESTS:
            continue
        found = _slower(tally, against)
        if found < _ABRUPT[SLOW]:
            continue
        if not isinstance(trial, Switchback) or _slow_again(record, newer, against):
            return _plain(SLOW, found)
    return None


def _plain(measure: str, found: float) -> Verdict:
    reason = f"share of {_WORDS[measure]} is {_points(found)} above the other arm's"
    return Verdict(END, reason)


def _slower(tally: Tally, against: Tally) -> float:
    """Rise of the share of slow requests, less what failed more: that is judged as failures."""
    found = differences(tally, against)
    return found[SLOW] - max(0.0, found[ERRORS])


def _fails_alone(record: Record, newer: str, older: str, trial: Trial) -> float:
    """How much more the newer weights fail, where time cannot be the cause; 0 while it may be."""
    limit = _ABRUPT[ERRORS]
    mine, others = _full(record, newer), _full(record, older)
    if not isinstance(trial, Switchback):
        both = [differences(mine[block], others[block])[ERRORS] for block in mine if block in others]
        seen, against = record.seen(newer), record.seen(older)
        if min(seen.requests, against.requests) >= _ABRUPT_REQUESTS:
            both.append(differences(seen, against)[ERRORS])
        return max(both, default=0.0)
    pairs = [unit.errors for unit in record.units[-_LATEST_PAIRS:] if unit.errors >= limit]
    if len(pairs) >= _ABRUPT_PAIRS:
        return min(pairs)
    bad = _failing_blocks(mine, others)
    return bad[max(mine)] if max(mine, default=-1) in bad and min(bad) < max(others) else 0.0


def fails_now(record: Record, trial: Trial) -> bool:
    """Whether the newer weights have just begun to fail; the other arm has had no block since."""
    newer, older = _arms(trial)
    mine, others = _full(record, newer), _full(record, older)
    return max(mine, default=-1) in _failing_blocks(mine, others) and max(mine) > max(others)


def _failing_blocks(mine: Mapping[int, Tally], others: Mapping[int, Tally]) -> dict[int, float]:
    """Blocks of the newer weights that fail plainly beside the other arm's newest one, and by how much."""
    if not others:
        return {}
    against = others[max(others)]
    found = {block: differences(tally, against)[ERRORS] for block, tally in mine.items()}
    return {block: rise for block, rise in found.items() if rise >= _ABRUPT[ERRORS]}


def _full(record: Record, arm: str) -> dict[int, Tally]:
    """An arm's open blocks with enough requests to be looked at alone."""
    blocks = {block: arms[arm] for block, arms in record.open.items() if arm in arms}
    return {block: tally for block, tally in blocks.items() if tally.requests >= _ABRUPT_REQUESTS}


def _slow_again(record: Record, newer: str, against: Tally) -> bool:
    """Whether more than one of a switchback's latest pairs is plainly slow under the newer weights."""
    limit = _ABRUPT[SLOW]
    full = _full(record, newer)
    under_way = {block // 2 for block, tally in full.items() if _slower(tally, against) >= limit}
    complete = sum(unit.slow - max(0.0, unit.errors) >= limit for unit in record.units[-_LATEST_PAIRS:])
    return len(under_way) + complete >= _ABRUPT_PAIRS


def judge_split(record: Record, settings: TunerSettings) -> Verdict:
    """Whether a split shows harm. It cannot show a benefit: arms of one fleet share what harm one does."""
    goal = settings.goal
    if (low := _concentrated(record)) > goal.concentration_margin:
        return Verdict(END, _harm(CONCENTRATION, low, goal.concentration_margin))
    limits = {SLOW: goal.slow_margin, E2E: goal.e2e_margin, ERRORS: goal.error_margin}
    ended = _harmed(record, limits, settings, bound=1.0)
    return ended or Verdict(PASS, "no harm shown")


def _harmed(
    record: Record, limits: Mapping[str, float], settings: TunerSettings, *, bound: float
) -> Verdict | None:
    """The first guardrail that is shown to be broken."""
    alpha = settings.evidence.guard_level
    for measure, margin in limits.items():
        values, span = uncorrelated(record.values(measure)), _span(measure, margin, bound)
        if shown_above(values, margin, alpha=alpha, bound=span):
            low = lower_bound(values, alpha=alpha, bound=span)
            return Verdict(END, _harm(measure, low, margin))
    return None


def _span(measure: str, margin: float, bound: float) -> float:
    """To what a guardrail's differences are winsorised: stakes are limited by it, and margins are small."""
    return 1.0 if measure == CONCENTRATION else min(bound, _SPAN_MARGINS * margin)


def _concentrated(record: Record) -> float:
    """How much more the candidate concentrates at least, from all of its requests.

    Slices of a small share hold too few requests: the hottest of a few is hot by chance. Requests of a
    session stay together, so ten of them are taken as one; 3 standard errors.
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
        level: of the test of the objective, from `epp.learn.tuner.discoveries`.
    """
    goal, evidence = settings.goal, settings.evidence
    bound, n, half = evidence.block_bound, len(record.units), evidence.guard_level / 2.0
    slow = record.values(SLOW)
    merged = uncorrelated(slow)
    if shown_above(merged, 0.0, alpha=half, bound=bound):
        return Verdict(END, "shown to be worse: more slow requests")
    ended = _harmed(record, _limits(record, settings), settings, bound=bound)
    if ended is not None:
        return ended
    if n < evidence.min_pairs:
        return Verdict(GO_ON, f"{n} pairs of at least {evidence.min_pairs}")
    if shown_above(merged, -goal.worth, alpha=half, bound=bound):
        found = figures(record, settings, level)
        return Verdict(END, f"not worth it: better by {_points(-found['slow_low'])} at most")
    better = min(log_e_below(part, bound=bound) for part in (slow, merged)) >= -math.log(level)
    doubts = [] if better else ["the objective"]
    for measure, margin in margins(goal).items():
        raw = record.values(measure)
        values, span = uncorrelated(raw), _span(measure, margin, bound)
        shown = shown_below(values, margin, alpha=evidence.guard_level, bound=span)
        if measure == CONCENTRATION and better and _gains(record, settings, E2E):
            continue
        if not shown or sum(raw) >= n * margin:
            doubts.append(_WORDS[measure])
    if sum(slow) >= 0.0 or sum(record.values(E2E)) > 0.0:
        doubts.append("plain counts")
    if not doubts:
        found = figures(record, settings, level)
        low, high = _points(-found["slow_high"]), _points(-found["slow_low"])
        return Verdict(PASS, f"slow requests {low} to {high} down, no harm")
    words = f"not enough evidence on {', '.join(doubts)} in {n} pairs"
    return Verdict(END if n >= evidence.max_pairs else GO_ON, words)


def _limits(record: Record, settings: TunerSettings) -> dict[str, float]:
    """Guardrails that may end a trial now; concentration not while it may yet be excused."""
    limits = margins(settings.goal)
    few = len(record.units) < settings.evidence.min_pairs
    if few or (sum(record.values(SLOW)) < 0.0 and sum(record.values(E2E)) < 0.0):
        del limits[CONCENTRATION]
    return limits


def _gains(record: Record, settings: TunerSettings, measure: str) -> bool:
    """Whether a measure is shown to be lower at all, neighbours alike or not."""
    raw, alpha = record.values(measure), settings.evidence.guard_level
    span = _span(measure, margins(settings.goal)[measure], settings.evidence.block_bound)
    return all(shown_below(part, 0.0, alpha=alpha, bound=span) for part in (raw, uncorrelated(raw)))


def figures(record: Record, settings: TunerSettings, level: float) -> dict[str, float]:
    """Evidence of a switchback in figures: the log e-value beside what it needs, and bounds by measure."""
    bound, alpha = settings.evidence.block_bound, settings.evidence.guard_level
    slow = record.values(SLOW)
    log_e = min(log_e_below(part, bound=bound) for part in (slow, uncorrelated(slow)))
    out = {"units": float(len(slow)), "log_e": log_e, "log_need": -math.log(level)}
    out["slow_low"], out["slow_high"] = interval(uncorrelated(slow), alpha=alpha, bound=bound)
    for measure, margin in margins(settings.goal).items():
        values, span = uncorrelated(record.values(measure)), _span(measure, margin, bound)
        out[f"{measure}_low"] = lower_bound(values, alpha=alpha, bound=span)
        out[f"{measure}_high"] = upper_bound(values, alpha=alpha, bound=span)
    return out


def log_e_regret(record: Record, settings: TunerSettings) -> float:
    """Logarithm of the e-value that slow requests have risen against the old weights."""
    slow = record.values(SLOW)
    bound = settings.evidence.block_bound
    return min(log_e_above(part, bound=bound) for part in (slow, uncorrelated(slow)))


def judge_probation(record: Record, settings: TunerSettings) -> Verdict:
    """Whether a promoted candidate is to be regretted."""
    evidence, n, wanted = settings.evidence, len(record.units), settings.stages.probation_pairs
    bound = evidence.block_bound
    if log_e_regret(record, settings) >= -math.log(evidence.guard_level):
        return Verdict(END, "slow requests shown to have risen against the old weights")
    ended = _harmed(record, _limits(record, settings), settings, bound=bound)
    if ended is not None:
        return ended
    if n >= wanted:
        return Verdict(PASS, f"nothing to regret in {n} pairs")
    return Verdict(GO_ON, f"{n} pairs of {wanted}")


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
