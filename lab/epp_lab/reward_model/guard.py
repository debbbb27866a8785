"""The learned policy against its heuristic where no trial came between gate and promotion: retreat on regret.

Owns the comparison of the whole fleet under a model with the same fleet under the heuristic, the heuristic's
turns that keep this comparison fresh, and how long no model may decide after a retreat. What a policy does to
queues and caches that its later requests find is in no estimate of single choices; it is here. Pure; plain
data, no clock: the time is that of the requests.

Rules
- A block is the heuristic's when no request in it was chosen by a model, and the model's otherwise; what
  other policies chose, as in records of before, counts for neither. The first blocks after a model's do not
  count for the heuristic: the model's queues are still in them.
- A model's block is compared with the heuristic's under about its load; where there are too few of these,
  with all of them, unless the heuristic never had as much: then it says nothing. A trial
  (`epp_lab.tuner.watch`) asks for more, an hour of like load, and says nothing for hours; here the
  heuristic is the safe side, and a model that goes for what was the load's costs only what it would have
  gained.
- Compared are first tokens by the goal's measure, whole answers, and failures, with the same margin. What is
  shown of one of them is enough, at a level that the three share.
- The heuristic's turns are drawn from the time and a seed, so that nobody has to remember them, and no
  pattern of the load can keep step with them.
- Each retreat holds models back for twice as long as the one before; the heuristic's blocks of that time are
  what the next model is compared with.

The test is a trial's: ``M = (M + 1) (1 + s (x / b - 1))`` over the blocks for each of some stakes ``s``,
``x`` a block's share of slow or failed requests, ``b`` the upper end of the heuristic's (two standard errors)
plus the margin. While models are worse by no more than that, the mean of these passes ``1 / level`` no sooner
than after ``1 / level`` blocks in the mean, and far more seldom where they are not worse at all.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from epp.keyed_uniform import keyed_uniform
from epp_lab.tuner import watch as fleet
from epp_lab.tuner.samples import Sample as Ended
from epp_lab.tuner.samples import Stamp
from epp_lab.tuner.tally import E2E, ERRORS, place_of
from epp_lab.tuner.watch import Block, Watch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from epp_lab.reward_model.samples import Logged
    from epp_lab.reward_model.settings import Guard, LearnerSettings

_MODEL = Stamp("guard", "model", 0)
_FIRST = "first"
#: What is compared: what a request is that counts against the model, and of what it is said.
WORDS = {_FIRST: ("slow", "first tokens"), E2E: ("slow", "whole answers"), ERRORS: ("failed", "failures")}
_LONGEST_HOLD_S = 86_400.0
#: Clocks of pickers are apart by much less: requests so far ahead are of before this clock was set back.
#: Where a step was seen it is enough that blocks are closed that are not over.
_BACK_S = 3600.0
#: Load is the mean of so many blocks, because queues outlast one; after a model's as many do not count.
_SMOOTH = (5,)
#: Under the load of a block is what had from so much to so much of it.
_AS_MUCH, _NEAR = 0.9, 1.3
#: Where a failure never comes: any request that did not fail has this time and this place.
_DONE_MS, _DONE = 1.0, 0
#: Blocks whose neighbours are alike say less than their number: two standard errors are of a part of them.
_ALIKE, _STANDARD_ERRORS = 4.0, 2.0


class GuardState(msgspec.Struct):
    """What is known; persisted with the learner's memory.

    Attributes:
        watches: blocks of the heuristic, and the evidence against the model, by keys of `WORDS`.
        newest_wall_s: the latest dispatch that was seen: the time, as far as the guard is concerned.
        closed: blocks before this number are complete.
        held_until_wall_s: no model may decide before.
        retreats: so far.
        measure: of the goal, that is counted in these blocks.
    """

    watches: dict[str, Watch] = msgspec.field(default_factory=lambda: {name: Watch() for name in WORDS})
    newest_wall_s: float = 0.0
    closed: int = 0
    held_until_wall_s: float = 0.0
    retreats: int = 0
    measure: str = ""


def take(state: GuardState, logged: Logged, settings: LearnerSettings) -> str:
    """Count a request, and take complete blocks into account.

    Args:
        state: changed in place.
        logged: the request, whoever chose for it.
        settings: margin, level and length of blocks are those of a trial.

    Returns:
        Why the model has to go, empty while that is not shown. The caller takes it away.
    """
    trial, sample = settings.trial, logged.sample
    if logged.choice.other:
        return ""
    if state.measure != trial.goal.measure:  # blocks of another measure compare with none
        state.measure, state.watches, state.closed = trial.goal.measure, GuardState().watches, 0
    open_wall_s = state.closed * trial.stages.block_s
    if logged.ended_wall_s < open_wall_s:
        return ""  # of another picker, whose files are read after: these blocks are closed
    state.newest_wall_s = max(state.newest_wall_s, sample.at_wall_s)
    # What ends when its block is complete counts in the oldest one that is not: it must not go uncounted for
    # being slow.
    at_wall_s = max(sample.at_wall_s, open_wall_s)
    for name, ended in _ended(logged, settings, at_wall_s):
        fleet.enter(state.watches[name], ended, trial)
    _close(state, settings)
    name, watch = max(state.watches.items(), key=lambda item: item[1].evidence)
    if watch.evidence < len(WORDS) / settings.guard.level:
        return ""
    what, of = WORDS[name]
    found = fleet.comparison(watch, "under the heuristic", what)
    reason = f"the fleet is worse than under the heuristic: {of}: {found}"
    state.retreats += 1
    hold_s = min(settings.retry_s * 2.0 ** (state.retreats - 1), max(_LONGEST_HOLD_S, settings.retry_s))
    state.held_until_wall_s = state.newest_wall_s + hold_s
    # The heuristic's blocks stay, the evidence does not.
    state.watches = {key: fleet.begin(each) for key, each in state.watches.items()}
    return reason


def look_at_the_clock(
    state: GuardState, now_wall_s: float, settings: LearnerSettings, *, stepped_s: float = 0.0
) -> None:
    """Notice a clock that was set back: blocks of before are of no time any more; a hold is no longer for it.

    Requests do not tell: those of several pickers are read file by file, hours of the one after hours of the
    other where nobody has read for so long.

    Args:
        state: changed in place.
        now_wall_s: the time.
        settings: of the blocks.
        stepped_s: by how much the clock was seen to step since the last look.
    """
    ahead_s = state.newest_wall_s - now_wall_s
    if ahead_s <= (settings.trial.stages.late_s if stepped_s < 0.0 else _BACK_S):
        return
    state.held_until_wall_s -= ahead_s
    state.watches, state.newest_wall_s, state.closed = GuardState().watches, now_wall_s, 0


def rests(guard: Guard, seed: int, now_wall_s: float) -> bool:
    """Whether it is the heuristic's turn: one of `Guard.rest_s` at a random time in each `Guard.every_s`."""
    period = math.floor(now_wall_s / guard.every_s)
    spare_s = guard.every_s - guard.rest_s
    begin_s = period * guard.every_s + keyed_uniform(seed, str(period), "guard:rest") * spare_s
    return begin_s <= now_wall_s < begin_s + guard.rest_s


