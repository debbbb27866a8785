"""The learner's files: a process that dies at any write, a full disk, torn files, a second learner. And when a model is proposed for trial."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from epp.errors import EppError
from epp.records.model_files import parse_reward_model, version_path
from epp_lab.reward_model.loop import STATUS_S, Loop, decode, encode, learner_of
from epp_lab.reward_model.rounds import Learner
from epp_lab.reward_model.trial import POLICY, STARTING, WEIGHT, Contender
from epp_lab.tuner.state import TunerState
from tests.kit.clock import ManualClock
from tests.kit.learning import LearnWorld, Traffic, settings_of
from tests.kit.reward_models import linear_model
from tests.kit.tunework import CrashError

if TYPE_CHECKING:
    from pathlib import Path

    from epp.policies.reward_model import RewardModel


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> LearnWorld:
    """A learner after three rounds, killed."""
    world = LearnWorld(tmp_path_factory.mktemp("lived") / "world")
    world.start()
    world.run(160)
    world.die()
    return world


def test_records_become_a_model_with_its_versions_beside_it(lived: LearnWorld) -> None:
    model = lived.published()
    assert model is not None
    assert model.round == 3
    assert model.seen <= 160
    versions = lived.paths.versions()
    assert version_path(lived.paths.model, model.version) in versions
    assert len(versions) == 3
    for path in versions:
        assert parse_reward_model(path.read_bytes(), path.name).version in path.name
    assert [said.split(",")[0] for said in lived.told] == ["round 1", "round 2", "round 3"]
    assert f"model: {model.version}," in lived.paths.status.read_text()


@pytest.mark.parametrize("after", [False, True], ids=["before the write", "after the write"])
@pytest.mark.parametrize("write", [0, 1, 2, 4])
def test_killed_at_any_write_it_goes_on_as_if_nothing_had_been(
    lived: LearnWorld, tmp_path: Path, write: int, after: bool
) -> None:
    world = lived.copied(tmp_path / "w")
    world.disk.dies_in, world.disk.after = write, after
    try:
        world.start()
        world.run(60)
    except CrashError:
        pass
    world.published()  # whole, or what was there before
    seen = 160 + world.recorded._asked
    world.die()
    loop = world.start()
    world.run(40)
    assert loop.learner.memory.seen == seen + 40
    model, incumbent = world.published(), loop.learner.incumbent
    assert incumbent is not None
    assert model == incumbent
    assert version_path(world.paths.model, incumbent.version).exists()


def test_a_full_disk_costs_nothing_but_freshness(lived: LearnWorld, tmp_path: Path) -> None:
    world = lived.copied(tmp_path / "full")
    before = world.published()
    loop = world.start()
    world.disk.full = True
    world.run(80)
    assert world.published() == before
    assert sum("cannot write the learner's memory" in sentence for sentence in world.told) == 1
    assert loop.learner.memory.rounds == 5
    world.disk.full = False
    world.run(40)
    assert world.published() == loop.learner.incumbent
    assert loop.learner.incumbent is not None
    assert loop.learner.incumbent != before
    world.die()
    loop = world.start()
    loop.tick()
    assert loop.learner.memory.seen == 280


def test_a_model_file_that_somebody_took_or_changed_is_written_again(
    lived: LearnWorld, tmp_path: Path
) -> None:
    world = lived.copied(tmp_path / "taken")
    loop = world.start()
    loop.tick()
    model, content = world.paths.model, world.paths.model.read_bytes()
    for harm in (model.unlink, lambda: model.write_bytes(content[:-9])):
        harm()
        world.clock.advance(STATUS_S)
        loop.tick()
        assert model.read_bytes() == content
    assert sum("brought back to what the learner says" in said for said in world.told) == 2
    loop.tick()
    assert sum("brought back" in said for said in world.told) == 2


def test_a_memory_that_cannot_be_used_is_not_begun_anew(lived: LearnWorld, tmp_path: Path) -> None:
    world = lived.copied(tmp_path / "unreadable")
    content = world.paths.memory.read_bytes()[:-100]
    world.paths.memory.write_bytes(content)
    with pytest.raises(EppError, match="it is damaged, or of another version of epp"):
        world.start()
    assert world.paths.memory.read_bytes() == content


def test_a_memory_comes_back_whole(tmp_path: Path) -> None:
    chosen = settings_of(network={"epochs": 2})
    learner = Learner(chosen)
    for logged in Traffic().many(480):
        learner.add(logged)
        if learner.due():
            learner.train(1.0)
    world = LearnWorld(tmp_path / "w", chosen)
    feed = world.start().feed.state
    again = learner_of(decode(encode(learner, feed)), chosen, "a test")
    more = Traffic(5).many(100)
    models = []
    for each in (learner, again):
        for logged in more:
            each.add(logged)
        models.append(each.train(2.0))
    assert models[0] == models[1]  # the same model, bit for bit
    assert models[0] is not None
    assert learner.last == again.last


def test_it_begins_with_what_is_on_file(tmp_path: Path) -> None:
    world = LearnWorld(tmp_path / "w")
    world.recorded.write(70)
    world.start().tick()
    assert world.published() is not None


def test_only_the_last_versions_are_kept_and_a_withdrawn_model_is_taken_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("epp_lab.reward_model.loop.KEPT_VERSIONS", 2)
    world = LearnWorld(tmp_path / "w")
    loop = world.start()
    world.run(240)
    model = world.published()
    assert model is not None
    assert len(world.paths.versions()) == 2
    assert version_path(world.paths.model, model.version) in world.paths.versions()
    loop.learner.incumbent = None
    loop.tick()
    assert not world.paths.model.exists()
    assert len(world.paths.versions()) == 2


def searching() -> TunerState:
    """A machine that asks for a candidate."""
    return TunerState(policy=POLICY, incumbent=dict(STARTING), phase="search")


def test_it_is_proposed_when_a_model_passed_the_gate_and_only_then() -> None:
    models: list[RewardModel] = []
    contender = Contender(lambda: models[0] if models else None, ManualClock(), 3600.0)
    assert contender.poll() is None
    contender.start(searching(), "begin")
    assert contender.poll() is None
    models.append(linear_model({"running_requests": 1.0}))
    found = contender.poll()
    assert found is not None
    assert found.weights == {WEIGHT: 1.0}
    assert "passed the gate: round 3" in found.reason
    assert contender.poll() is None  # once


def test_after_a_trial_that_came_to_nothing_it_waits_and_a_settled_one_is_left_alone() -> None:
    clock = ManualClock()
    model = linear_model({"running_requests": 1.0})
    contender = Contender(lambda: model, clock, 3600.0)
    state = searching()
    state.fruitless = 1
    contender.start(state, "again")
    assert contender.poll() is None
    clock.advance(3601.0)
    assert contender.poll() is not None
    settled = searching()
    settled.incumbent = {WEIGHT: 1.0}
    contender.start(settled, "search")
    assert contender.poll() is None


def test_a_learner_that_takes_over_goes_on_from_the_model_in_force(lived: LearnWorld, tmp_path: Path) -> None:
    world = lived.copied(tmp_path / "over")
    model = world.published()
    world.paths.memory.unlink()
    for go_on, wanted in ((True, model), (False, None)):
        loop = Loop(world.setup, clock=world.clock, report=world.told.append)
        loop.open(go_on=go_on)
        assert loop.learner.incumbent == wanted
        assert loop.feed.state.seen == 0
