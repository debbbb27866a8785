"""The evidence of one stage of one candidate: blocks that fill, pairs that close, and what they differed by.

Owns which samples count, when a block is complete, and what a unit of evidence is: in a switchback a pair of
blocks, one of each arm; in a split a slice of time with both arms in it. Plain data; filled in place by the
functions here alone.

Rules
- A block is judged when it has ended and its requests had time to end (`late_s`); what comes later is counted
  as late and else ignored, in both arms alike.
- A unit with too few requests of either arm is joined with the next one.
- Differences are always the newer weights less the older ones: below zero is better.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from epp.learn.tuner.histogram import Histogram, count
from epp.learn.tuner.plan import INCUMBENT, PREVIOUS, Switchback
from epp.learn.tuner.samples import judged
from epp.learn.tuner.tally import Tally, add, differences, joined, measured_ms

if TYPE_CHECKING:
    from epp.learn.tuner.plan import Trial
    from epp.learn.tuner.samples import Sample
    from epp.learn.tuner.settings import Goal
    from epp.learn.tuner.tally import Thresholds


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
        latencies_ms: arm -> histogram of the goal's measure, of all judged samples.
        next_unit: number of the first unit (pair, or slice) that is not complete.
        late: samples that came after their block was closed.
    """

    open: dict[int, dict[str, Tally]] = {}
    waiting: dict[str, Tally] = {}
    units: list[Unit] = []
    totals: dict[str, Tally] = {}
    latencies_ms: dict[str, Histogram] = {}
    next_unit: int = 0
    late: int = 0

    def values(self, measure: str) -> list[float]:
        """Differences of one measure, unit by unit."""
        return [float(getattr(unit, measure)) for unit in self.units]

    def seen(self, arm: str) -> Tally:
        """Counts of an arm, complete blocks and open ones."""
        blocks = [arms[arm] for arms in self.open.values() if arm in arms]
        return joined([self.totals.get(arm, Tally()), *blocks])

    def newest(self, arm: str, requests: int) -> Tally:
        """Counts of an arm's latest open blocks, as many as it takes to have so many requests."""
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
    if stamp is None or stamp.arm not in (INCUMBENT, trial.arm) or not judged(sample, trial):
        return
    if stamp.block // _width(trial) < record.next_unit:
        record.late += 1
        return
    arms = record.open.setdefault(stamp.block, {})
    add(arms.setdefault(stamp.arm, Tally()), sample, thresholds, goal)
    count(record.latencies_ms.setdefault(stamp.arm, {}), measured_ms(sample, goal))


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


def copied(record: Record) -> Record:
    """A record that can be filled while this one stays as it is."""
    return Record(
        open={
            block: {arm: joined([tally]) for arm, tally in arms.items()}
            for block, arms in record.open.items()
        },
        waiting=dict(record.waiting),
        units=list(record.units),
        totals=dict(record.totals),
        latencies_ms={arm: dict(found) for arm, found in record.latencies_ms.items()},
        next_unit=record.next_unit,
        late=record.late,
    )
