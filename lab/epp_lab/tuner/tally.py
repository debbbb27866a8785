"""What is counted of the requests of an arm in a block, the four rates that are compared, and the evidence.

Owns thresholds (frozen before a trial), tallies, the bins that latencies are counted in, the baseline, and
what counts as slow or failed. Owns the evidence of one stage of one candidate: blocks that fill, pairs that
close, and what they differed by; which samples count, when a block is complete, and what a unit of evidence
is: in a switchback a pair of blocks, one of each arm; in a split a slice of time with both arms in it. Pure;
plain data, filled in place by the functions here alone.

Rules
- What failed or never got a first token is slow, in TTFT and E2E alike: dropping requests cannot pay.
- An E2E that was cut short by the client counts when it was slow already, and else not at all.
- A block is judged when it has ended and its requests had time to end (`late_s`); what comes later is
  ignored, in both arms alike.
- A unit with too few requests of either arm is joined with the next one.
- Differences are always the newer weights less the older ones: below zero is better.
"""

from __future__ import annotations

import math
from itertools import accumulate
from typing import TYPE_CHECKING

import msgspec

from epp.config.plan import INCUMBENT, PREVIOUS, Switchback

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from epp.config.plan import Trial
    from epp_lab.tuner.samples import Sample
    from epp_lab.tuner.settings import Goal


#: Latencies in logarithmic bins, 1 % wide, so that no figure is further off than that.
Histogram = dict[int, int]

_STEP = math.log(1.01)
#: What failed, or never came: above every latency.
NEVER = 1_000_000
_LOWEST_MS = 0.01

SLOW, E2E, ERRORS, CONCENTRATION = "slow", "e2e", "errors", "concentration"


class Thresholds(msgspec.Struct, frozen=True):
    """Frozen before a trial: above them a request is slow.

    Attributes:
        slow_ms: of the goal's measure.
        e2e_ms: of E2E.
        e2e_p99_ms: of the incumbent; how long after a block its requests are waited for.
        frozen_wall_s: when.
    """

    slow_ms: float
    e2e_ms: float
    e2e_p99_ms: float
    frozen_wall_s: float


class Tally(msgspec.Struct):
    """Counts of one arm. Filled by `add`.

    Attributes:
        requests: all of them.
        slow: above the threshold of the goal's measure.
        e2e_known: those whose E2E can be judged.
        e2e_slow: above the threshold of E2E.
        failed: failed.
        endpoints: requests by endpoint.
    """

    requests: int = 0
    slow: int = 0
    e2e_known: int = 0
    e2e_slow: int = 0
    failed: int = 0
    endpoints: dict[str, int] = {}


def bin_of(value_ms: float) -> int:
    """Return the bin of a latency; `NEVER` for NaN, one that never came."""
    if math.isnan(value_ms):
        return NEVER
    return min(NEVER - 1, math.floor(math.log(max(value_ms, _LOWEST_MS)) / _STEP))


def count(histogram: Histogram, value_ms: float) -> None:
    """Count one latency; NaN as one that never came."""
    place = bin_of(value_ms)
    histogram[place] = histogram.get(place, 0) + 1


def quantile(histogram: Mapping[int, int], q: float) -> float:
    """Return the smallest latency at or below which a share ``q`` lies (upper end of its bin).

    NaN without values, infinite where the quantile never came.
    """
    if not histogram:
        return math.nan
    place = place_of(histogram, q)
    return math.inf if place == NEVER else math.exp((place + 1) * _STEP)


def place_of(histogram: Mapping[int, int], q: float) -> int:
    """Return the first place at or below which a share ``q`` of a histogram lies that is not empty."""
    places = sorted(histogram)
    need, seen = q * sum(histogram.values()) - 1e-9, accumulate(histogram[place] for place in places)
    return next(place for place, count in zip(places, seen, strict=True) if count >= need)


def measured_ms(sample: Sample, goal: Goal) -> float:
    """The goal's measure of one request; NaN, above everything, for what failed or was never answered."""
    if not sample.answered:
        return math.nan
    return sample.ttft_ms if goal.measure == "ttft" else sample.felt_ms


