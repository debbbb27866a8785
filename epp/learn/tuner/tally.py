"""What is counted of the requests of one arm in one block, and the four rates that are compared.

Owns thresholds (frozen before a trial), tallies, the bins that latencies are counted in, the baseline, and
what counts as slow or failed. Pure; plain data.

Rules
- What failed or never got a first token is slow, in TTFT and E2E alike: dropping requests cannot pay.
- An E2E that was cut short by the client counts when it was slow already, and else not at all.
"""

from __future__ import annotations

import math
from itertools import accumulate
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from epp.learn.tuner.samples import Sample
    from epp.learn.tuner.settings import Goal

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
        before: the version before this one.
        mixed_s: for how long the two have come by turns.
    """

    weights_version: str = ""
    since_wall_s: float = 0.0
    until_wall_s: float = 0.0
    requests: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    measure_ms: Histogram = {}
    e2e_ms: Histogram = {}
    before: str = ""
    mixed_s: float = 0.0

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
        # It knows whether its version was seen just before the other one.
        turned = sample.weights_version == baseline.before
        passed_s = sample.dispatched_wall_s - baseline.since_wall_s
        mixed_s = baseline.mixed_s + passed_s if turned else 0.0
        baseline = Baseline(
            weights_version=sample.weights_version, before=baseline.weights_version, mixed_s=mixed_s
        )
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
