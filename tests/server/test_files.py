from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from epp.server.files import WatchedFile, read_file, replace_file
from epp.server.tasks import Tasks

if TYPE_CHECKING:
    from pathlib import Path


def watched(path: Path) -> tuple[WatchedFile, list[bytes | None]]:
    seen: list[bytes | None] = []
    return WatchedFile(path, seen.append), seen


def test_content_is_handed_over_once_per_change(tmp_path: Path) -> None:
    path = tmp_path / "weights.yaml"
    file, seen = watched(path)
    file.check(first=True)
    assert seen == [None], "a file that is not there says so"
    replace_file(path, b"one")
    assert file.check()
    assert not file.check()
    replace_file(path, b"one")
    assert not file.check(), "the same content is no change"
    replace_file(path, b"two")
    file.check()
    path.unlink()
    file.check()
    assert seen == [None, b"one", b"two", None]


def test_the_symlink_swap_of_kubernetes_is_seen(tmp_path: Path) -> None:
    for version in ("1", "2"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "overrides.yaml").write_text(version)
    (tmp_path / "..data").symlink_to("1")
    (tmp_path / "overrides.yaml").symlink_to("..data/overrides.yaml")
    file, seen = watched(tmp_path / "overrides.yaml")
    file.check(first=True)
    (tmp_path / "..next").symlink_to("2")
    (tmp_path / "..next").replace(tmp_path / "..data")
    file.check()
    assert seen == [b"1", b"2"]


def test_an_unreadable_file_keeps_what_it_said_and_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "pool.yaml"
    path.write_text("good")
    file, seen = watched(path)
    file.check(first=True)
    path.unlink()
    path.mkdir()  # a directory exists and cannot be read, for root as well
    file.check()
    file.check()
    assert seen == [b"good"]
    assert caplog.text.count("cannot read") == 1
    path.rmdir()
    path.write_text("better")
    file.check()
    assert seen == [b"good", b"better"]


def test_a_file_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("epp.server.files.MAX_FILE_BYTES", 10)
    (tmp_path / "big").write_bytes(b"x" * 11)
    with pytest.raises(OSError, match="larger than"):
        read_file(tmp_path / "big")


async def test_a_task_that_dies_is_known_by_name() -> None:
    tasks = Tasks()

    async def die() -> None:
        raise RuntimeError("broken")

    tasks.start("watch files", die())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert "broken" in tasks.failed["watch files"]
    assert tasks.names() == []


async def test_a_cancelled_task_frees_its_name_at_once() -> None:
    tasks = Tasks()
    started = asyncio.Event()

    async def forever() -> None:
        started.set()
        await asyncio.Event().wait()

    tasks.start("poll a:1", forever())
    await started.wait()
    tasks.cancel("poll a:1")
    tasks.start("poll a:1", forever())
    with pytest.raises(ValueError, match="already running"):
        tasks.start("poll a:1", forever())
    await tasks.stop_all()
    assert tasks.names() == []
    assert tasks.failed == {}