def add(tally: Tally, sample: Sample, thresholds: Thresholds, goal: Goal) -> None:
    """Count one request."""
    value = measured_ms(sample, goal)
    tally.requests += 1
    tally.slow += math.isnan(value) or value > thresholds.slow_ms
    tally.failed += sample.failed
    tally.endpoints[sample.endpoint] = tally.endpoints.get(sample.endpoint, 0) + 1
    slow = sample.failed or sample.e2e_ms > thresholds.e2e_ms or (not sample.answered and not sample.censored)
    if slow or not (sample.censored or math.isnan(sample.e2e_ms)):
        tally.e2e_known += 1
        tally.e2e_slow += slow


def joined(tallies: Iterable[Tally]) -> Tally:
    """Return all counts in one."""
    out = Tally()
    for tally in tallies:
        out.requests += tally.requests
        out.slow += tally.slow
        out.e2e_known += tally.e2e_known
        out.e2e_slow += tally.e2e_slow
        out.failed += tally.failed
        for name, n in tally.endpoints.items():
            out.endpoints[name] = out.endpoints.get(name, 0) + n
    return out


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


RATES: Mapping[str, Callable[[Tally], float]] = {
    SLOW: lambda tally: _share(tally.slow, tally.requests),
    E2E: lambda tally: _share(tally.e2e_slow, tally.e2e_known),
    ERRORS: lambda tally: _share(tally.failed, tally.requests),
    CONCENTRATION: lambda tally: _share(max(tally.endpoints.values(), default=0), tally.requests),
}


def differences(arm: Tally, against: Tally) -> dict[str, float]:
    """Return rates of one arm less those of the other, by measure."""
    return {name: rate(arm) - rate(against) for name, rate in RATES.items()}


class Baseline(msgspec.Struct):
    """The incumbent by itself, outside of trials.

    Attributes:
        weights_version: of its samples; another begins anew.
        since_wall_s: dispatch of the first.
        until_wall_s: dispatch of the last.
        requests: how many.
        failed: of them.
        prompt_tokens: sum.
        measure_ms: histogram of the goal's measure.
        e2e_ms: histogram of E2E.
    """

    weights_version: str = ""
    since_wall_s: float = 0.0
    until_wall_s: float = 0.0
    requests: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    measure_ms: Histogram = {}
    e2e_ms: Histogram = {}

    @property
    def lasted_s(self) -> float:
        """From the first sample to the last."""
        return self.until_wall_s - self.since_wall_s

    @property
    def failed_share(self) -> float:
        """Share that failed."""
        return _share(self.failed, self.requests)


def observe(baseline: Baseline, sample: Sample, goal: Goal) -> Baseline:
    """Return the baseline with one more sample; a fresh one where the weights changed."""
    if sample.weights_version != baseline.weights_version:
        if sample.dispatched_wall_s < baseline.until_wall_s:
            return baseline  # a straggler of the weights before
        baseline = Baseline(weights_version=sample.weights_version)
    first = baseline.since_wall_s if baseline.requests else sample.dispatched_wall_s
    baseline.since_wall_s = min(first, sample.dispatched_wall_s)
    baseline.until_wall_s = max(baseline.until_wall_s, sample.dispatched_wall_s)
    baseline.requests += 1
    baseline.failed += sample.failed
    baseline.prompt_tokens += sample.prompt_tokens
    count(baseline.measure_ms, measured_ms(sample, goal))
    if not sample.censored:
        count(baseline.e2e_ms, sample.e2e_ms if sample.answered else math.nan)
    return baseline


def freeze(baseline: Baseline, goal: Goal, now_wall_s: float) -> Thresholds | None:
    """Return thresholds from the incumbent's own latencies; None where its quantile never came."""
    slow_ms = goal.slow_ms or quantile(baseline.measure_ms, goal.quantile)
    e2e_ms = goal.e2e_slow_ms or quantile(baseline.e2e_ms, goal.quantile)
    p99_ms = quantile(baseline.e2e_ms, 0.99)
    if not (math.isfinite(slow_ms) and math.isfinite(e2e_ms)):
        return None
    return Thresholds(slow_ms, e2e_ms, p99_ms if math.isfinite(p99_ms) else 2.0 * e2e_ms, now_wall_s)


