from __future__ import annotations

import asyncio
import logging
import os
from typing import TYPE_CHECKING

import pytest

from epp.errors import ConfigError
from epp.feeds.files import AppliedFile, WatchedFile, read_file, replace_file
from epp.metrics.metrics import Metrics
from epp.metrics.table import TABLE
from epp.threads import Tasks
from tests.kit.logs import own_lines
from tests.kit.shown import shown

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
    (said,) = own_lines(caplog)[-1:]
    assert "not a regular file" in said
    assert said.count(str(path)) == 1
    assert seen == [b"good"]
    become(lambda: path.write_text("good"), 1)
    become(path.mkdir, 2)
    become(lambda: path.write_text("better"), 2)
    assert seen == [b"good", b"good", b"better"]


def applied(folder: Path) -> tuple[AppliedFile[str], list[str], Callable[[], float | None]]:
    """Watch a file whose good contents are numbers."""
    seen: list[str] = []
    metrics = Metrics(TABLE)

    def parse(content: bytes | None) -> str:
        if content is not None and not content.isdigit():
            raise ConfigError("number", "", "is no number")
        return "nothing" if content is None else content.decode()

    file = AppliedFile(
        folder / "number",
        "number",
        metrics,
        parse=parse,
        apply=seen.append,
        kept="",
        last_good=folder / "kept",
    )
    return file, seen, lambda: shown(metrics, "epp_file_ok", file="number")


def test_a_start_that_finds_a_file_torn_goes_on_with_the_last_good_content(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for content in (b"3", b"4", b"5 torn"):
        (tmp_path / "number").write_bytes(content)
        file, seen, ok = applied(tmp_path)
        file.check()
        file.check()
    assert (seen, ok()) == (["4"], 0.0)
    assert f"the last good content, in {tmp_path / 'kept'}, is in force" in caplog.text
    (tmp_path / "number").write_bytes(b"6")
    file.check()
    (tmp_path / "number").write_bytes(b"7 torn")
    file.check()
    assert seen == ["4", "6"], "while it runs what is in force stays"
    (tmp_path / "number").unlink()
    (tmp_path / "number").mkdir()
    file, seen, ok = applied(tmp_path)
    file.check()
    assert (seen, ok()) == (["6"], 0.0), "nor is one that cannot be read a fall to defaults"


def test_a_file_that_is_deleted_is_warned_of_and_keeps_its_series(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file, seen, ok = applied(tmp_path)
    file.check()
    assert (seen, ok(), own_lines(caplog)) == (["nothing"], None, []), "it was never there"
    (tmp_path / "number").write_bytes(b"3")
    file.check()
    file.check()
    (tmp_path / "number").unlink()
    restarted, after, still = applied(tmp_path)
    for watched_file, found, state in ((file, seen, ok), (restarted, after, still)):
        watched_file.check()
        assert (found[-1], state()) == ("nothing", 0.0)
        assert f"{tmp_path / 'number'} is gone" in own_lines(caplog)[-1]
    file.check()
    assert not (tmp_path / "kept").exists(), "a deletion is no fault, to be undone by the next start"


def test_a_file_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("epp.feeds.files.MAX_FILE_BYTES", 10)
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
