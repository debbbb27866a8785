"""The shared folder: whole contents in, whole contents out, and turns for those who change the same file.

Owns how a file is replaced. A seam: tests bring a disk that is full, or that stops after any write.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import TYPE_CHECKING

from epp.server.files import read_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


class Files:
    """The file system; every method may raise OSError."""

    def read(self, path: Path) -> bytes | None:
        """Read a file that people may write, of 16 MiB at most; None when it does not exist."""
        return read_file(path)

    def read_own(self, path: Path) -> bytes | None:
        """Read a file of whatever size that a process has written itself; None when it does not exist."""
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None

    def replace(self, path: Path, content: bytes) -> None:
        """Put content where readers see the old or the new one, also after a crash; makes the folder."""
        path.parent.mkdir(parents=True, exist_ok=True)
        # One name for all writers, who hold a lock: what a killed one left is written over.
        temporary = path.with_name(f".{path.name}.tmp")
        try:
            with temporary.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise

    def remove(self, path: Path) -> None:
        """Take a file away; one that is not there is fine."""
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def exclusive(lock: Path) -> Iterator[None]:
    """Make others who change the same file wait meanwhile; where the lock cannot be written nobody waits.

    Args:
        lock: a file of its own, made when missing.
    """
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):
            lock.parent.mkdir(parents=True, exist_ok=True)
            fcntl.flock(held.enter_context(lock.open("ab")), fcntl.LOCK_EX)
        yield


class Writes:
    """Attempts writes: one that fails is reported once, and again when it succeeds; the caller tries again.

    Args:
        report: takes sentences for the log.
    """

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report
        self._failing: dict[str, str] = {}

    def attempt(self, what: str, write: Callable[[], None]) -> bool:
        """Write; whether it is written.

        Args:
            what: the file, for people.
            write: raises OSError where it cannot.
        """
        try:
            write()
        except OSError as error:
            if self._failing.get(what) != str(error):
                self._report(f"cannot write {what}: {error}; keeping it in memory and trying again")
            self._failing[what] = str(error)
            return False
        if self._failing.pop(what, None) is not None:
            self._report(f"{what} is written again")
        return True
