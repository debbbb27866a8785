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

Evidence about a mean may be looked at after every observation, by betting: a gambler who doubts that the mean
is at least ``m`` stakes a part of his wealth on each observation falling below it. If the doubt is wrong his
wealth is a nonnegative supermartingale, so it ever reaches ``1 / alpha`` with probability at most ``alpha``
(Ville), however often one looks and whenever one stops. The part staked is not chosen: the wealth is the mean
over a grid of stakes, which nears that of the best of them (Waudby-Smith and Ramdas, "Estimating means of
bounded random variables by betting", JRSS B 86(1), 2024: diversified Kelly bets). Observations need not be
independent; their mean, given the past, must be what is claimed.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from epp.config.plan import INCUMBENT, PREVIOUS, Switchback
from epp_lab.tuner.tally import CONCENTRATION, E2E, ERRORS, SLOW, Tally, differences

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    from collections.abc import Mapping

    from epp.config.plan import Trial
    from epp_lab.tuner.settings import Goal, TunerSettings
    from epp_lab.tuner.tally import Record


#: Stakes as parts of the largest that cannot ruin; evenly spread over the orders of magnitude of effects.
_STAKES: Floats = np.geomspace(0.004, 0.96, 20)
_HALVINGS = 24


class Bets:
    """Bets on observations in the order in which they came. For rises instead of falls bet on `-bets`.

    Args:
        values: winsorised to ``[-bound, bound]``: the mean spoken of is that of the winsorised values.
        bound: largest size of a value.
    """

    def __init__(self, values: Sequence[float] | Floats, bound: float) -> None:
        self._values: Floats = np.clip(np.asarray(values, dtype=float), -bound, bound)
        self._bound = bound

    def __neg__(self) -> Bets:
        return Bets(-self._values, self._bound)

    def log_wealth(self, mean: float = 0.0) -> Floats:
        """Return logarithm of the wealth after each value, against "the mean is at least ``mean``"."""
        if not len(self._values):
            return np.zeros(1)
        stakes = _STAKES / max(self._bound - mean, 1e-12)
        paths = np.cumsum(np.log1p(np.outer(mean - self._values, stakes)), axis=0)
        top = paths.max(axis=1)
        return np.asarray(top + np.log(np.exp(paths - top[:, None]).mean(axis=1)), dtype=float)

    def log_e(self) -> float:
        """Return logarithm of the e-value against "the mean is at least 0", in favour of a lower one."""
        return float(self.log_wealth()[-1])

    def shows_below(self, mean: float, alpha: float) -> bool:
        """Check whether the mean was at any time shown to be below ``mean``: `upper` in one step."""
        if not len(self._values) or mean <= -self._bound:
            return False
        return mean >= self._bound or float(self.log_wealth(mean).max()) >= -math.log(alpha)

    def upper(self, alpha: float) -> float:
        """Return upper end of a one-sided confidence sequence of the mean, intersected over all times so far.

        With probability ``1 - alpha`` it lies above the mean at all times at once.
        """
        low, high = -self._bound, self._bound
        for _ in range(_HALVINGS):  # the wealth grows with the mean that is doubted
            middle = 0.5 * (low + high)
            if self.shows_below(middle, alpha):
                high = middle
            else:
                low = middle
        return high

    def interval(self, alpha: float) -> tuple[float, float]:
        """Return both ends of confidence sequences, each at ``alpha``."""
        return -(-self).upper(alpha), self.upper(alpha)


GO_ON, PASS, END = "go-on", "pass", "end"
#: A difference of rates that ends a trial without further evidence, given enough requests.
_ABRUPT = {ERRORS: 0.3, SLOW: 0.5}
_ABRUPT_REQUESTS = 20
#: In a switchback so many of the latest pairs, those under way included, must be slow beyond that limit.
_ABRUPT_PAIRS, _LATEST_PAIRS = 2, 4
_MIN_MERGED = 8
_SPAN_MARGINS = 20.0


#: Share of the error budget of the t-th candidate: t ** -EXPONENT / zeta(EXPONENT). Low, so that the row
#: can be long: the tenth candidate still gets 1.1 % of it, the hundredth 0.07 %.
_EXPONENT = 1.2
_ZETA = 5.591582441177751


def promotion_level(alpha: float, number: int, *, promotions: int) -> float:
    """Return level at which a candidate is tested, by e-LOND (Xu and Ramdas, AISTATS 2024).

    A candidate is promoted when its e-value reaches one over this. Of all promotions then at most a share
    ``alpha`` is expected to be false, whatever the candidates have to do with each other: a search that
    learns from its trials makes them depend, which LORD++ on p-values would not allow.

    Args:
        alpha: that share.
        number: of the candidate, from 1.
        promotions: so far.
    """
    return min(alpha * math.pow(number, -_EXPONENT) / _ZETA * (promotions + 1), 1.0)


class TrialVerdict(NamedTuple):
    """What to do, and why."""

    kind: str
    reason: str


def margins(goal: Goal) -> dict[str, float]:
    """Return guardrails of a whole fleet's trial: measure -> rise that is not tolerated."""
    return {E2E: goal.e2e_margin, ERRORS: goal.error_margin, CONCENTRATION: goal.concentration_margin}


def lag_one(values: Sequence[float]) -> float:
    """Return correlation of each value with the next; 0 where nothing varies."""
    n = len(values)
    mean = sum(values) / n if n else 0.0
    spread = sum((value - mean) ** 2 for value in values)
    if spread <= 1e-15:
        return 0.0
    return sum((a - mean) * (b - mean) for a, b in pairwise(values)) / spread


def uncorrelated(values: Sequence[float]) -> list[float]:
    """Return values, merged by pairs while neighbours are alike beyond chance (2 standard errors)."""
    out = list(values)
    while len(out) >= 2 * _MIN_MERGED and lag_one(out) > 2.0 / math.sqrt(len(out)):
        out = [(a + b) / 2.0 for a, b in zip(out[::2], out[1::2], strict=False)]
    return out


def _arms(trial: Trial) -> tuple[str, str]:
    """Return the arm with the newer weights, and the other one."""
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


def abrupt(record: Record, trial: Trial) -> str:
    """Say how the newer weights fail so plainly that nothing need be waited for, open blocks included.

    The arms of a switchback have their blocks at different times, so a burst of load or an outage within one
    block looks like bad weights: a second pair must say the same.
    """
    for measure, limit in _ABRUPT.items():
        rises = _rises(record, trial, measure)
        if isinstance(trial, Switchback):
            pairs = {block // 2 for block, rise in rises.items() if rise >= limit}
            complete = [_own_rise(msgspec.structs.asdict(u), measure) for u in record.units[-_LATEST_PAIRS:]]
            is_plain = len(pairs) + sum(rise >= limit for rise in complete) >= _ABRUPT_PAIRS
        else:
            is_plain = any(rise >= limit for rise in rises.values())
        if is_plain:
            return f"share of {_WORDS[measure]} is {_points(limit)} or more above the other arm's"
    return ""


def fails_now(record: Record, trial: Trial) -> bool:
    """Check whether the newer weights fail plainly in their newest block."""
    rises = _rises(record, trial, ERRORS)
    return bool(rises) and rises[max(rises)] >= _ABRUPT[ERRORS]


def _rises(record: Record, trial: Trial, measure: str) -> dict[int, float]:
    """Return rise of a measure in each open block of the newer weights that has enough requests.

    In a split both arms have the same blocks, and all of them together count as one more, -1. In a switchback
    the other arm's newest block is compared with: after an outage it fails, too.
    """
    newer, older = _arms(trial)
    mine, others = _full(record, newer), _full(record, older)
    if isinstance(trial, Switchback):
        others = dict.fromkeys(mine, others[max(others)]) if others else {}
    else:
        mine[-1], others[-1] = record.seen(newer), record.seen(older)
        if min(mine[-1].requests, others[-1].requests) < _ABRUPT_REQUESTS:
            del mine[-1]
    return {
        block: _own_rise(differences(tally, others[block]), measure)
        for block, tally in mine.items()
        if block in others
    }


def _own_rise(found: Mapping[str, float], measure: str) -> float:
    """Return rise of a measure; slow requests less what failed more, which is judged as failures."""
    return found[measure] - (max(0.0, found[ERRORS]) if measure == SLOW else 0.0)


def _full(record: Record, arm: str) -> dict[int, Tally]:
    """Return an arm's open blocks with enough requests to be looked at alone."""
    blocks = {block: arms[arm] for block, arms in record.open.items() if arm in arms}
    return {block: tally for block, tally in blocks.items() if tally.requests >= _ABRUPT_REQUESTS}


def judge_split(record: Record, settings: TunerSettings) -> TrialVerdict:
    """Whether a split shows harm. It cannot show a benefit: arms of one fleet share what harm one does."""
    goal = settings.goal
    if (low := _concentrated(record)) > goal.concentration_margin:
        return TrialVerdict(END, _harm(CONCENTRATION, low, goal.concentration_margin))
    limits = {SLOW: goal.slow_margin, E2E: goal.e2e_margin, ERRORS: goal.error_margin}
    ended = _harmed(record, limits, settings, bound=1.0)
    return ended or TrialVerdict(PASS, "no harm shown")


def _harmed(
    record: Record, limits: Mapping[str, float], settings: TunerSettings, *, bound: float
) -> TrialVerdict | None:
    """Return the first guardrail that is shown to be broken."""
    alpha = settings.evidence.guard_level
    for measure, margin in limits.items():
        rises = -_bets(record, measure, margin, bound)
        if rises.shows_below(-margin, alpha):
            return TrialVerdict(END, _harm(measure, -rises.upper(alpha), margin))
    return None


def _bets(record: Record, measure: str, margin: float, bound: float) -> Bets:
    """Return bets on a guardrail; what differences are winsorised to limits stakes, and margins are small."""
    span = 1.0 if measure == CONCENTRATION else min(bound, _SPAN_MARGINS * margin)
    return Bets(uncorrelated(record.values(measure)), span)


def _objective(record: Record, settings: TunerSettings) -> tuple[Bets, Bets]:
    """Return bets on slow requests, before and after neighbours that are alike are merged."""
    slow, bound = record.values(SLOW), settings.evidence.block_bound
    return Bets(slow, bound), Bets(uncorrelated(slow), bound)


def _concentrated(record: Record) -> float:
    """Return how much more the candidate concentrates at least, from all of its requests.

    Slices of a small share hold too few requests: the hottest of a few is hot by chance. Requests of a
    session stay together, so ten of them are taken as one; 3 standard errors.
    """
    arm = next((name for name in record.totals if name != INCUMBENT), None)
    if arm is None or not record.totals[arm].requests:
        return -1.0
    found = differences(record.totals[arm], record.totals.get(INCUMBENT, Tally()))
    return found[CONCENTRATION] - 3.0 * math.sqrt(0.25 * 10.0 / record.totals[arm].requests)


def judge_switchback(record: Record, settings: TunerSettings, level: float) -> TrialVerdict:
    """Check whether a candidate may be promoted.

    Args:
        record: the evidence.
        settings: margins and bounds.
        level: of the test of the objective, from `promotion_level`.
    """
    goal, evidence = settings.goal, settings.evidence
    bound, n, half = evidence.block_bound, len(record.units), evidence.guard_level / 2.0
    raw, merged = _objective(record, settings)
    if (-merged).shows_below(0.0, half):
        return TrialVerdict(END, "shown to be worse: more slow requests")
    ended = _harmed(record, _limits(record, settings), settings, bound=bound)
    if ended is not None:
        return ended
    if n < evidence.min_pairs:
        return TrialVerdict(GO_ON, f"{n} pairs of at least {evidence.min_pairs}")
    low, high = (_points(-end) for end in merged.interval(half))
    if (-merged).shows_below(goal.worth, half):
        return TrialVerdict(END, f"not worth it: better by {low} at most")
    better = min(raw.log_e(), merged.log_e()) >= -math.log(level)
    doubts = [] if better else ["the objective"]
    for measure, margin in margins(goal).items():
        shown = _bets(record, measure, margin, bound).shows_below(margin, evidence.guard_level)
        if measure == CONCENTRATION and better and _e2e_gains(record, settings):
            continue
        if not shown or sum(record.values(measure)) >= n * margin:
            doubts.append(_WORDS[measure])
    if sum(record.values(SLOW)) >= 0.0 or sum(record.values(E2E)) > 0.0:
        doubts.append("plain counts")
    if not doubts:
        return TrialVerdict(PASS, f"slow requests {high} to {low} down, no harm")
    words = f"not enough evidence on {', '.join(doubts)} in {n} pairs"
    return TrialVerdict(END if n >= evidence.max_pairs else GO_ON, words)


def _limits(record: Record, settings: TunerSettings) -> dict[str, float]:
    """Return guardrails that may end a trial now; concentration not while it may yet be excused."""
    limits = margins(settings.goal)
    few = len(record.units) < settings.evidence.min_pairs
    if few or (sum(record.values(SLOW)) < 0.0 and sum(record.values(E2E)) < 0.0):
        del limits[CONCENTRATION]
    return limits


def _e2e_gains(record: Record, settings: TunerSettings) -> bool:
    """Check whether slow E2E is shown to be lower at all, neighbours alike or not."""
    span = min(settings.evidence.block_bound, _SPAN_MARGINS * settings.goal.e2e_margin)
    raw, alpha = record.values(E2E), settings.evidence.guard_level
    return all(Bets(part, span).shows_below(0.0, alpha) for part in (raw, uncorrelated(raw)))


def log_e(record: Record, settings: TunerSettings) -> float:
    """Return logarithm of the e-value that slow requests have fallen."""
    return min(bets.log_e() for bets in _objective(record, settings))


def log_e_regret(record: Record, settings: TunerSettings) -> float:
    """Return logarithm of the e-value that slow requests have risen against the old weights."""
    return min((-bets).log_e() for bets in _objective(record, settings))


def intervals(record: Record, settings: TunerSettings) -> dict[str, tuple[float, float]]:
    """Return bounds of the differences in a switchback by measure, which hold at all times."""
    bound, alpha = settings.evidence.block_bound, settings.evidence.guard_level
    out = {SLOW: _objective(record, settings)[1].interval(alpha / 2.0)}
    for measure, margin in margins(settings.goal).items():
        out[measure] = _bets(record, measure, margin, bound).interval(alpha)
    return out


def judge_probation(record: Record, settings: TunerSettings) -> TrialVerdict:
    """Check whether a promoted candidate is to be regretted."""
    evidence, n, wanted = settings.evidence, len(record.units), settings.stages.probation_pairs
    if log_e_regret(record, settings) >= -math.log(evidence.guard_level):
        return TrialVerdict(END, "slow requests shown to have risen against the old weights")
    ended = _harmed(record, _limits(record, settings), settings, bound=evidence.block_bound)
    if ended is not None:
        return ended
    if n >= wanted:
        return TrialVerdict(PASS, f"nothing to regret in {n} pairs")
    return TrialVerdict(GO_ON, f"{n} pairs of {wanted}")


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
