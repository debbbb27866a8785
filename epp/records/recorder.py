"""The flight recorder: decisions and outcomes as JSON Lines, written off the request path.

A request has two lines with one id: the decision, on file at once, so that it can be explained while the
request runs and survives a crash before the outcome; and the outcome. Owns the queue between the event loop
and the thread that encodes and writes. A full queue or a full disk costs records, which are counted, never
requests. Records hold numbers, endpoint names and keyed ids; no prompt, no header values.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import msgspec

from epp import __version__
from epp.errors import UnreadableError
from epp.keyed_uniform import keyed_uniform
from epp.records.verdicts import AnswerVerdict, verdict_record
from epp.records.writer import RecordWriter
from epp.schedule.decision import SCHEMA_VERSION, Decision, outcome_record, to_record
from epp.wire import unpack

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from epp.config.schema import Records
    from epp.prefix_cache.blocks import BlockHasher
    from epp.schedule.decision import Outcome

    #: Bytes are lines of another picker, compressed.
    _Subject = Decision | Outcome | AnswerVerdict | bytes

log = logging.getLogger(__name__)

#: How long a record may wait for company: a thread woken for each would cost more than the record.
FLUSH_S = 0.05
#: Records encoded in one go, by their estimated size: half a millisecond of the interpreter.
CHUNK_BYTES = 64 * 1024
#: Pause after each chunk: a thread that does not sleep takes the interpreter from the event loop too soon.
PAUSE_S = 0.0002
#: Records of another picker that came together: one with ten thousand endpoints has some megabytes.
LINES_BYTES = 16 * 1024 * 1024
#: Estimated size of what may wait for a disk that hangs.
QUEUE_BYTES = 64 * 1024 * 1024
#: Pause after a failed write: a full disk is not asked again for every record.
RETRY_S = 1.0
#: Pause after a fault of the writer's thread.
RESTART_S = 10.0
_CLOSE_S = 5.0
_RECORD_BYTES, _ENDPOINT_BYTES = 2048, 256


#: Size at which a new file is begun.
FILE_BYTES = 64 * 1024 * 1024


class FileRecorder:
    """Appends records to files of its own in a folder.

    Args:
        folder: created when missing.
        settings: bounds, compression and sampling.
        file_bytes: size at which a new file is begun; a quarter of ``settings.max_bytes`` where that is less.
        hasher: names blocks as they may be recorded.
        on_drop: called with a number of records that were lost, from any thread.
        on_restart: called when the writer's thread failed and starts again, from that thread.

    Attributes:
        on_lines: takes this picker's own records as lines, in the writer's thread; None where nobody does.

    Raises:
        EppError: compression is wanted and its module is not installed.
    """

    def __init__(
        self,
        folder: Path,
        *,
        settings: Records,
        hasher: BlockHasher,
        on_drop: Callable[[int], None],
        on_restart: Callable[[], None] = lambda: None,
        file_bytes: int = FILE_BYTES,
    ) -> None:
        self._hasher, self._on_drop, self._on_restart, self._folder = hasher, on_drop, on_restart, folder
        self._sample = settings.sample
        self._encoder = msgspec.json.Encoder()
        self.on_lines: Callable[[bytes], None] | None = None
        self._writer = RecordWriter(
            folder,
            header=self._header(),
            max_bytes=settings.max_bytes,
            file_bytes=file_bytes,
            compress=settings.compress == "zstd",
        )
        self._entries: deque[tuple[_Subject, float]] = deque()
        # Each is written by one thread alone; their difference is what waits.
        self._put_bytes = self._taken_bytes = 0
        self._wake, self._stop = threading.Event(), threading.Event()
        self._lost, self._retry_s = 0, 0.0
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)
        self._thread.start()

    def record(self, subject: _Subject, at_wall_s: float = 0.0) -> None:
        """Queue what is to be recorded, unless the queue is full; it is encoded in the writer's thread.

        Args:
            subject: a decision, or what came of one, unless sampling leaves it out; or records of another
                picker, compressed lines.
            at_wall_s: when it came.
        """
        if (
            self._sample < 1.0
            and not isinstance(subject, bytes)
            and keyed_uniform(0, subject.id, "records") >= self._sample
        ):
            return
        size = _size(subject)
        if self.waiting_bytes + size > QUEUE_BYTES:
            self._on_drop(1)
            return
        self._put_bytes += size
        self._entries.append((subject, at_wall_s))
        if not self._wake.is_set():
            self._wake.set()

    def close(self) -> None:
        """Write what is queued and stop; a disk that hangs is not waited for longer than five seconds."""
        self._stop.set()
        self._wake.set()
        self._thread.join(_CLOSE_S)

    @property
    def waiting_bytes(self) -> int:
        """Estimated size of what is not on disk yet."""
        return self._put_bytes - self._taken_bytes

    def _run(self) -> None:
        while True:
            try:
                self._write_until_closed()
            except BaseException:  # whatever it is: without this thread no record is written
                log.exception("the recorder failed; it starts again in %g s", RESTART_S)
            else:
                return
            if self._stop.is_set():
                self._lose(len(self._entries))
                return
            self._on_restart()
            self._stop.wait(RESTART_S)
            self._wake.set()  # for what is queued

    def _write_until_closed(self) -> None:
        try:
            self._writer.check()
        except OSError as error:  # said before the first request is lost; each further write is another try
            log.error("no records can be written to %s: %s", self._folder, error)  # noqa: TRY400
        while True:
            self._wake.wait()
            stopping = self._stop.wait(FLUSH_S)
            if not stopping:
                self._wake.clear()
                stopping = self._stop.is_set()  # in between: nobody would wake this thread again
            while self._entries:
                self._write_chunk()
                if not self._stop.is_set():
                    time.sleep(PAUSE_S)
            if stopping:
                self._writer.close()
                return

    def _write_chunk(self) -> None:
        own, others, size, taken = list[bytes](), list[bytes](), 0, 0
        try:
            while self._entries and size < CHUNK_BYTES:
                subject, at_wall_s = self._entries.popleft()
                taken += 1
                size += _size(subject)
                try:
                    if isinstance(subject, bytes):
                        others.append(_lines(subject))
                    else:
                        own.append(self._encoder.encode(self._record(subject, at_wall_s)) + b"\n")
                except Exception:
                    log.exception("a record cannot be encoded")
                    self._on_drop(1)
                    taken -= 1
            if own or others:
                self._append(b"".join(own + others), len(own) + len(others))
            if own and self.on_lines is not None:
                self.on_lines(b"".join(own))
        except BaseException:
            self._lose(taken)
            raise
        finally:
            self._taken_bytes += size

    def _append(self, lines: bytes, count: int) -> None:
        if self._lost and time.monotonic() < self._retry_s:
            self._lose(count)
            return
        try:
            self._writer.append(lines)
        except Exception as error:  # noqa: BLE001  # a failed write ends no thread
            if not self._lost:
                log.error("records are being lost: %r", error)  # noqa: TRY400  # a full disk needs no traceback
            self._retry_s = time.monotonic() + RETRY_S
            self._lose(count)
            return
        if self._lost:
            log.warning("records are written again; %d were lost", self._lost)
            self._lost = 0

    def _lose(self, count: int) -> None:
        self._lost += count
        self._on_drop(count)

    def _record(self, subject: Decision | Outcome | AnswerVerdict, at_wall_s: float) -> dict[str, Any]:
        if isinstance(subject, AnswerVerdict):
            return verdict_record(subject, at_wall_s)
        if not isinstance(subject, Decision):
            return outcome_record(subject, at_wall_s)
        request = subject.request
        return to_record(
            subject,
            blocks=self._hasher.coarse_ids(request),
            block_tokens=request.block_tokens * self._hasher.coarse_blocks,
            prompt_id=self._hasher.export_id(request.prompt_hash) if request.prompt_hash else "",
        )

    def _header(self) -> bytes:
        header = {
            "schema": SCHEMA_VERSION,
            "kind": "file",
            "version": __version__,
            "pid": os.getpid(),
            "key_id": self._hasher.key_id,
            "sample": self._sample,
        }
        return self._encoder.encode(header) + b"\n"


def _lines(packed: bytes) -> bytes:
    """Unpack records of another picker.

    Raises:
        UnreadableError: they are no lines, or too long.
    """
    lines = unpack(packed, LINES_BYTES)
    if not lines.endswith(b"\n"):
        raise UnreadableError("no lines")
    return lines


def _size(subject: _Subject) -> int:
    if isinstance(subject, bytes):
        return len(subject)
    return _RECORD_BYTES + (_ENDPOINT_BYTES * len(subject.snapshot) if isinstance(subject, Decision) else 0)
