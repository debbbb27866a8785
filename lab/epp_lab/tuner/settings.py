"""What the tuner is allowed and asked to do: the keys of its settings file, and the constants behind them.

Owns both. A key is what an operator would set: what is better, what must not get worse, how much traffic a
candidate gets and when. The rest is how trials are held; the statistics of docs/tuner.md rest on it.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from epp.config.section import NotNegative, Positive, PositiveInt, Section

Margin = Annotated[float, msgspec.Meta(gt=0.0, lt=0.5)]
SplitShare = Annotated[float, msgspec.Meta(gt=0.0, le=0.5)]
#: No request is waited for longer than this.
LONGEST_WAIT_S = 600.0
Hour = Annotated[float, msgspec.Meta(ge=0.0, le=24.0)]


class GoalKeys(Section, frozen=True):
    """What is to be made better, and what must not be made worse meanwhile.

    Rates are shares of requests. A margin is what counts as not worse: the rate of requests slower than the
    incumbent's own p95 is 0.05, and half a point more is about 4 % of p95.

    Attributes:
        measure: ``ttft``, or ``felt``: TTFT plus ITL times the answer's length.
        slow_ms: threshold of the measure (an SLO) above which a request is slow; 0 for the
            incumbent's p95.
        e2e_slow_ms: the same for E2E.
        e2e_margin: rise of the share of requests with slow E2E that is too much.
        error_margin: rise of the share of failed requests that is too much.
        concentration_margin: rise of the hottest endpoint's share that is too much.
        fleet_margin: rise of the share of slow requests in the whole fleet, against the time before
            the trial, that is too much.
        promise: fall of the measure's p95, as a part of it, that a rehearsal must promise before a
            live trial.
    """

    measure: Literal["ttft", "felt"] = "ttft"
    slow_ms: NotNegative = 0.0
    e2e_slow_ms: NotNegative = 0.0
    e2e_margin: Margin = 0.005
    error_margin: Margin = 0.005
    concentration_margin: Margin = 0.1
    fleet_margin: Margin = 0.03
    promise: Margin = 0.04


class StageKeys(Section, frozen=True):
    """The way of a candidate.

    Attributes:
        baseline_requests: requests of the incumbent before its p95 is frozen.
        baseline_s: shortest time of that.
        screen_share: part of the sessions in the screen.
        ramp_shares: parts after it, rising.
        stage_requests: requests that a candidate must serve in each of these stages.
        freeze_after: candidates in a row without a promotion after which the search stops; 0 for
            never.
        quiet_hours_utc: ``[from, to]`` pairs of hours without trials, over midnight if need be.
    """

    baseline_requests: PositiveInt = 2000
    baseline_s: Positive = 900.0
    screen_share: SplitShare = 0.05
    ramp_shares: tuple[SplitShare, ...] = (0.2, 0.5)
    stage_requests: PositiveInt = 300
    freeze_after: Annotated[int, msgspec.Meta(ge=0)] = 5
    quiet_hours_utc: tuple[tuple[Hour, Hour], ...] = ()

    def __post_init__(self) -> None:
        """Refuse a ramp that does not rise."""
        shares = [self.screen_share, *self.ramp_shares]
        if shares != sorted(set(shares)):
            raise ValueError("screen_share and ramp_shares must rise")


class TunerKeys(Section, frozen=True):
    """The settings file of `epp tune`.

    Attributes:
        goal: what is better.
        stages: the way of a candidate.
    """

    goal: GoalKeys = GoalKeys()
    stages: StageKeys = StageKeys()


class Goal(GoalKeys, frozen=True):
    """The goal with its constants.

    Attributes:
        quantile: of the incumbent's latencies, above which a request counts as slow.
        slow_margin: rise of the share of slow requests that ends a split.
        worth: fall of the share of slow requests below which a candidate is not worth its trial.
    """

    quantile: float = 0.95
    slow_margin: float = 0.02
    worth: float = 0.002


class Evidence(Section, frozen=True):
    """How sure the tuner has to be; constants.

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

    false_promotions: float = 0.05
    guard_level: float = 0.05
    fleet_level: float = 0.001
    block_bound: float = 0.15
    min_pairs: int = 20
    max_pairs: int = 1000
    min_block_requests: int = 10


class Stages(StageKeys, frozen=True):
    """The stages with their constants.

    Attributes:
        baseline_age_s: a baseline older than this is measured again before a trial.
        stage_s: shortest time of each stage of a split.
        stage_max_s: longest time of each; a candidate that has not served enough by then is given up.
        block_s: length of a block of a switchback, before what `max_block_s` says.
        max_block_s: blocks are made longer, up to this, until the dropped part covers E2E p99.
        drop_share: first part of each block that is not judged.
        probation_pairs: pairs in which a promoted candidate is measured against the old incumbent.
        probation_every: one pair of so many is measured meanwhile.
        probation_max_s: longest probation.
        lease_s: the trial ends so long after the tuner was last heard of.
        late_s: a request without an outcome is waited for so long, at least; `LONGEST_WAIT_S` at most.
        cooldown_s: after a trial that ended because the whole fleet suffered, no baseline begins so long.
    """

    baseline_age_s: float = 6 * 3600.0
    stage_s: float = 600.0
    stage_max_s: float = 6 * 3600.0
    block_s: float = 45.0
    max_block_s: float = 300.0
    drop_share: float = 0.25
    probation_pairs: int = 200
    probation_every: int = 4
    probation_max_s: float = 48 * 3600.0
    lease_s: float = 300.0
    late_s: float = 60.0
    cooldown_s: float = 1800.0


class Drift(Section, frozen=True):
    """When a frozen search starts again; constants.

    Attributes:
        factor: change of the arrival rate, or of the mean prompt, that counts.
        slow_change: change of the share of slow requests that counts.
        lasting_s: how long it must last.
        min_requests: in that time, for any of it to count.
    """

    factor: float = 1.5
    slow_change: float = 0.02
    lasting_s: float = 1800.0
    min_requests: int = 500


class TunerSettings(TunerKeys, frozen=True):
    """Everything about the tuner's judgement: keys and constants.

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
    max_failed_share: float = 0.2
    seed: int = 0


def tuner_settings(keys: TunerKeys) -> TunerSettings:
    """Return the settings of a file: its keys, and the constants."""
    return msgspec.convert(msgspec.to_builtins(keys), TunerSettings)
