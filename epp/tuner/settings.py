"""What the tuner is allowed and asked to do: a section of a configuration, with its defaults."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from epp.config.section import NotNegative, Positive, PositiveInt, Section, Share

Margin = Annotated[float, msgspec.Meta(gt=0.0, lt=0.5)]
SplitShare = Annotated[float, msgspec.Meta(gt=0.0, le=0.5)]
#: No request is waited for longer than this.
LONGEST_WAIT_S = 600.0
Hour = Annotated[float, msgspec.Meta(ge=0.0, le=24.0)]


class Goal(Section, frozen=True):
    """What is to be made better, and what must not be made worse meanwhile.

    Rates are shares of requests. A margin is what counts as not worse: the rate of requests slower than the
    incumbent's own p95 is 0.05, and half a point more is about 4 % of p95.

    Attributes:
        measure: ``ttft``, or ``felt``: TTFT plus ITL times the answer's length.
        quantile: of the incumbent's latencies, above which a request counts as slow.
        slow_ms: a fixed threshold of the measure instead (an SLO); 0 for the incumbent's quantile.
        e2e_slow_ms: the same for E2E.
        slow_margin: rise of the share of slow requests that ends a split.
        e2e_margin: rise of the share of requests with slow E2E that is not tolerated.
        error_margin: rise of the share of failed requests that is not tolerated.
        concentration_margin: rise of the hottest endpoint's share that is not tolerated.
        fleet_margin: rise of the share of slow requests in the whole fleet, both arms together, against the
            time before the trial, that is not tolerated.
        worth: fall of the share of slow requests below which a candidate is not worth its trial.
        promise: fall of p95 of the measure that a rehearsal must promise before a candidate is tried live, as
            a part of it. Less than this could hardly be shown within `evidence.max_pairs`.
    """

    measure: Literal["ttft", "felt"] = "ttft"
    quantile: Annotated[float, msgspec.Meta(ge=0.5, le=0.995)] = 0.95
    slow_ms: NotNegative = 0.0
    e2e_slow_ms: NotNegative = 0.0
    slow_margin: Margin = 0.02
    e2e_margin: Margin = 0.005
    error_margin: Margin = 0.005
    concentration_margin: Margin = 0.1
    fleet_margin: Margin = 0.03
    worth: Margin = 0.002
    promise: Margin = 0.04


class Evidence(Section, frozen=True):
    """How sure the tuner has to be.

    Attributes:
        false_promotions: share of promotions that may be false, over all candidates ever.
        guard_level: chance with which a guardrail may err, each.
        fleet_level: one over the blocks, in the mean, after which the guard over the whole fleet may end a
            trial that is just within `goal.fleet_margin`.
        block_bound: differences of a pair of blocks count no more than this.
        min_pairs: pairs of blocks before any verdict.
        max_pairs: pairs after which a candidate is given up.
        min_block_requests: judged requests of each arm in a pair; fewer are joined with the next pair.
    """

    false_promotions: Annotated[float, msgspec.Meta(gt=0.0, le=0.2)] = 0.05
    guard_level: Annotated[float, msgspec.Meta(gt=0.0, le=0.2)] = 0.05
    fleet_level: Annotated[float, msgspec.Meta(gt=0.0, le=0.2)] = 0.001
    block_bound: Annotated[float, msgspec.Meta(gt=0.01, le=1.0)] = 0.15
    min_pairs: Annotated[int, msgspec.Meta(ge=8)] = 20
    max_pairs: Annotated[int, msgspec.Meta(ge=8, le=5000)] = 1000
    min_block_requests: PositiveInt = 10

    def __post_init__(self) -> None:
        """A verdict must be possible."""
        if self.max_pairs < self.min_pairs:
            raise ValueError("max_pairs must be at least min_pairs")


class Stages(Section, frozen=True):
    """The way of a candidate.

    Attributes:
        baseline_requests: of the incumbent, before its p95 is frozen.
        baseline_s: shortest time of that.
        baseline_age_s: a baseline older than this is measured again before a trial.
        screen_share: part of the sessions in the screen.
        ramp_shares: parts after it, rising.
        stage_requests: requests that a candidate must serve in each of these stages.
        stage_s: shortest time of each.
        stage_max_s: longest time of each; a candidate that has not served enough by then is given up. At
            least `stage_s`.
        block_s: length of a block of a switchback, before what `max_block_s` says.
        max_block_s: blocks are made longer, up to this, until the dropped part covers the incumbent's E2E p99
            and the block the cache's turnover.
        drop_share: first part of each block that is not judged.
        cache_turnover_s: time in which a replica's KV cache is replaced; 0 where it does not matter.
        probation_pairs: pairs in which a promoted candidate is measured against the old incumbent.
        probation_every: one pair of so many is measured meanwhile.
        probation_max_s: longest probation.
        lease_s: the trial ends so long after the tuner was last heard of.
        late_s: a request without an outcome is waited for so long, at least; 600 at most.
        cooldown_s: after a trial that ended because the whole fleet suffered, no baseline begins so long.
        freeze_after: candidates in a row without a promotion, after which the search stops; 0 for never.
        quiet_hours_utc: ``[from, to]`` pairs of hours in which nothing is tried, over midnight if need be.
    """

    baseline_requests: PositiveInt = 2000
    baseline_s: Positive = 900.0
    baseline_age_s: Positive = 6 * 3600.0
    screen_share: SplitShare = 0.05
    ramp_shares: tuple[SplitShare, ...] = (0.2, 0.5)
    stage_requests: PositiveInt = 300
    stage_s: Positive = 600.0
    stage_max_s: Positive = 6 * 3600.0
    block_s: Annotated[float, msgspec.Meta(ge=10.0, le=600.0)] = 45.0
    max_block_s: Annotated[float, msgspec.Meta(ge=10.0, le=3600.0)] = 300.0
    drop_share: Annotated[float, msgspec.Meta(ge=0.0, le=0.75)] = 0.25
    cache_turnover_s: NotNegative = 0.0
    probation_pairs: PositiveInt = 200
    probation_every: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 4
    probation_max_s: Positive = 48 * 3600.0
    lease_s: Annotated[float, msgspec.Meta(ge=30.0, le=86_400.0)] = 300.0
    late_s: Annotated[float, msgspec.Meta(gt=0.0, le=LONGEST_WAIT_S)] = 60.0
    cooldown_s: NotNegative = 1800.0
    freeze_after: Annotated[int, msgspec.Meta(ge=0)] = 5
    quiet_hours_utc: tuple[tuple[Hour, Hour], ...] = ()

    def __post_init__(self) -> None:
        """A ramp goes up, and a stage may last as long as it must."""
        shares = [self.screen_share, *self.ramp_shares]
        if shares != sorted(set(shares)):
            raise ValueError("screen_share and ramp_shares must rise")
        if self.stage_max_s < self.stage_s:
            raise ValueError("stage_max_s must be at least stage_s")


class Drift(Section, frozen=True):
    """When a frozen search starts again.

    Attributes:
        factor: change of the arrival rate, or of the mean prompt, that counts.
        slow_change: change of the share of slow requests that counts.
        lasting_s: how long it must last.
        min_requests: in that time, for any of it to count.
    """

    factor: Annotated[float, msgspec.Meta(gt=1.0)] = 1.5
    slow_change: Margin = 0.02
    lasting_s: Positive = 1800.0
    min_requests: PositiveInt = 500


class TunerSettings(Section, frozen=True):
    """Everything about the tuner's judgement.

    Attributes:
        goal: what is better.
        evidence: how sure.
        stages: the way of a candidate.
        drift: when to start again.
        max_failed_share: above this share of failures the fleet is unwell and nothing is tried.
        seed: of all draws.
    """

    goal: Goal = Goal()
    evidence: Evidence = Evidence()
    stages: Stages = Stages()
    drift: Drift = Drift()
    max_failed_share: Share = 0.2
    seed: int = 0
