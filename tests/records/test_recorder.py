"""The recorder: what is on file, within which bounds, and what trouble costs."""

from __future__ import annotations

import errno
import os
import sys
import threading
import time
import zlib
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from epp.errors import EppError
from epp.records import recorder
from epp.records.files import Place, read_records, record_files
from epp.records.schema import join
from epp.records.writer import RecordWriter
from tests.kit.records import HASHER, decided, outcome_of, record_all, recorder_to
from tests.kit.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

HEADER = b'{"schema":2,"kind":"file"}\n'


def writer(folder: Path, *, max_bytes: int = 100_000, file_bytes: int = 1_000, compress: bool = False) -> RecordWriter:  # fmt: skip
    return RecordWriter(folder, header=HEADER, max_bytes=max_bytes, file_bytes=file_bytes, compress=compress)


def line(number: int, length: int = 90) -> bytes:
    head = b'{"schema":2,"kind":"decision","n":%d,"x":"' % number
    return head + b"x" * (length - len(head) - 3) + b'"}\n'


def numbers(folder: Path) -> list[int]:
    return [record["n"] for record in read_records(folder) if "n" in record]


@pytest.mark.parametrize("compress", ["none", "zstd"])
def test_each_request_is_a_decision_and_an_outcome_with_one_id(tmp_path: Path, compress: str) -> None:
    requests = decided(40)
    record_all(tmp_path / "deep" / "er", requests, compress=compress)
    found = {request.decision["id"]: request for request in join(read_records(tmp_path / "deep" / "er"))}
    assert list(found) == [decision.id for decision, _ in requests]
    for decision, ask in requests:
        request = found[decision.id]
        assert request.outcome is not None
        assert request.outcome["ttft_ms"] == 12.5
        assert request.decision["endpoints"][request.decision["chosen"]] == decision.endpoint
        assert request.decision["session"] == ask.session
        assert request.decision["blocks"] == HASHER.coarse_ids(ask)
        assert len(request.decision["blocks"]) == len(ask.blocks) // HASHER.coarse_blocks
        assert 256 <= request.decision["block_tokens"] <= 512


def test_no_raw_block_hash_leaves_the_process(tmp_path: Path) -> None:
    record_all(tmp_path, decided(20))
    text = b"".join(path.read_bytes() for path in record_files(tmp_path))
    for _, ask in decided(20):
        for block in ask.blocks:
            assert f"{block:016x}".encode() not in text
            assert b'"%d"' % block not in text


def test_what_is_sampled_is_sampled_with_its_outcome(tmp_path: Path) -> None:
    requests = decided(300)
    record_all(tmp_path, requests, sample=0.25)
    found = list(join(read_records(tmp_path)))
    assert all(request.outcome is not None for request in found)
    assert 40 < len(found) < 110


@pytest.mark.parametrize("compress", [False, True])
def test_files_rotate_and_the_oldest_go_when_the_folder_is_full(tmp_path: Path, compress: bool) -> None:
    log = writer(tmp_path, max_bytes=5_000, file_bytes=1_000, compress=compress)
    for number in range(400):
        noise = os.urandom(60).hex().encode()
        log.append(b'{"schema":2,"kind":"decision","n":%d,"x":"%s"}\n' % (number, noise))
        assert sum(path.stat().st_size for path in record_files(tmp_path)) <= 5_000
        assert all(path.stat().st_size <= 1_000 for path in record_files(tmp_path))
    log.close()
    found = numbers(tmp_path)
    assert found == list(range(found[0], 400)), "what is left is the end, without a gap"
    assert len(found) > 15
    assert all(next(iter(read_records(path)))["kind"] == "file" for path in record_files(tmp_path))


def test_the_oldest_files_go_first_though_the_clock_was_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 1_900_000_000.0
    monkeypatch.setattr(time, "time", lambda: now_s)
    out = writer(tmp_path, max_bytes=5_000)
    for number in range(200):
        now_s += -86_400.0 if number == 100 else 1.0
        out.append(line(number))
    found = numbers(tmp_path)
    assert found == list(range(found[0], 200))
    assert len(found) > 30


