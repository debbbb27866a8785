"""Rehearsals that fail, and what is remembered of weights that were proposed."""

from __future__ import annotations

import argparse
import errno
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from epp.learn.tuner.offline import ChildRehearsal, task_of
from epp.learn.tuner.setup import read_setup
from epp.learn.tuner.state import Freeze, RollBack
from epp.learn.tuner.status_command import status_lines
from epp.learn.tuner.tuner import MAX_RETRY_S, RETRY_S, Found
from tests.kit.tunework import GOOD, World

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

KILLED = Found(None, "the rehearsal failed with status -9: no words", failed=True)


def full() -> OSError:
    return OSError(errno.ENOSPC, "No space left on device")


def test_no_room_for_a_rehearsal_is_told_and_it_is_begun_again(tmp_path: Path) -> None:
    world = World(tmp_path, [full(), full(), GOOD])
    world.start()
    world.until("search")
    world.run(4)
    assert world.state.phase == "search"
    assert any("cannot be begun: [Errno 28] No space left on device" in said for said in world.told)
    lines = status_lines(world.state, world.settings, world.paths, world.clock.wall_s())
    assert any("failed and is begun again later: the rehearsal cannot be begun" in line for line in lines)
    world.until("screen")
    assert world.state.candidate == GOOD


def test_no_room_at_a_restart_does_not_stop_the_tuner(tmp_path: Path) -> None:
    world = World(tmp_path, [full(), full(), GOOD])
    world.start()
    world.until("search")
    world.run(2)
    world.die()
    world.start()
    world.run(2)
    assert world.state.phase == "search"
    world.until("screen")


def test_a_child_that_finds_no_room_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*_: Any, **__: Any) -> None:
        raise full()

    config = tmp_path / "epp.yaml"
    config.write_text("policy: {name: gorgo}\nrecords: {folder: records}\nweights_file: weights.yaml\n")
    flags = argparse.Namespace(config=config, weights=None, records=None, overrides=None, settings=None)
    setup = read_setup(flags)
    world = World(tmp_path)
    world.start()
    assert world.tuner is not None
    world.tuner._rehearsal = ChildRehearsal(setup, budget=3, tell=world.told.append)
    monkeypatch.setattr("epp.learn.tuner.offline.subprocess.Popen", no_room)
    world.until("search")
    world.run(4)
    assert world.state.phase == "search"
    assert world.tuner._rehearsal.poll() is None
    world.stop()


def test_killed_rehearsals_are_retried_ever_less_often_and_freeze_nothing(tmp_path: Path) -> None:
    world = World(tmp_path, [KILLED] * 9)
    world.start()
    world.until("search")
    assert world.tuner is not None
    rehearsal: Any = world.tuner._rehearsal
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


def test_a_failed_rehearsal_forgets_nothing(tmp_path: Path) -> None:
    world = World(tmp_path, [KILLED, None])
    world.start()
    refused = [{"rtt_weight": 1.0}]
    world.state.search = {"refused": refused, "search": {}}
    world.until("search")
    world.run(4)
    assert world.state.search["refused"] == refused


def proposal(refused: list[dict[str, float]]) -> Found:
    return Found(GOOD, "as the test says", {"search": {}, "refused": refused, "proposed": GOOD})


def refused_next(world: World) -> list[dict[str, float]]:
    """What the next rehearsal must not propose."""
    folder = world.folder
    config = folder / "epp.yaml"
    config.write_text("policy: {name: gorgo}\nrecords: {folder: records}\nweights_file: weights.yaml\n")
    flags = argparse.Namespace(config=config, weights=None, records=None, overrides=None, settings=None)
    return task_of(read_setup(flags), world.state, budget=4).refused


def test_what_was_proposed_and_never_tried_may_be_proposed_again(tmp_path: Path) -> None:
    world = World(tmp_path, [proposal([])])
    world.start()
    world.until("screen")
    world.overrides.write_text("weights: {queue_weight: 2.0}\n")
    world.run(2)
    assert world.state.phase == "baseline"
    assert refused_next(world) == []


def test_what_a_trial_ended_is_not_proposed_again(tmp_path: Path) -> None:
    world = World(tmp_path, [proposal([])], ttft_ms=lambda w: 100.0 * (1.0 + 9.0 * (w == GOOD)))
    world.start()
    world.until("screen")
    world.until("baseline")
    assert "ended in screen" in world.state.reason
    assert refused_next(world) == [GOOD]


def test_what_was_promoted_and_rolled_back_is_not_proposed_again(tmp_path: Path) -> None:
    world = World(tmp_path, [proposal([])])
    world.start()
    world.until("probation")
    assert refused_next(world) == []
    assert world.tuner is not None
    world.tuner.session.handle(RollBack(world.clock.wall_s(), 0, "a ticket"))
    assert refused_next(world) == [GOOD]


def test_a_rehearsal_that_ends_after_a_freeze_overwrites_nothing(tmp_path: Path) -> None:
    world = World(tmp_path, [proposal([])])
    world.start()
    world.until("search")
    assert world.tuner is not None
    rehearsal: Any = world.tuner._rehearsal
    rehearsal.running, world.state.search = True, {"refused": [GOOD]}
    world.tuner.session.handle(Freeze(world.clock.wall_s(), "holidays"))
    world.run(2)
    assert not rehearsal.running
    assert (world.state.phase, refused_next(world)) == ("frozen", [GOOD])
