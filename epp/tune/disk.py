"""The shared folder as the tuner uses it: whole contents in, whole contents out, lines appended.

Owns how a file is replaced. A seam: tests bring a disk that is full, or that stops after any write.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import TYPE_CHECKING, Protocol

from epp.server.files import read_file, replace_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Disk(Protocol):
    """What is asked of a file system; every method may raise OSError."""

    def read(self, path: Path) -> bytes | None:
        """Content of a file that people may write, None when it does not exist; one of 16 MiB at most."""
        ...

    def read_whole(self, path: Path) -> bytes | None:
        """The same, of whatever size: what a process has written itself it must be able to read."""
        ...

    def replace(self, path: Path, content: bytes) -> None:
        """Put content where readers see the old or the new one, never a mixture."""
        ...

    def append(self, path: Path, line: bytes) -> None:
        """Put a line, with its end, after what is there; half a line that was left there is ended first."""
        ...


class RealDisk:
    """The file system."""

    def read(self, path: Path) -> bytes | None:
        """Content of a file, None when it does not exist."""
        return read_file(path)

    def read_whole(self, path: Path) -> bytes | None:
        """The same, of whatever size."""
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None

    def replace(self, path: Path, content: bytes) -> None:
        """Write beside it, sync, rename; the folder is made when missing."""
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            replace_file(path, content)
        except OSError:
            path.with_name(f".{path.name}.{os.getpid()}.tmp").unlink(missing_ok=True)
            raise

    def append(self, path: Path, line: bytes) -> None:
        """Appended and synced; cut off again where only a part of it fits."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab+", buffering=0) as file:
            end = file.seek(0, os.SEEK_END)
            if end:
                file.seek(end - 1)
                if file.read(1) != b"\n":
                    line = b"\n" + line
            try:
                view = memoryview(line)
                while view:
                    view = view[file.write(view) or 0 :]
                os.fsync(file.fileno())
            except OSError:
                file.truncate(end)
                raise


@contextlib.contextmanager
def in_turn(lock: Path) -> Iterator[None]:
    """Others who change the same file wait meanwhile, where the file system has locks: they read it first.

    Args:
        lock: a file of its own, made when missing; where it cannot be written, nobody waits.
    """
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):
            lock.parent.mkdir(parents=True, exist_ok=True)
            fcntl.flock(held.enter_context(lock.open("ab")), fcntl.LOCK_EX)
        yield
