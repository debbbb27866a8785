"""The learner's files: a process that dies at any write, a full disk, torn files, a second learner."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from epp.config.reward_model import parse_reward_model, version_path
from epp.decide.records import to_record
from epp.errors import EppError
from epp.learn.loop import STATUS_S
from epp.learn.store import MemoryStore
from epp.learner.rounds import Learner
from epp.tune.audit import read_audit
from epp.tune.disk import RealDisk
from epp.tune.lock import LockHeldError, LockLostError
from tests.kit.learning import Traffic, settings_of
from tests.kit.learnworld import LearnWorld, quick_settings
from tests.kit.tunework import CrashError

if TYPE_CHECKING:
    from pathlib import Path


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
    versions = lived.places.versions()
    assert version_path(lived.places.model, model.version) in versions
    assert len(versions) == 3
    for path in versions:
        assert parse_reward_model(path.read_bytes(), path.name).version in path.name
    rounds = [entry for entry in read_audit(lived.places, RealDisk()) if entry["what"] == "round"]
    assert [entry["round"] for entry in rounds] == [1, 2, 3]
    assert all(entry["verdict"]["figures"]["effective_samples"] > 0 for entry in rounds)
    status = json.loads(lived.places.status.read_bytes())
    assert status["model"]["version"] == model.version


def test_a_learner_that_was_killed_goes_on_and_nothing_counts_twice(
    lived: LearnWorld, tmp_path: Path
) -> None:
    world = lived.copied(tmp_path / "again")
    loop = world.start()
    assert loop.learner.memory.rounds == 3
    world.run(40)
    assert loop.learner.memory.seen == 200
    assert loop.learner.memory.rounds == 4
    assert len(set(world.places.versions())) == 4


@pytest.mark.parametrize("after", [False, True], ids=["before the write", "after the write"])
@pytest.mark.parametrize("write", [0, 1, 2, 3, 4, 5, 6])
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
    model, incumbent = world.published(), loop.incumbent
    assert incumbent is not None
    assert model == incumbent
    assert version_path(world.places.model, incumbent.version).exists()


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
    assert world.published() == loop.incumbent
    assert loop.incumbent is not None
    assert loop.incumbent != before
    world.die()
    loop = world.start()
    loop.tick()
    assert loop.learner.memory.seen == 280


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_prefix_of_a_memory_survives_the_other_one_is_used(
    lived: LearnWorld, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    world = lived.copied(tmp_path_factory.mktemp("torn") / "world")
    for path in world.places.states:
        content = path.read_bytes()
        cut = data.draw(st.integers(0, len(content)), label=path.name)
        path.write_bytes(content[:cut])
    loop = world.start()
    world.run(20)
    memory = loop.learner.memory
    assert memory.seen == 180  # whatever is not in the memory is read from the records again
    assert memory.rounds >= 1
    assert world.published() == loop.incumbent


def test_a_model_file_that_somebody_took_or_changed_is_written_again(
    lived: LearnWorld, tmp_path: Path
) -> None:
    world = lived.copied(tmp_path / "taken")
    loop = world.start()
    loop.tick()
    model, content = world.places.model, world.places.model.read_bytes()
    for harm in (model.unlink, lambda: model.write_bytes(content[:-9])):
        harm()
        world.clock.advance(STATUS_S)
        loop.tick()
        assert model.read_bytes() == content
    assert sum("brought back to what the learner says" in said for said in world.told) == 2
    loop.tick()
    assert sum("brought back" in said for said in world.told) == 2


def test_a_changed_memory_and_one_of_other_features_are_not_used(lived: LearnWorld, tmp_path: Path) -> None:
    world = lived.copied(tmp_path / "other")
    other = settings_of(network={"features": ("kv_usage",)})
    told: list[str] = []
    assert MemoryStore(world.places, RealDisk(), other, told.append).load() is None
    assert "other features" in told[0]
    for path in world.places.states:
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 0xFF
        path.write_bytes(content)
    assert MemoryStore(world.places, RealDisk(), quick_settings(), told.append).load() is None


def test_a_memory_that_is_there_and_cannot_be_read_is_not_begun_anew(
    lived: LearnWorld, tmp_path: Path
) -> None:
    world = lived.copied(tmp_path / "unreadable")
    half = world.places.states[1]
    half.unlink(missing_ok=True)
    half.mkdir()
    with pytest.raises(EppError, match="Is a directory; the learner's memory must be readable"):
        world.start()


def test_a_memory_of_another_version_is_not_begun_anew(
    lived: LearnWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = lived.copied(tmp_path / "later")
    store = MemoryStore(world.places, RealDisk(), world.settings, print)
    found = store.load()
    assert found is not None
    with monkeypatch.context() as later:
        later.setattr("epp.learn.store.FORMAT", 2)
        store.save(*found)
    before = [path.read_bytes() for path in world.places.states]
    with pytest.raises(
        EppError, match="the memory has format 2, this program reads 1; start the version of epp"
    ):
        world.start()
    assert [path.read_bytes() for path in world.places.states] == before


def test_a_memory_comes_back_whole(tmp_path: Path) -> None:
    chosen = settings_of(network={"epochs": 2})
    learner = Learner(chosen)
    for logged in Traffic().many(480):
        learner.add(logged)
        if learner.due():
            learner.train(1.0)
    world = LearnWorld(tmp_path / "w", chosen)
    feed = world.start().feed.state
    MemoryStore(world.places, RealDisk(), chosen, print).save(learner.memory, feed)
    found = MemoryStore(world.places, RealDisk(), chosen, print).load()
    assert found is not None
    again = Learner(chosen, memory=found[0])
    more = Traffic(5).many(100)
    models = []
    for each in (learner, again):
        for logged in more:
            each.add(logged)
        models.append(each.train(2.0))
    assert models[0] == models[1]  # the same model, bit for bit
    assert models[0] is not None
    assert learner.last == again.last


def test_a_second_learner_is_refused_and_a_robbed_one_writes_nothing(tmp_path: Path) -> None:
    world = LearnWorld(tmp_path / "w")
    loop = world.start()
    world.recorded.write(80)
    with pytest.raises(LockHeldError, match="a learner runs on this file already"):
        LearnWorld.start(world)
    text = world.places.lock.read_bytes()
    world.places.lock.write_bytes(text.replace(b'"token":"', b'"token":"f', 1)[: len(text)])
    with pytest.raises(LockLostError):
        loop.tick()
    assert world.published() is None
    assert not any(path.exists() for path in world.places.states)


def test_damaged_records_are_passed_over_and_a_half_line_waits_for_its_end(tmp_path: Path) -> None:
    world = LearnWorld(tmp_path / "w")
    loop = world.start()
    world.run(20)
    world.recorded.append(
        b'{"schema":2,"kind":"decision","id":"x"}\nnot json\n{"schema":2,"kind":"outcome"}\n'
    )
    whole = world.recorded.file.read_bytes().splitlines(keepends=True)[0]
    world.recorded.append(whole[:50])
    loop.tick()
    assert loop.learner.memory.seen == 20
    assert loop.feed.state.damaged == 3
    world.recorded.append(whole[50:])
    world.run(20)
    assert loop.learner.memory.seen == 40


def test_it_begins_with_what_is_on_file(tmp_path: Path) -> None:
    world = LearnWorld(tmp_path / "w")
    world.recorded.write(70)
    world.start().tick()
    assert world.published() is not None


def test_only_the_last_versions_are_kept_and_a_withdrawn_model_is_taken_away(tmp_path: Path) -> None:
    world = LearnWorld(tmp_path / "w", msgspec.structs.replace(quick_settings(), keep=2))
    loop = world.start()
    world.run(240)
    model = world.published()
    assert model is not None
    assert len(world.places.versions()) == 2
    assert version_path(world.places.model, model.version) in world.places.versions()
    loop.learner.memory.incumbent = None
    loop.tick()
    assert not world.places.model.exists()
    assert len(world.places.versions()) == 2


@pytest.mark.parametrize("step_s", [3600.0, -3600.0, -600.0])
def test_a_step_of_the_clock_teaches_nothing(tmp_path: Path, step_s: float) -> None:
    world = LearnWorld(tmp_path / "world")
    loop = world.start()
    world.run(20)
    under_way = [to_record(world.recorded.decision()) for _ in range(3)]
    world.recorded.append("".join(json.dumps(record) + "\n" for record in under_way).encode())
    loop.tick()
    assert (len(loop.feed.state.waiting), loop.learner.memory.seen) == (3, 20)
    guard = loop.learner.memory.guard
    guard.newest_wall_s = world.clock.wall_s()
    world.clock._offset_s += step_s
    loop.tick()
    assert guard.newest_wall_s <= world.clock.wall_s(), "the guard goes by the clock as it is now"
    assert (len(loop.feed.state.waiting), loop.learner.memory.seen) == (0, 20), (
        "nobody has waited for an hour"
    )
    assert sum("clock stepped" in sentence for sentence in world.told) == 1
