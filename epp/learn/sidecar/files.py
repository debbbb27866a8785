"""The shared folder: whole contents in, whole contents out, and turns for those who change the same file."""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import TYPE_CHECKING, TypeVar

from epp.errors import EppError
from epp.records.files import DAMAGED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

T = TypeVar("T")


class Files:
    """Writes to the file system; a seam, for tests with a disk that is full or a process that dies."""

    def replace(self, path: Path, content: bytes) -> None:
        """Put content where readers see the old or the new one, also after a crash; makes the folder.

        Raises:
            OSError: it is not on disk.
        """
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


def load_memory(path: Path, decode: Callable[[bytes], T]) -> T | None:
    """Read the memory of a sidecar; None when there is none. Nobody begins anew without what it says.

    Args:
        path: of the file.
        decode: raises ValueError, or one of `DAMAGED`, for what is no memory.

    Raises:
        EppError: it cannot be read, is damaged, or is of another version of the program.
    """
    try:
        return decode(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise EppError(f"{path}: {error.strerror or error}; this memory must be readable") from error
    except (ValueError, *DAMAGED) as error:
        raise EppError(
            f"{path}: {error}; it is damaged, or of another version of epp: start that version, or "
            "move the file away to begin anew without what it says"
        ) from error


@contextlib.contextmanager
def exclusive(lock: Path) -> Iterator[None]:
    """Make others who change the same file wait; where the lock file cannot be written nobody waits."""
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):
            lock.parent.mkdir(parents=True, exist_ok=True)
            fcntl.flock(held.enter_context(lock.open("ab")), fcntl.LOCK_EX)
        yield


class Writes:
    """Attempts writes. A failure is reported once, and so is the end of it; the caller tries again.

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
