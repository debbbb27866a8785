"""The recorder's thread fails: it starts again, and what that costs is counted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epp.config.schema import Records
from epp.records import recorder
from epp.records.files import read_records
from epp.records.recorder import FileRecorder
from epp.records.writer import RecordWriter
from tests.kit.records import HASHER, decided
from tests.kit.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


class Disk:
    """Fails in a way that ends threads, for as long as it is ``broken``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.broken = True
        append = RecordWriter.append

        def failing(writer: RecordWriter, lines: bytes) -> None:
            if self.broken:
                raise SystemExit
            append(writer, lines)

        monkeypatch.setattr(RecordWriter, "append", failing)


async def test_a_thread_that_fails_starts_again_and_loses_what_it_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "RESTART_S", 0.01)
    disk, dropped, restarts = Disk(monkeypatch), list[int](), list[int]()
    log = FileRecorder(
        tmp_path,
        settings=Records(),
        hasher=HASHER,
        on_drop=dropped.append,
        on_restart=lambda: restarts.append(1),
    )
    first, second, *rest = decided(5)
    for request in (first, second):
        seen = len(restarts)
        log.decision(*request)
        await until(lambda: len(restarts) > seen)  # noqa: B023  # awaited at once
    assert sum(dropped) == 2
    disk.broken = False
    for request in rest:
        log.decision(*request)
    log.close()
    kept = [record["id"] for record in read_records(tmp_path) if record["kind"] == "decision"]
    assert kept == [decision.id for decision, _ in rest]
    assert (sum(dropped), log.waiting_bytes) == (2, 0)


def test_a_thread_that_fails_at_the_end_does_not_start_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Disk(monkeypatch)
    dropped: list[int] = []
    log = FileRecorder(tmp_path, settings=Records(), hasher=HASHER, on_drop=dropped.append)
    for request in decided(100):
        log.decision(*request)
    log.close()
    assert not log._thread.is_alive()
    assert sum(dropped) == 100
