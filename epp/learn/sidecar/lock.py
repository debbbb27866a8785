"""One process a shared file, by `flock`: the kernel frees the lock when its process ends, however it ends.

Owns the lock file. It says who holds the lock, for people, and is never deleted: between a deletion and a
creation two could hold it.
"""

from __future__ import annotations

import fcntl
import os
import socket
import time
from typing import TYPE_CHECKING, Self

from epp.errors import EppError

if TYPE_CHECKING:
    from pathlib import Path

#: Whoever asks for the holder (`holder_of`) has the lock for a moment, and has let go of it by then.
_RETRY_S = 0.1


class LockHeldError(EppError):
    """Another process has this file."""


class ProcessLock:
    """The lock of one shared file, held within a ``with``.

    Args:
        path: the lock file.
        who: what holds it, for people.
    """

    def __init__(self, path: Path, who: str) -> None:
        self._path, self._who = path, who
        self._descriptor = -1

    def __enter__(self) -> Self:
        """Take the lock.

        Raises:
            LockHeldError: another process has it.
            EppError: the lock file cannot be written, or its file system has no locks.
        """
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            self._flock()
            os.truncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"pid {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        except BlockingIOError:
            self.release()
            problem = f"{self._path}: a {self._who} runs on this file already: {holder_of(self._path)}"
            raise LockHeldError(problem) from None
        except OSError as error:
            self.release()
            why = error.strerror or str(error)
            raise EppError(f"{self._path}: {why}; a {self._who} must be able to write here") from error
        return self

    def __exit__(self, *_: object) -> None:
        """Give the lock back."""
        self.release()

    def _flock(self) -> None:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_RETRY_S)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def release(self) -> None:
        """Give the lock back, if it is held."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def holder_of(path: Path) -> str:
    """Say who holds a lock; empty for nobody."""
    try:
        with path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return file.read(512).decode(errors="replace").strip() or "another process"
    except OSError:
        pass
    return ""
