"""One tuner a file: locks of one machine, of network folders, stale ones, lost ones."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import msgspec
import pytest

from epp.tune.asked import read_asked
from epp.tune.disk import RealDisk
from epp.tune.lock import (
    STALE_S,
    Holder,
    LockFileError,
    LockHeldError,
    LockLostError,
    TunerLock,
    read_holder,
)
from epp.tune.places import Places

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_HOLD = """
import sys, time
from pathlib import Path
from epp.tune.lock import TunerLock
lock = TunerLock(Path(sys.argv[1]), tell=print)
lock.acquire()
print("held", flush=True)
sys.stdin.read()
"""


def holding(path: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def lock_at(
    path: Path, told: list[str], *, boot: str | None = None, pause: Callable[[float], None] | None = None
) -> TunerLock:
    return TunerLock(path, tell=told.append, boot=boot, pause=pause or (lambda _: None))


def test_the_second_refuses_and_names_the_first(tmp_path: Path) -> None:
    path = tmp_path / "weights.lock"
    process = holding(path)
    try:
        with pytest.raises(LockHeldError, match=f"pid {process.pid}"):
            lock_at(path, []).acquire()
    finally:
        end(process)


def test_the_lock_of_a_killed_process_is_told_and_taken(tmp_path: Path) -> None:
    path = tmp_path / "weights.lock"
    process = holding(path)
    end(process)
    told: list[str] = []
    lock = lock_at(path, told)
    lock.acquire()
    assert any(f"pid {process.pid}" in sentence and "gone" in sentence for sentence in told)
    holder = read_holder(path)
    assert holder is not None
    assert holder.pid == os.getpid()
    lock.release()
    assert read_holder(path) is None


def test_a_lock_that_was_given_back_is_taken_without_a_word(tmp_path: Path) -> None:
    told: list[str] = []
    for _ in range(2):
        lock = lock_at(tmp_path / "weights.lock", told)
        lock.acquire()
        lock.release()
    assert not told


def foreign(path: Path, beat: int = 7) -> None:
    """What a tuner on another machine leaves where `flock` does not travel."""
    holder = Holder("elsewhere", "another boot", 4, "token", beat, 1.0)
    path.write_bytes(msgspec.json.encode(holder).ljust(511) + b"\n")


def test_a_foreign_lock_that_moves_is_respected_whatever_its_clock_says(tmp_path: Path) -> None:
    path = tmp_path / "weights.lock"
    foreign(path)
    waited: list[float] = []

    def pause(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 5:
            foreign(path, beat=8)

    with pytest.raises(LockHeldError, match="elsewhere"):
        lock_at(path, [], pause=pause).acquire()
    assert sum(waited) < STALE_S


def test_a_foreign_lock_that_does_not_move_is_told_and_broken(tmp_path: Path) -> None:
    path = tmp_path / "weights.lock"
    foreign(path)
    told: list[str] = []
    waited: list[float] = []
    lock = lock_at(path, told, pause=waited.append)
    lock.acquire()
    assert sum(waited) >= STALE_S
    assert "broken" in told[-1]
    lock.release()


def test_who_lost_the_lock_notices_before_writing(tmp_path: Path) -> None:
    path = tmp_path / "weights.lock"
    lock = lock_at(path, [])
    lock.acquire()
    lock.beat()
    foreign(path)
    with pytest.raises(LockLostError, match="elsewhere"):
        lock.check()
    with pytest.raises(LockLostError):
        lock.beat()
    lock.release()
    holder = read_holder(path)
    assert holder is not None
    assert holder.host == "elsewhere", "what is another's is left alone"


def test_a_folder_without_room_is_told_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "weights.lock"
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(LockFileError, match=r"weights\.lock: No space left on device; a tuner must"):
            lock_at(path, []).acquire()
    lock = lock_at(path, [])
    lock.acquire()  # nothing was left locked
    lock.release()


def test_heartbeats_count(tmp_path: Path) -> None:
    path = tmp_path / "weights.lock"
    lock = lock_at(path, [])
    lock.acquire()
    for number in range(1, 4):
        lock.beat()
        holder = read_holder(path)
        assert holder is not None
        assert holder.beat == number
    lock.release()


@pytest.mark.parametrize("length", [0, 1, 50, 300])
def test_half_a_lock_file_is_nobodys(tmp_path: Path, length: int) -> None:
    path = tmp_path / "weights.lock"
    foreign(path)
    path.write_bytes(path.read_bytes()[: min(length, 60)])
    lock = lock_at(path, [])
    lock.acquire()
    lock.check()
    lock.release()


def test_files_that_are_no_text_name_nobody_and_ask_for_nothing(tmp_path: Path) -> None:
    places = Places(tmp_path / "weights.yaml")
    places.lock.write_bytes(b'{"host": "\xff", "boot": "", "pid": 1, "token": ""}')
    places.asked.write_bytes(b'[{"id": "\xff", "what": "freeze"}]')
    assert read_holder(places.lock) is None
    assert read_asked(places, RealDisk()) == []
