"""The learner's locks are beaten while it works for long, and not while it hangs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import msgspec
import pytest

from epp.decide.record_files import Tail
from epp.decide.records import to_record
from epp.learner.network import Adam
from epp.tune import feed
from epp.tune.lock import STALE_S, Holder, LockLostError, TunerLock, read_holder
from epp.tune.status import running
from tests.kit.beats import Beats
from tests.kit.learnedlife import LearnedLife, faster_by_the_model
from tests.kit.learnworld import LearnWorld

if TYPE_CHECKING:
    from pathlib import Path

LOCK = "reward.lock"


def test_while_records_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = LearnWorld(tmp_path / "w")
    loop = world.start()
    world.recorded.write(50)  # one file
    beats = Beats(monkeypatch, world.clock)
    beats.slow(feed, "parse_line", 1.0)
    loop.tick()
    assert loop.learner.memory.seen == 50
    assert world.clock.mono_s() >= 2 * STALE_S
    assert beats.longest_silence_s(LOCK, 0.0) < STALE_S / 3


def test_while_what_was_read_before_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = LearnWorld(tmp_path / "w")
    world.start()
    world.run(60)
    world.die()
    loop = world.start()
    begun_s = world.clock.mono_s()
    beats = Beats(monkeypatch, world.clock)
    lines = Tail.lines
    monkeypatch.setattr(
        Tail, "lines", lambda tail: (line for line in lines(tail) if world.clock.advance(1.0))
    )
    loop.tick()
    assert loop.feed.state.seen == 60
    assert world.clock.mono_s() - begun_s >= 2 * STALE_S
    assert beats.longest_silence_s(LOCK, begun_s) < STALE_S / 3


def test_while_requests_are_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = LearnWorld(tmp_path / "w")
    loop = world.start()
    under_way = [to_record(world.recorded.decision()) for _ in range(50)]
    world.recorded.append("".join(json.dumps(record) + "\n" for record in under_way).encode())
    loop.tick()
    assert len(loop.feed.state.waiting) == 50
    world.clock.advance(1e6)
    begun_s = world.clock.mono_s()
    beats = Beats(monkeypatch, world.clock)
    beats.slow(loop.feed, "make", 1.0)
    loop.tick()
    assert not loop.feed.state.waiting
    assert beats.longest_silence_s(LOCK, begun_s) < STALE_S / 3


def test_while_a_round_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = LearnWorld(tmp_path / "w")
    loop = world.start()
    world.recorded.write(80)
    beats = Beats(monkeypatch, world.clock)
    beats.slow(Adam, "step", 4.0)
    loop.tick()
    assert loop.learner.memory.rounds == 1
    assert world.clock.mono_s() >= STALE_S
    assert beats.longest_silence_s(LOCK, 0.0) < STALE_S / 3


def test_not_while_a_step_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = LearnWorld(tmp_path / "w")
    loop = world.start()
    world.recorded.write(70)
    beats = Beats(monkeypatch, world.clock)
    begun_wall_s = world.clock.wall_s()
    beats.slow(Adam, "step", 1000.0)
    loop.tick()
    assert beats.longest_silence_s(LOCK, 0.0) >= 1000.0
    assert "hangs" in running(world.places.lock, begun_wall_s + 1e9)


def test_the_trials_lock_goes_with_the_learners(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    life = LearnedLife(tmp_path, ttft_ms=faster_by_the_model)
    life.start()
    assert life.loop is not None
    life.run(20)
    begun_s = life.clock.mono_s()
    beats = Beats(monkeypatch, life.clock)
    beats.slow(feed, "parse_line", 1.0)
    life.loop.tick()
    for _ in range(60):
        life.request()
    life.loop.tick()
    assert life.clock.mono_s() - begun_s >= 2 * STALE_S
    for lock in (life.models.lock, life.places.lock):
        assert beats.longest_silence_s(lock.name, begun_s) < STALE_S / 3


def left_by_another_machine(folder: Path) -> Path:
    """A trial's lock whose holder gives no sign of life."""
    path = folder / "weights.lock"
    path.write_bytes(msgspec.json.encode(Holder("elsewhere", "another boot", 4, "token", 7, 1.0)))
    return path


def test_while_the_trials_lock_is_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = LearnWorld(tmp_path / "w")
    loop = world.start()
    path = left_by_another_machine(tmp_path)
    begun_s = world.clock.mono_s()
    beats = Beats(monkeypatch, world.clock)
    trial = TunerLock(path, tell=world.told.append, pause=world.clock.advance)
    loop.heart.take(trial)
    assert "the lock is broken" in world.told[-1]
    assert world.clock.mono_s() - begun_s >= STALE_S
    assert beats.longest_silence_s(LOCK, begun_s) < STALE_S / 3
    world.clock.advance(STALE_S / 3)
    loop.tick()
    holder = read_holder(path)
    assert holder is not None
    assert holder.beat == 1, "from then on both are beaten"


def test_who_lost_the_lock_while_it_watched_the_trials_takes_none(tmp_path: Path) -> None:
    world = LearnWorld(tmp_path / "w")
    loop = world.start()
    path = left_by_another_machine(tmp_path)
    text = world.places.lock.read_bytes()
    world.places.lock.write_bytes(text.replace(b'"token":"', b'"token":"f', 1)[: len(text)])
    trial = TunerLock(path, tell=world.told.append, pause=world.clock.advance)
    with pytest.raises(LockLostError):
        loop.heart.take(trial)
    holder = read_holder(path)
    assert holder is not None
    assert holder.host == "elsewhere"


def test_who_lost_the_lock_while_it_read_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = LearnWorld(tmp_path / "w")
    loop = world.start()
    world.recorded.write(80)
    Beats(monkeypatch, world.clock).slow(feed, "parse_line", 1.0)
    text = world.places.lock.read_bytes()
    world.places.lock.write_bytes(text.replace(b'"token":"', b'"token":"f', 1)[: len(text)])
    before = list(world.told)
    with pytest.raises(LockLostError):
        loop.tick()
    assert loop.learner.memory.seen < 10, "within seconds"
    assert world.told == before, "the file is no bad one"
    assert not any(path.exists() for path in world.places.states)