class Unit(msgspec.Struct, frozen=True, array_like=True):
    """Differences of the four rates, newer weights less older ones, and the requests behind them."""

    slow: float
    e2e: float
    errors: float
    concentration: float
    requests: int


class Record(msgspec.Struct):
    """Evidence so far.

    Attributes:
        open: block -> arm -> counts, of blocks that are not complete.
        waiting: counts of complete units that were too small to stand alone.
        units: in the order of time.
        totals: arm -> counts of all complete blocks.
        next_unit: number of the first unit (pair, or slice) that is not complete.
    """

    open: dict[int, dict[str, Tally]] = {}
    waiting: dict[str, Tally] = {}
    units: list[Unit] = []
    totals: dict[str, Tally] = {}
    next_unit: int = 0

    def values(self, measure: str) -> list[float]:
        """Return differences of one measure, unit by unit."""
        return [float(getattr(unit, measure)) for unit in self.units]

    def seen(self, arm: str) -> Tally:
        """Return counts of an arm, complete blocks and open ones."""
        blocks = [arms[arm] for arms in self.open.values() if arm in arms]
        return joined([self.totals.get(arm, Tally()), *blocks])

    def newest(self, arm: str, requests: int) -> Tally:
        """Return counts of an arm's latest open blocks, as many as it takes to have so many requests."""
        out = Tally()
        for block in sorted(self.open, reverse=True):
            if arm in self.open[block] and out.requests < requests:
                out = joined([out, self.open[block][arm]])
        return out


def _width(trial: Trial) -> int:
    return 2 if isinstance(trial, Switchback) else 1


def enter(record: Record, trial: Trial, sample: Sample, thresholds: Thresholds, goal: Goal) -> None:
    """Count a sample where it belongs, if anywhere."""
    stamp = sample.stamp
    if stamp is None or stamp.trial != trial.id or stamp.arm not in (INCUMBENT, trial.arm):
        return
    if not trial.judged(sample.dispatched_wall_s) or stamp.block // _width(trial) < record.next_unit:
        return
    arms = record.open.setdefault(stamp.block, {})
    add(arms.setdefault(stamp.arm, Tally()), sample, thresholds, goal)


def close(record: Record, trial: Trial, now_wall_s: float, *, late_s: float, min_requests: int) -> int:
    """Turn complete blocks into units.

    Args:
        record: the evidence.
        trial: its schedule.
        now_wall_s: the time.
        late_s: how long after a block's end its requests are waited for.
        min_requests: of each arm in a unit.

    Returns:
        How many units were added.
    """
    width = _width(trial)
    end_wall_s = min(now_wall_s - late_s, trial.valid_until_wall_s)
    complete = math.floor((end_wall_s - trial.valid_from_wall_s) / (trial.block_s * width))
    before = len(record.units)
    for number in sorted({block // width for block in record.open}):
        if number >= complete:
            break
        blocks = [record.open.pop(block, {}) for block in range(number * width, (number + 1) * width)]
        for arm in (INCUMBENT, trial.arm):
            tally = joined(arms[arm] for arms in blocks if arm in arms)
            record.totals[arm] = joined([record.totals.get(arm, Tally()), tally])
            record.waiting[arm] = joined([record.waiting.get(arm, Tally()), tally])
        if all(tally.requests >= min_requests for tally in record.waiting.values()):
            record.units.append(_unit(record.waiting, trial))
            record.waiting = {}
    record.next_unit = max(record.next_unit, complete)
    return len(record.units) - before


def _unit(tallies: dict[str, Tally], trial: Trial) -> Unit:
    newer, older = (INCUMBENT, PREVIOUS) if trial.arm == PREVIOUS else (trial.arm, INCUMBENT)
    found = differences(tallies[newer], tallies[older])
    return Unit(**found, requests=sum(tally.requests for tally in tallies.values()))


def forget_open(record: Record) -> None:
    """Drop what is not complete, before a schedule begins anew; complete units stay."""
    record.open, record.waiting, record.next_unit = {}, {}, 0
