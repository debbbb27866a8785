"""The whole fleet during a trial, against itself before it: harm that both arms suffer alike.

Owns the fleet's blocks, the baseline that they make while the incumbent serves alone, and the test that ends
a trial for the fleet's sake. Arms are not distinguished here: in a full pool one arm's queues are the other's
too, so a comparison of arms sees nothing. Pure; plain data.

Rules
- Both sides are counted alike: by time of dispatch, in blocks of `Stages.block_s`, whether judged or not.
- A block is compared only with blocks of the baseline under at least its load (requests and prompt tokens,
  each the mean of five blocks), nearly as much where there are enough. Where there are too few, the block
  says nothing.
- What is compared is the share of slow requests. Bins are coarse (10 %), and T is moved up to the next edge,
  on both sides.

The test: with ``b`` the upper end of the baseline's share at that load (two standard errors) plus the margin,
and ``x`` the block's, a gambler who stakes ``s`` on "more than b" has ``1 + s (x / b - 1)`` for each unit
afterwards, which is 1 or less in the mean unless the fleet is worse by more than the margin. A unit begins at
every block (Shiryaev and Roberts; Shin, Ramdas and Rinaldo, "E-detectors: a nonparametric framework for
sequential change detection", New England Journal of Statistics in Data Science 2(2), 2024),
``M = (M + 1) (1 + s (x / b - 1))``, so hours without harm do not blunt it. At the margin itself M passes
``1 / level`` no earlier than after ``1 / level`` blocks in the mean; below it far more seldom. Blocks whose
neighbours are alike in the baseline are joined first.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from epp_lab.tuner.tally import NEVER, Histogram, bin_of, measured_ms
from epp_lab.tuner.verdict import uncorrelated

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from epp_lab.tuner.samples import Sample
    from epp_lab.tuner.settings import Goal, TunerSettings

#: Blocks of the baseline that are kept: three hours of 45 s.
KEPT = 240
#: Fewer comparable blocks than this say nothing.
LEAST_BLOCKS = 8
#: Load is the mean of so many blocks, because queues outlast one; after a trial as many do not count.
_SMOOTH = (5, 20, 80)
_AS_MUCH, _NEAR = 0.9, 1.3
_COARSE = 10
_STANDARD_ERRORS = 2.0
#: A share above so many times ``b`` counts as that: one wild block decides nothing.
_CAP = 5.0
_MOST_JOINED = 4
#: A shorter baseline says too little of how alike neighbours are: they are taken to be as alike as may be.
_LONG = 80
_STAKES = (0.1, 0.2, 0.4, 0.7, 0.96)


class Filling(msgspec.Struct):
    """A block that is not complete.

    Attributes:
        requests: in it.
        prompt_tokens: of them.
        places: histogram of the goal's measure, in coarse bins.
        tried: whether any of them belonged to a trial.
    """

    requests: int = 0
    prompt_tokens: int = 0
    places: Histogram = {}
    tried: bool = False


class Block(msgspec.Struct, frozen=True, array_like=True):
    """A complete block of the incumbent alone.

    Attributes:
        requests: in it.
        loads: requests a block, and prompt tokens a block, each over the last blocks and over many.
        places: histogram of the goal's measure, in coarse bins.
    """

    requests: int
    loads: tuple[float, ...]
    places: Histogram


class Watch(msgspec.Struct):
    """What is known of the fleet.

    Attributes:
        open: number of the block -> its counts.
        recent: requests and prompt tokens of the last blocks, newest last, with their numbers.
        baseline: blocks of the incumbent alone, oldest first.
        skip_until: baseline blocks before this number do not count: a trial's queues are still in them.
        joined: blocks of a unit; 0 before the first of a trial.
        waiting: requests, slow ones, and those that ``b`` allows, of blocks not yet a unit.
        wealth: of each stake.
        blocks: of this trial that were compared.
        alone: of this trial that had nothing to be compared with.
        requests: in the compared ones.
        slow: of them.
        expected: of them, by the baseline under the same load.
        allowed: of them, by ``b``.
    """

    open: dict[int, Filling] = {}
    recent: list[tuple[int, int, int]] = []
    baseline: list[Block] = []
    skip_until: int = 0
    joined: int = 0
    waiting: tuple[int, float, float] = (0, 0.0, 0.0)
    wealth: tuple[float, ...] = ()
    blocks: int = 0
    alone: int = 0
    requests: int = 0
    slow: float = 0.0
    expected: float = 0.0
    allowed: float = 0.0

    @property
    def evidence(self) -> float:
        """That the fleet is worse by more than the margin; `Evidence.fleet_level` says how much is enough."""
        return sum(self.wealth) / len(self.wealth) if self.wealth else 0.0


def enter(watch: Watch, sample: Sample, settings: TunerSettings) -> None:
    """Count a sample, whatever arm it is of."""
    number = math.floor(sample.dispatched_wall_s / settings.stages.block_s)
    filling = watch.open.setdefault(number, Filling())
    filling.requests += 1
    filling.prompt_tokens += sample.prompt_tokens
    filling.tried = filling.tried or sample.stamp is not None
    place = bin_of(measured_ms(sample, settings.goal))
    coarse = NEVER if place == NEVER else place // _COARSE
    filling.places[coarse] = filling.places.get(coarse, 0) + 1


def begin(watch: Watch) -> Watch:
    """Begin a trial: its evidence is empty, the baseline stays as it is until the trial is over."""
    return Watch(open=watch.open, recent=watch.recent, baseline=watch.baseline, skip_until=watch.skip_until)


def close(
    watch: Watch, settings: TunerSettings, now_wall_s: float, *, late_s: float, slow_ms: float | None
) -> None:
    """Take complete blocks into the baseline or, during a trial, into its evidence.

    Args:
        watch: filled in place.
        settings: margin and length of blocks.
        now_wall_s: the time.
        late_s: how long after a block's end its requests are waited for.
        slow_ms: T of the trial in progress, None outside of one.
    """
    complete = math.floor((now_wall_s - late_s) / settings.stages.block_s)
    for tried, block in completed(watch, complete, _SMOOTH):
        if tried and slow_ms is not None:
            _compare(watch, block, slow_ms, settings.goal)
        elif not tried and slow_ms is None:
            watch.baseline = [*watch.baseline, block][-KEPT:]


def completed(watch: Watch, complete: int, windows: tuple[int, ...]) -> Iterator[tuple[bool, Block]]:
    """Take out the blocks before a number, each with whether a trial was in it.

    Left out are those of the incumbent alone that come just after a trial: its queues are still in them.

    Args:
        watch: changed in place.
        complete: number of the first block that is not complete.
        windows: numbers of blocks that a block's load is the mean of.
    """
    for number in sorted(number for number in watch.open if number < complete):
        filling = watch.open.pop(number)
        recent = [part for part in watch.recent if number - max(windows) < part[0] < number]
        watch.recent = [*recent, (number, filling.requests, filling.prompt_tokens)]
        if filling.tried:
            watch.skip_until = number + 1 + min(windows)
        if filling.tried or number >= watch.skip_until:
            yield filling.tried, Block(filling.requests, _loads(watch.recent, windows), filling.places)


def _loads(recent: Sequence[tuple[int, int, int]], windows: tuple[int, ...]) -> tuple[float, ...]:
    """Return requests and prompt tokens of a block, over windows that end with the newest one."""
    newest, out = recent[-1][0], []
    for wanted in windows:
        within = [part for part in recent if part[0] > newest - wanted]
        blocks = min(wanted, newest - recent[0][0] + 1)
        out += [sum(part[1] for part in within) / blocks, sum(part[2] for part in within) / blocks]
    return tuple(out)


def share(block: Block, limit: int) -> float:
    """Return part of a block's requests above a coarse place."""
    slow = sum(n for place, n in block.places.items() if place > limit)
    return slow / block.requests


