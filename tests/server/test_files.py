from __future__ import annotations

import asyncio
import logging
import os
from typing import TYPE_CHECKING

import pytest

from epp.server.files import WatchedFile, read_file, replace_file
from epp.server.process import Tasks
from tests.kit.logs import own_lines

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def watched(path: Path) -> tuple[WatchedFile, list[bytes | None]]:
    seen: list[bytes | None] = []
    return WatchedFile(path, seen.append), seen


def test_content_is_handed_over_once_per_change(tmp_path: Path) -> None:
    path = tmp_path / "weights.yaml"
    file, seen = watched(path)
    file.check()
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
    file.check()
    (tmp_path / "..next").symlink_to("2")
    (tmp_path / "..next").replace(tmp_path / "..data")
    file.check()
    assert seen == [b"1", b"2"]


def test_each_fault_of_a_file_is_reported_once_and_its_last_content_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, faults = tmp_path / "pool.yaml", []
    seen: list[bytes | None] = []
    file = WatchedFile(path, seen.append, lambda: faults.append(1))

    def become(make: Callable[[], object], reports: int) -> None:
        if path.is_dir():
            path.rmdir()
        else:
            path.unlink(missing_ok=True)
        make()
        for _ in range(3):
            file.check()
        assert len(own_lines(caplog, logging.ERROR)) == len(faults) == reports

    become(lambda: path.write_text("good"), 0)
    become(path.mkdir, 1)
    become(lambda: os.mkfifo(path), 1)
    assert f"{path} is no regular file" in own_lines(caplog)[-1]
    assert seen == [b"good"]
    become(lambda: path.write_text("good"), 1)
    become(path.mkdir, 2)
    become(lambda: path.write_text("better"), 2)
    assert seen == [b"good", b"good", b"better"]


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
    assert tasks.failed == {"watch files"}
