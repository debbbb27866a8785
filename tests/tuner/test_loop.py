"""Conversations: a picker, its records, a tuner and its files, over virtual hours."""

from __future__ import annotations

import errno
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from epp.config.plan import parse_plan
from epp_lab.tuner.status import status_lines
from epp_lab.tuner.tuner import MAX_RETRY_S, RETRY_S, Found
from tests.kit.tunework import GOOD, QUICK, STARTING, World

if TYPE_CHECKING:
    from pathlib import Path

    from epp.config.plan import Plan


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A deployment in the middle of a switchback."""
    world = World(tmp_path_factory.mktemp("lived"), [GOOD])
    world.start()
    world.until("switchback")
    world.run(4)
    return world


@pytest.fixture
def world(lived: World, tmp_path: Path) -> World:
    """It goes on here."""
    return lived.again(tmp_path)


def plan(world: World) -> Plan:
    text = world.paths.weights.read_bytes()
    return parse_plan(text, "weights.yaml", policy="gorgo", bounds=world.book.bounds)


def test_a_better_candidate_is_promoted_through_all_stages_and_pickers_follow(tmp_path: Path) -> None:
    world = World(tmp_path, [GOOD])
    world.start()
    world.until("probation")
    assert world.state.incumbent == GOOD
    assert plan(world).weights == GOOD
    world.look()
    assert world.book.current.values["rtt_weight"] == 1.0
    assert not world.picker_errors
    phases = [said.split(" -> ")[1].split(":")[0] for said in world.told if " -> " in said]
    assert phases == ["search", "screen", "ramp", "switchback", "probation"]
    assert world.arms["candidate"] > 300
    world.until("baseline")
    assert plan(world).trial is None


def test_a_trial_outlives_its_lease_only_while_the_tuner_lives(world: World) -> None:
    world.run(5)
    world.die()
    world.arms.clear()
    world.run(90)
    assert world.arms[""] > 0
    world.arms.clear()
    world.run(30)
    assert set(world.arms) == {""}, "the lease is over: the incumbent serves everything"
    world.start()
    assert world.state.phase == "switchback"
    world.run(30)
    assert world.arms["candidate"] > 0, "and goes on where it was"


@pytest.mark.parametrize("batch", [20_000, 30], ids=["at once", "in parts"])
def test_what_was_served_while_no_tuner_ran_is_in_its_blocks(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    monkeypatch.setattr("epp_lab.sidecar.feed.MAX_BATCH", batch)
    alive = world.again(tmp_path / "alive")
    assert alive.tuner is not None
    for one in (alive, world):
        for _ in range(6):
            one.run(4)
            one.rotate()
    world.stop()  # between two looks
    world.tuner = None
    for one in (alive, world):
        for _ in range(7):  # within the lease
            one.run(4)
            one.rotate()
    world.start()
    for one in (alive, world):
        one.run(40)
    found, before = world.state.record, alive.state.record
    assert world.state.phase == "switchback"
    assert found.units == before.units


@pytest.mark.parametrize("changed", ["goal", "pins"])
def test_what_came_while_no_tuner_ran_is_not_judged_by_what_is_in_force_no_more(
    tmp_path: Path, changed: str
) -> None:
    stages = msgspec.structs.replace(QUICK.stages, baseline_s=200.0, lease_s=300.0)
    world = World(tmp_path, [GOOD], msgspec.structs.replace(QUICK, stages=stages))
    world.start()
    world.until("switchback")
    world.run(20)
    world.die()
    world.run(250)  # enough for a promotion, as far as TTFT goes
    if changed == "goal":
        goal = msgspec.structs.replace(world.settings.goal, measure="felt")
        world.settings = msgspec.structs.replace(world.settings, goal=goal)
    else:
        world.overrides.write_text("weights: {queue_weight: 2.0}\n")
    world.start()
    assert (world.state.phase, world.state.candidate) == ("baseline", None)
    said = {"goal": "the goal has changed (measure)", "pins": "pinned by the operator: queue_weight"}
    assert world.state.reason == said[changed]
    assert [change.how for change in world.state.history] == ["start"]


def test_a_full_disk_is_told_once_and_nothing_is_lost(world: World) -> None:
    world.run(5)
    before = world.paths.weights.read_bytes()
    world.disk.full = True
    seen = world.tuner.feed.state.seen if world.tuner else 0
    world.run(20)
    assert world.tuner is not None
    assert world.tuner.feed.state.seen > seen
    assert world.paths.weights.read_bytes() == before
    assert (
        sum("No space left" in sentence and "keeping it in memory" in sentence for sentence in world.told)
        <= 2
    )
    assert any("No space left" in sentence for sentence in world.told)
    world.disk.full = False
    world.run(2)
    assert any("is written again" in sentence for sentence in world.told)
    world.until("probation")


@pytest.mark.parametrize("step_s", [3.0, -3600.0])
def test_a_step_of_the_clock_costs_the_blocks_around_it(world: World, step_s: float) -> None:
    world.run(45)
    trial = world.state.trial
    assert trial is not None
    world.clock._offset_s += step_s
    world.run(3)
    assert world.state.phase == "switchback"
    assert any("clock stepped" in sentence for sentence in world.told)
    assert world.state.trial is not None
    assert world.state.trial.id != trial.id, "the schedule began anew"
    world.until("probation")
    assert world.state.incumbent == GOOD


def test_a_weights_file_changed_behind_the_tuners_back_is_written_again(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.start()
    world.run(10)
    world.paths.weights.write_text("weights: {rtt_weight: 0.9}\n")
    world.run(10)
    assert plan(world).weights == STARTING
    assert any("somebody else" in sentence for sentence in world.told)


def test_a_first_start_goes_on_from_the_file_that_is_there(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.paths.weights.write_text("weights: {rtt_weight: 0.9}\n")
    world.start()
    world.run(2)
    assert plan(world).weights == {**STARTING, "rtt_weight": 0.9}


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
    lines = list(status_lines(world.state, world.paths, world.clock.wall_s()))
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


#: What an operator reads of each phase beside its name.
WORDS = {
    "baseline": "not enough evidence (",
    "screen": "candidate 1: ",
    "ramp": "split at 50%",
    "switchback": "verdict so far: 3 pairs of at least 8",
    "probation": "evidence of regret e^",
}


def test_every_phase_is_told_with_its_evidence(tmp_path: Path) -> None:
    world = World(tmp_path, [GOOD])
    world.start()
    told: dict[tuple[str, int], str] = {}
    for _ in range(1200):
        world.second()
        key = world.state.phase, len(world.state.record.units)
        if key not in told:
            lines = list(status_lines(world.state, world.paths, world.clock.wall_s()))
            told[key] = "\n".join(lines)
        if key == ("probation", 3):
            break
    assert {phase for phase, _ in told} >= set(WORDS)
    for phase, words in WORDS.items():
        units = 3 if phase in ("switchback", "probation") else 0
        assert words in told[phase, units], (phase, told[phase, units])
    last = max(units for phase, units in told if phase == "switchback")
    assert f"enough evidence to be judged ({last} of 8 pairs)" in told["switchback", last]
    assert "1: 2023-11-14 22:" in told["probation", 0], "the promotion, with its time of day"