def _mean(blocks: Sequence[Block], limit: int) -> tuple[float, float]:
    """Return share of slow requests, and how it spreads over the blocks."""
    counts = np.array([block.requests for block in blocks], dtype=float)
    shares = np.array([share(block, limit) for block in blocks])
    mean = float(np.average(shares, weights=counts))
    return mean, math.sqrt(float(np.average((shares - mean) ** 2, weights=counts)))


def comparable(baseline: Sequence[Block], block: Block) -> list[Block]:
    """Blocks of the baseline under at least the load of this one; near ones alone where there are enough."""

    def times(other: Block) -> list[float]:
        return [theirs / max(ours, 1.0) for theirs, ours in zip(other.loads, block.loads, strict=True)]

    enough = [(max(found), other) for other in baseline if min(found := times(other)) >= _AS_MUCH]
    near = [other for most, other in enough if most <= _NEAR]
    if len(near) >= LEAST_BLOCKS:
        return near
    enough.sort(key=lambda pair: pair[0])
    return [other for _, other in enough[:LEAST_BLOCKS]] if len(enough) >= LEAST_BLOCKS else []


def _compare(watch: Watch, block: Block, slow_ms: float, goal: Goal) -> None:
    limit = bin_of(slow_ms) // _COARSE  # the coarse place that T falls into; what lies above is slow
    if not watch.joined:
        shares = [share(part, limit) for part in watch.baseline]
        watch.joined = min(_MOST_JOINED, len(shares) // max(1, len(uncorrelated(shares)))) or 1
    others = comparable(watch.baseline, block)
    if not others:
        watch.alone += 1
        return
    # A calm hour at this load is no promise: mean and spread of the whole baseline are the least.
    mean, spread = (
        max(pair) for pair in zip(_mean(others, limit), _mean(watch.baseline, limit), strict=True)
    )
    alike = watch.joined if len(watch.baseline) >= _LONG else _MOST_JOINED
    error = spread * math.sqrt(alike / max(1, len(others) - 1))
    allowed = min(mean + _STANDARD_ERRORS * error + goal.fleet_margin, 1.0)
    bet(watch, block, share(block, limit), expected=mean, allowed=allowed)


def bet(watch: Watch, block: Block, slow: float, *, expected: float, allowed: float) -> None:
    """Add a block's share of slow requests to the evidence.

    Args:
        watch: changed in place.
        block: the block.
        slow: its share.
        expected: the share by the baseline.
        allowed: the share that is no harm, ``b``.
    """
    n = block.requests
    watch.blocks += 1
    watch.requests += n
    watch.slow += slow * n
    watch.expected += expected * n
    watch.allowed += allowed * n
    blocks, waiting_slow, waiting_allowed = watch.waiting
    watch.waiting = (blocks + 1, waiting_slow + slow * n, waiting_allowed + allowed * n)
    if watch.waiting[0] >= watch.joined:
        times = min(watch.waiting[1] / watch.waiting[2], _CAP)
        watch.wealth = tuple(
            (wealth + 1.0) * (1.0 + stake * (times - 1.0))
            for wealth, stake in zip(watch.wealth or (0.0,) * len(_STAKES), _STAKES, strict=True)
        )
        watch.waiting = (0, 0.0, 0.0)


def comparison(watch: Watch, before: str, what: str = "slow") -> str:
    """Say how the compared blocks stand.

    Args:
        watch: with one compared block at least.
        before: what they are compared with, in words.
        what: a request is that counts.
    """
    n = watch.requests
    return (
        f"{watch.slow / n:.1%} of requests {what} in {watch.blocks} blocks, "
        f"{watch.expected / n:.1%} {before}, {watch.allowed / n:.1%} allowed"
    )


def harmed(watch: Watch, settings: TunerSettings) -> str:
    """Return why the trial is to end for the fleet's sake; empty while nothing is shown."""
    if watch.evidence < 1.0 / settings.evidence.fleet_level:
        return ""
    found = comparison(watch, "before under that load")
    return f"the whole fleet is worse than before the trial, whichever arm serves: {found}"
