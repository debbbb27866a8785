"""Conversations: a picker, its records, a tuner and its files, over virtual hours."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import msgspec
import pytest

from epp.learn.sidecar.files import Files
from epp.learn.sidecar.paths import WeightsPaths
from epp.learn.tuner.operator_requests import ask, read_requests, withdraw
from epp.learn.tuner.plan import Switchback, parse_plan
from tests.kit.tunework import BAD, GOOD, QUICK, STARTING, World

if TYPE_CHECKING:
    from pathlib import Path

    from epp.learn.tuner.plan import Plan


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


def test_a_worse_candidate_ends_and_leaves_nothing(tmp_path: Path) -> None:
    world = World(tmp_path, [BAD])
    world.start()
    world.until("screen")
    world.until("baseline")
    assert world.state.incumbent == STARTING
    world.second()
    assert plan(world).trial is None
    assert plan(world).weights == STARTING


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
    monkeypatch.setattr("epp.learn.sidecar.feed.MAX_BATCH", batch)
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
    assert found.late == before.late
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


def test_fewer_steps_of_a_ramp_do_not_keep_a_tuner_from_starting(tmp_path: Path) -> None:
    world = World(tmp_path, [GOOD])
    world.start()
    world.until("ramp")
    world.die()
    world.run(90, traffic=False)  # beyond the lease
    stages = msgspec.structs.replace(QUICK.stages, ramp_shares=())
    world.settings = msgspec.structs.replace(QUICK, stages=stages)
    world.start()
    world.until("switchback")


def test_no_traffic_for_hours_writes_nothing_bad_and_keeps_the_state(world: World) -> None:
    pairs = len(world.state.record.units)
    world.run(1800, traffic=False)
    assert world.state.incumbent == STARTING
    assert world.state.phase == "switchback" or "too little traffic" in world.state.reason
    assert len(world.state.record.units) in (0, pairs)


def test_a_fleet_that_fails_altogether_tries_nothing(tmp_path: Path) -> None:
    world = World(tmp_path, [GOOD], status=503)
    world.start()
    world.run(200)
    assert world.state.phase == "baseline"
    assert "unwell" in world.state.reason
    assert plan(world).trial is None


def test_a_fleet_that_begins_to_fail_promotes_nothing(world: World) -> None:
    world.status = 503
    world.run(300)
    assert world.state.incumbent == STARTING
    assert plan(world).weights == STARTING


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


@pytest.mark.parametrize("step_s", [3.0, 600.0, -3.0, -3600.0])
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


def test_a_step_of_the_clock_is_no_time_of_a_baseline(tmp_path: Path) -> None:
    stages = msgspec.structs.replace(QUICK.stages, baseline_requests=50, baseline_s=300.0)
    world = World(tmp_path, settings=msgspec.structs.replace(QUICK, stages=stages))
    world.start()
    world.run(20)
    world.clock._offset_s += 3600.0
    world.run(280)
    assert world.state.fruitless == 0
    assert world.state.baseline.requests > 1000
    world.run(30)
    assert world.state.fruitless == 1, "searched, and found nothing"


def test_outcomes_that_never_come_are_not_better_than_slow_ones(world: World) -> None:
    world.outcomes = False
    world.run(120)
    assert world.tuner is not None
    assert world.tuner.feed.state.given_up > 100
    assert world.state.incumbent == STARTING


def test_pins_end_a_trial_and_unpinned_weights_are_tuned_again(tmp_path: Path) -> None:
    world = World(tmp_path, [GOOD, GOOD])
    world.start()
    world.until("screen")
    world.overrides.write_text("weights: {queue_weight: 2.0}\n")
    world.run(2)
    assert world.state.phase == "baseline"
    assert world.state.pins == {"queue_weight": 2.0}
    world.run(1)
    assert world.book.current.values["queue_weight"] == 2.0
    world.overrides.write_text("weights: {queue_weight: ")
    world.run(2)
    assert world.state.pins == {"queue_weight": 2.0}, "a torn file keeps the last good pins"
    world.overrides.unlink()
    world.run(2)
    assert not world.state.pins


def test_pins_of_a_file_that_is_configured_no_more_are_forgotten(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.start()
    world.overrides.write_text("weights: {queue_weight: 2.0}\n")
    world.run(2)
    world.die()
    world.has_overrides = False
    world.start()
    assert not world.state.pins
    assert "pinned by the operator: nothing any more" in world.state.reason


def test_operators_freeze_thaw_and_roll_back(tmp_path: Path) -> None:
    world = World(tmp_path, [GOOD])
    world.start()
    world.until("probation")
    ask(world.paths, world.disk, "rollback", reason="support ticket", number=0, at_wall_s=0.0)
    world.run(2)
    assert world.state.phase == "frozen"
    assert plan(world).weights == STARTING
    assert "support ticket" in plan(world).reason
    world.die()
    world.start()
    world.run(3)
    assert [change.how for change in world.state.history] == ["start", "promoted", "rolled-back"], "done once"
    ask(world.paths, world.disk, "thaw", reason="again", at_wall_s=0.0)
    world.run(2)
    assert not world.state.held
    ask(world.paths, world.disk, "freeze", reason="holidays", at_wall_s=0.0)
    world.run(2)
    assert world.state.reason == "by request: holidays"


def test_requests_within_one_look_are_all_done_in_order(tmp_path: Path) -> None:
    world = World(tmp_path, [GOOD])
    world.start()
    world.until("probation")
    ask(world.paths, world.disk, "rollback", reason="a ticket", number=0, at_wall_s=0.0)
    ask(world.paths, world.disk, "thaw", reason="go on", at_wall_s=0.0)
    world.run(2)
    hows = ["start", "promoted", "rolled-back"]
    assert [change.how for change in world.state.history] == hows
    assert world.state.incumbent == STARTING
    assert world.state.reason == "by request: go on"
    world.die()
    world.start()
    world.run(4)
    assert [change.how for change in world.state.history] == hows, "done once"
    withdraw(world.paths, world.disk, ask(world.paths, world.disk, "freeze", reason="", at_wall_s=0.0))
    world.run(2)
    assert world.state.phase == "baseline", "what was taken back is not done, nor the others once more"


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


def test_the_written_schedule_is_what_the_picker_serves(world: World) -> None:
    world.run(60)
    trial = plan(world).trial
    assert isinstance(trial, Switchback)
    assert world.book.trial == trial
    assert world.arms["candidate"] > 0


def test_what_commands_ask_for_at_the_same_moment_is_all_on_file(tmp_path: Path) -> None:
    places = WeightsPaths(tmp_path / "weights.yaml")

    def said(number: int) -> str:
        return ask(places, Files(), "freeze", reason=str(number), at_wall_s=0.0).id

    with ThreadPoolExecutor(6) as pool:
        ids = set(pool.map(said, range(6)))
    assert {asked.id for asked in read_requests(places, Files())} == ids
