"""Rehearsals that fail, and what is remembered of weights that were proposed."""

from __future__ import annotations

import errno
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from epp.learn.tuner.status import status_lines
from epp.learn.tuner.tuner import MAX_RETRY_S, RETRY_S, Found
from tests.kit.tunework import GOOD, World

if TYPE_CHECKING:
    from pathlib import Path


KILLED = Found(None, "the rehearsal failed with status -9", failed=True)


def full() -> OSError:
    return OSError(errno.ENOSPC, "No space left on device")


def test_no_room_for_a_rehearsal_is_told_and_it_is_begun_again(tmp_path: Path) -> None:
    world = World(tmp_path, [full(), full(), GOOD])
    world.start()
    world.until("search")
    world.run(4)
    assert world.state.phase == "search"
    assert any("cannot be begun: [Errno 28] No space left on device" in said for said in world.told)
    lines = status_lines(world.state, world.paths, world.clock.wall_s())
    assert any("failed and is begun again later: the rehearsal cannot be begun" in line for line in lines)
    world.until("screen")
    assert world.state.candidate == GOOD


def test_killed_rehearsals_are_retried_ever_less_often_and_freeze_nothing(tmp_path: Path) -> None:
    world = World(tmp_path, [KILLED] * 9)
    world.start()
    world.until("search")
    assert world.tuner is not None
    rehearsal: Any = world.tuner.rehearsal
    began: list[float] = []
    for _ in range(int(12 * MAX_RETRY_S) // 20):
        before = rehearsal.started
        world.clock.advance(20.0)
        world.tuner.tick()
        if rehearsal.started > before:
            began.append(world.clock.mono_s())
        if world.state.phase != "search":
            break
    waits = [later - earlier for earlier, later in pairwise(began)]
    assert waits[0] >= RETRY_S
    assert max(waits) >= MAX_RETRY_S
    assert waits == sorted(waits)
    assert sum("status -9" in said and "once more in" in said for said in world.told) == 9
    assert (world.state.phase, world.state.fruitless) == ("baseline", 1), "the tenth has searched"


def test_what_a_trial_ended_is_not_proposed_again(tmp_path: Path) -> None:
    world = World(tmp_path, [GOOD], ttft_ms=lambda w: 100.0 * (1.0 + 9.0 * (w == GOOD)))
    world.start()
    world.until("screen")
    world.until("baseline")
    assert "ended in screen" in world.state.reason
    assert world.state.refused == [GOOD]
