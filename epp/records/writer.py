"""Appending to files of records: rotation, the bound on the folder, and what a full disk costs.

Owns one open file at a time, new with each run and each rotation, locked while it is open so that another
process that tidies the same folder leaves it alone. Whatever fails, the file ends with a whole line or with
half of one that no line follows.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import time
from typing import TYPE_CHECKING, Any

from epp.records.files import file_name, record_files, zstandard

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_MODE = 0o640
_ZSTD_LEVEL = 1  # half the time of the default for a tenth more bytes


class RecordWriter:
    """Chunks of lines into one folder.

    Args:
        folder: created when missing.
        header: first line of every file.
        max_bytes: size of all files of the folder together; the oldest that nobody writes to go first.
        file_bytes: size at which a new file is begun, at most a quarter of ``max_bytes``.
        compress: whether to write zstd.

    Raises:
        EppError: zstd is wanted and not installed.
    """

    def __init__(
        self, folder: Path, *, header: bytes, max_bytes: int, file_bytes: int, compress: bool
    ) -> None:
        self._folder, self._header = folder, header
        self._max_bytes, self._file_bytes = max_bytes, min(file_bytes, max(max_bytes // 4, 1))
        self._zstd: Any = zstandard(folder) if compress else None
        self._compressor: Any = None
        self._fd = -1
        self._bytes = 0
        self.path: Path | None = None

    def check(self) -> None:
        """Make the folder and see whether a file can be made there; leaves none.

        Raises:
            OSError: it cannot.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=self._folder):
            pass

    def append(self, lines: bytes) -> None:
        """Write whole lines.

        Raises:
            OSError: they are not on disk; what was written of them has been cut off where that was possible,
                and the next call begins a new file.
        """
        if self._fd >= 0 and (self._bytes + len(lines) > self._file_bytes or not os.fstat(self._fd).st_nlink):
            self.close()
        fresh = self._fd < 0
        if fresh:
            self._open(len(lines))
        try:
            self._write(self._header + lines if fresh else lines)
        except BaseException:
            self._abandon(fresh=fresh)
            raise

    def close(self) -> None:
        """End the file; the next append begins another."""
        if self._fd < 0:
            return
        with contextlib.suppress(OSError):  # all but the end mark is there, and readers do without it
            if self._compressor is not None:
                os.write(self._fd, self._compressor.flush())
        self._release()

    def _open(self, size: int) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        there = record_files(self._folder)
        self._make_room(there, max(size, self._file_bytes))
        newest = there[-1].name if there else ""
        path = self._folder / file_name(time.time(), compressed=self._zstd is not None, after=newest)
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, _MODE)
        self.path, self._bytes = path, 0
        with contextlib.suppress(OSError):  # some network file systems know no locks
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if self._zstd is not None:
            self._compressor = self._zstd.ZstdCompressor(level=_ZSTD_LEVEL).compressobj()

    def _write(self, lines: bytes) -> None:
        data = lines
        if self._compressor is not None:
            # A finished block per chunk: all of it can be read although the file goes on.
            data = self._compressor.compress(lines)
            data += self._compressor.flush(self._zstd.COMPRESSOBJ_FLUSH_BLOCK)
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]
        self._bytes += len(data)

    def _abandon(self, *, fresh: bool) -> None:
        """After a failed write: the file up to the last good chunk stays, an empty one does not."""
        with contextlib.suppress(OSError):
            if fresh and self.path is not None:
                self.path.unlink()
            else:
                os.ftruncate(self._fd, self._bytes)
        self._release()

    def _release(self) -> None:
        fd, self._fd, self._compressor = self._fd, -1, None
        with contextlib.suppress(OSError):
            os.close(fd)

    def _make_room(self, there: Sequence[Path], wanted_bytes: int) -> None:
        """Delete the oldest files of the folder's until so many more bytes fit under the bound."""
        sizes = []
        for path in there:
            with contextlib.suppress(OSError):
                sizes.append((path, path.stat().st_size))
        over = sum(size for _, size in sizes) + wanted_bytes - self._max_bytes
        for path, size in sizes:
            if over <= 0:
                return
            with contextlib.suppress(OSError):
                if not _in_use(path):
                    path.unlink()
                    over -= size


def _in_use(path: Path) -> bool:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(fd)
    return False
