"""The flight recorder: decisions and outcomes as JSON Lines, written off the request path.

Owns one folder of files and the thread that writes them. A full queue or a full disk costs records, which are
counted, never requests. Records hold numbers, endpoint names and ids; no prompt, no header values.
"""

from __future__ import annotations

import logging
import queue
import threading
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from epp.decide.records import outcome_record, to_record
from epp.errors import EppError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from epp.decide.records import Decision, Outcome

log = logging.getLogger(__name__)

FILE_NAME = "decisions.jsonl"
QUEUE_LENGTH = 10_000


class Recorder(Protocol):
    """Takes decisions and outcomes; must not block."""

    def decision(self, decision: Decision) -> None:
        """A decision was taken."""

    def outcome(self, outcome: Outcome, at_wall_s: float) -> None:
        """A request ended."""


class NoRecorder:
    """Records nothing."""

    def decision(self, decision: Decision) -> None:
        """Ignored."""

    def outcome(self, outcome: Outcome, at_wall_s: float) -> None:
        """Ignored."""


class FileRecorder:
    """Appends records to a file from a thread of its own.

    Args:
        folder: created when missing.
        max_bytes: size at which the file is set aside (one older file is kept), so twice this is the bound.
        on_drop: called once per record that was lost.
    """

    def __init__(self, folder: Path, *, max_bytes: int, on_drop: Callable[[], None]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / FILE_NAME
        self._max_bytes = max_bytes // 2
        self._on_drop = on_drop
        self._encoder = msgspec.json.Encoder()
        self._queue: queue.Queue[Callable[[], dict[str, Any]] | None] = queue.Queue(QUEUE_LENGTH)
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)
        self._thread.start()

    def decision(self, decision: Decision) -> None:
        """Queue a decision; it is encoded in the writer's thread."""
        self._put(lambda: to_record(decision))

    def outcome(self, outcome: Outcome, at_wall_s: float) -> None:
        """Queue an outcome."""
        self._put(lambda: outcome_record(outcome, at_wall_s))

    def close(self) -> None:
        """Write what is queued and stop."""
        self._queue.put(None)
        self._thread.join()

    def _put(self, make: Callable[[], dict[str, Any]]) -> None:
        try:
            self._queue.put_nowait(make)
        except queue.Full:
            self._on_drop()

    def _run(self) -> None:
        while True:
            batch = [self._queue.get()]
            while len(batch) < 256 and not self._queue.empty():
                batch.append(self._queue.get())
            wanted = [make for make in batch if make is not None]
            try:
                self._write(b"".join(self._encoder.encode(make()) + b"\n" for make in wanted))
            except OSError as error:
                log.error("records lost: %s", error)  # noqa: TRY400  # a full disk needs no traceback
                for _ in wanted:
                    self._on_drop()
            if len(wanted) < len(batch):
                return

    def _write(self, lines: bytes) -> None:
        if self._path.exists() and self._path.stat().st_size + len(lines) > self._max_bytes:
            self._path.replace(self._path.with_suffix(".1.jsonl"))
        with self._path.open("ab") as file:
            file.write(lines)


def read_records(folder: Path) -> Iterator[dict[str, Any]]:
    """All records of a folder, oldest first; a torn last line (the writer was killed) is skipped.

    Raises:
        EppError: the folder does not exist.
    """
    if not folder.is_dir():
        raise EppError(f"{folder} is not a folder of records")
    for path in (folder / FILE_NAME).with_suffix(".1.jsonl"), folder / FILE_NAME:
        if not path.exists():
            continue
        with path.open("rb") as file:
            for line in file:
                try:
                    record = msgspec.json.decode(line)
                except msgspec.DecodeError:
                    continue
                if isinstance(record, dict):
                    yield record