def _close(state: GuardState, settings: LearnerSettings) -> None:
    """Take complete blocks into account, each as the heuristic's or the model's."""
    stages = settings.trial.stages
    complete = math.floor((state.newest_wall_s - stages.late_s) / stages.block_s)
    if complete <= state.closed:
        return
    state.closed = complete
    for name, watch in state.watches.items():
        for tried, block in fleet.completed(watch, complete, _SMOOTH):
            if tried:
                _compare(name, watch, block, settings)
            else:
                watch.baseline = [*watch.baseline, block][-fleet.KEPT :]


def _compare(name: str, watch: Watch, block: Block, settings: LearnerSettings) -> None:
    goal = settings.trial.goal
    others = _others(watch.baseline, block)
    if not others:
        watch.alone += 1
        return
    # Of all its blocks one in so many requests is slow, whatever a calm part of them says.
    limit, least = _DONE, 0.0
    if name != ERRORS:
        places = Counter[int]()
        for each in watch.baseline:
            places.update(each.places)
        limit, least = place_of(places, goal.quantile), 1.0 - goal.quantile
    shares = np.array([fleet.share(other, limit) for other in others])
    error = float(shares.std()) * math.sqrt(_ALIKE / (len(others) - 1))
    mean = max(float(shares.mean()), least)
    allowed = min(mean + _STANDARD_ERRORS * error + goal.fleet_margin, 1.0)
    fleet.bet(watch, block, fleet.share(block, limit), expected=mean, allowed=allowed)


def _others(baseline: Sequence[Block], block: Block) -> Sequence[Block]:
    """The heuristic's blocks that a model's is compared with; none where they are few, or had less load."""
    if len(baseline) < fleet.LEAST_BLOCKS:
        return ()
    times = np.array([other.loads for other in baseline]) / np.maximum(block.loads, 1.0)
    alike = (times.min(axis=1) >= _AS_MUCH) & (times.max(axis=1) <= _NEAR)
    if int(alike.sum()) >= fleet.LEAST_BLOCKS:
        return [other for other, is_alike in zip(baseline, alike, strict=True) if is_alike]
    return baseline if float(times.max(axis=0).min()) >= _AS_MUCH else ()


def _ended(logged: Logged, settings: LearnerSettings, at_wall_s: float) -> Iterator[tuple[str, Ended]]:
    """Yield the request as each comparison counts it; a whole answer whose end nobody saw is left out."""
    sample, features = logged.sample, settings.network.features
    # Without prompts' lengths requests alone say how much load there is.
    prompt_tokens = int(sample.row[features.index("prompt_tokens")]) if "prompt_tokens" in features else 1
    common = Ended(_MODEL if logged.choice.learned else None, at_wall_s, prompt_tokens, failed=logged.failed)
    yield (
        _FIRST,
        replace(
            common,
            ttft_ms=sample.ttft_ms,
            itl_ms=sample.itl_ms,
            answer_tokens=round(sample.output_tokens) or None,
            failed=sample.failed,
        ),
    )
    if logged.failed or not math.isnan(logged.e2e_ms):
        yield E2E, replace(common, ttft_ms=logged.e2e_ms, e2e_ms=logged.e2e_ms)
    yield ERRORS, replace(common, ttft_ms=_DONE_MS, e2e_ms=_DONE_MS)