def test_a_file_that_another_process_writes_is_not_deleted(tmp_path: Path) -> None:
    quiet = writer(tmp_path, max_bytes=3_000, file_bytes=600)
    quiet.append(line(7777))
    busy = writer(tmp_path, max_bytes=3_000, file_bytes=600)
    for number in range(200):
        busy.append(line(number))
    quiet.append(line(8888))
    assert {7777, 8888} <= set(numbers(tmp_path))
    assert quiet.path != busy.path
    quiet.close()
    for number in range(200):
        busy.append(line(number))
    busy.close()
    assert not {7777, 8888} & set(numbers(tmp_path)), "closed, it is old and goes"


@pytest.mark.parametrize("compress", ["none", "zstd"])
@pytest.mark.parametrize("cut", [1, 2, 40, 300])
def test_a_torn_end_costs_the_torn_line_only(tmp_path: Path, compress: str, cut: int) -> None:
    log = writer(tmp_path, compress=compress == "zstd", file_bytes=20_000)
    sizes = []
    for number in range(50):
        log.append(line(number))
        assert log.path is not None
        sizes.append(log.path.stat().st_size)
    assert log.path is not None
    os.truncate(log.path, sizes[-1] - cut)  # as when the process was killed: the file was not closed
    whole = sum(size <= sizes[-1] - cut for size in sizes)
    assert numbers(tmp_path)[:whole] == list(range(whole))
    assert len(numbers(tmp_path)) < 50
    another = writer(tmp_path)
    another.append(line(99))
    another.close()
    damaged: list[Place] = []
    assert [*read_records(tmp_path, damaged)][-1]["n"] == 99, "a later process is read on"
    assert not damaged, "a torn end is usual"
    log.close()


def test_damaged_lines_are_skipped_and_a_foreign_schema_is_told(tmp_path: Path) -> None:
    log = writer(tmp_path)
    log.append(line(1) + b"\xff\xfe\n{]\n[1]\n3\n{}\n" + line(2))
    log.close()
    damaged: list[Place] = []
    assert [record["n"] for record in read_records(tmp_path, damaged) if "n" in record] == [1, 2]
    assert log.path is not None
    assert damaged == [Place(log.path, number) for number in range(3, 8)]
    log.path.write_bytes(b'{"schema":999,"kind":"file"}\n')
    with pytest.raises(EppError, match="schema 999"):
        list(read_records(tmp_path))
    with pytest.raises(EppError, match=r"not a folder of records: No such file .*records\.folder"):
        list(read_records(tmp_path / "nowhere"))


def test_a_file_that_can_be_decompressed_no_further_is_damaged(tmp_path: Path) -> None:
    log = writer(tmp_path, compress=True)
    for number in range(5):
        log.append(line(number))
    log.close()
    assert log.path is not None
    content = bytearray(log.path.read_bytes())
    content[len(content) // 2 :] = b"\xff" * (len(content) - len(content) // 2)
    log.path.write_bytes(content)
    damaged: list[Place] = []
    assert len([*read_records(tmp_path, damaged)]) < 6
    assert damaged


class FullDisk:
    """A disk that takes ``room`` more bytes, then nothing; partial writes included."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.room, self._write = 1 << 30, os.write
        monkeypatch.setattr(os, "write", self.write)

    def write(self, fd: int, data: Any) -> int:
        if self.room <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken = self._write(fd, bytes(data)[: self.room])
        self.room -= taken
        return taken


@pytest.mark.parametrize("compress", [False, True])
def test_a_full_disk_leaves_whole_lines_and_writing_goes_on_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compress: bool
) -> None:
    disk = FullDisk(monkeypatch)
    log = writer(tmp_path, compress=compress)
    log.append(line(0))
    disk.room = 5
    for number in range(1, 5):
        with pytest.raises(OSError, match="No space"):
            log.append(line(number))
    assert numbers(tmp_path) == [0]
    assert len(record_files(tmp_path)) == 1, "no empty files are left behind"
    disk.room = 1 << 30
    log.append(line(5))
    log.close()
    assert numbers(tmp_path) == [0, 5]


def test_lost_records_are_counted_and_requests_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "RETRY_S", 0.0)
    disk = FullDisk(monkeypatch)
    requests = decided(60)
    with recorder_to(tmp_path) as (log, dropped):
        for decision, _ in requests[:20]:
            log.record(decision)
        drain(log)
        disk.room = 0
        for decision, _ in requests[20:50]:
            log.record(decision)
        drain(log)
        disk.room = 1 << 30
        for decision, _ in requests[50:]:
            log.record(decision)
    assert sum(dropped) == 30
    ids = [record["id"] for record in read_records(tmp_path) if record["kind"] == "decision"]
    assert ids == [decision.id for decision, _ in requests[:20] + requests[50:]]


def drain(log: recorder.FileRecorder) -> None:
    """Wait until the writer's thread has nothing left; it is the only one that knows."""
    pause = threading.Event()
    for _ in range(2000):
        if not log.waiting_bytes:
            return
        pause.wait(0.005)
    raise AssertionError("the recorder does not drain")


@pytest.mark.parametrize("name", ["a file", "/proc/nope"])
def test_a_folder_that_cannot_be_written_is_told_at_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    (tmp_path / "a file").write_text("in the way")
    with recorder_to(tmp_path / name) as (_, lost):
        pass
    assert f"no records can be written to {tmp_path / name}" in caplog.text
    assert not lost, "nothing is lost so far"


def test_a_hanging_disk_fills_the_queue_and_then_drops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "QUEUE_BYTES", 200_000)
    gate = threading.Event()
    write = os.write

    def stuck(fd: int, data: Any) -> int:
        gate.wait(240)
        return write(fd, data)

    monkeypatch.setattr(os, "write", stuck)
    requests = decided(10)
    with recorder_to(tmp_path) as (log, dropped):
        for _ in range(30):
            for decision, _ in requests:
                log.record(decision)  # returns at once, or this test would hang
        lost = sum(dropped)
        assert lost > 200
        gate.set()
    assert sum(1 for record in read_records(tmp_path) if record["kind"] == "decision") == 300 - lost


def test_a_record_that_cannot_be_encoded_costs_itself_only(tmp_path: Path) -> None:
    (good, _), (bad, _) = decided(2)
    bad = msgspec.structs.replace(bad, weights={"w": object()})
    with recorder_to(tmp_path) as (log, dropped):
        log.record(bad)
        log.record(good)
        log.record(outcome_of(good, ttft_ms=float("nan"), status=None), 1.0)
    assert dropped == [1]
    (request,) = join(read_records(tmp_path))
    assert request.decision["id"] == good.id
    assert request.outcome is not None
    assert request.outcome["ttft_ms"] is None


async def test_a_thread_that_fails_starts_again_and_loses_what_it_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "RESTART_S", 0.01)
    restarts = list[int]()
    first, second, *rest = decided(5)
    with recorder_to(tmp_path, on_restart=lambda: restarts.append(1)) as (log, dropped):
        with monkeypatch.context() as disk:
            disk.setattr(RecordWriter, "append", lambda *_: sys.exit())  # what ends threads
            for request in (first, second):
                seen = len(restarts)
                log.record(request[0])
                await until(lambda: len(restarts) > seen)  # noqa: B023  # awaited at once
            assert sum(dropped) == 2
        for request in rest:
            log.record(request[0])
    kept = [record["id"] for record in read_records(tmp_path) if record["kind"] == "decision"]
    assert kept == [decision.id for decision, _ in rest]
    assert (sum(dropped), log.waiting_bytes) == (2, 0)


def test_records_of_other_pickers_are_written_beside_its_own_and_not_handed_on(tmp_path: Path) -> None:
    handed: list[bytes] = []
    with recorder_to(tmp_path / "one") as (one, _), recorder_to(tmp_path / "two") as (two, dropped):
        one.on_lines = handed.append
        ((decision, _),) = decided(1)
        one.record(decision)
        one.record(outcome_of(decision), decision.at_wall_s)
        one.close()
        two.on_lines = handed.append
        two.record(zlib.compress(b"".join(handed)))
        two.record(b"damaged")
        two.close()
    assert sum(lines.count(b"\n") for lines in handed) == 2
    records = [list(read_records(tmp_path / name))[1:] for name in ("one", "two")]
    assert records[0] == records[1]
    assert dropped == [1]
