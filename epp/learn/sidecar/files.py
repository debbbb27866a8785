"""The shared folder: whole contents in, whole contents out, and turns for those who change the same file.

Names of all that lies beside a file shared with pickers; one writer each, and all but it may be deleted.

Beside ``weights.yaml``, which the tuner writes:

* ``weights.lock`` - who the tuner is.
* ``weights.tuner.json`` - the tuner's memory.
* ``weights.requests.json`` - what operators asked a running tuner for; commands write it, in turns by
  ``weights.requests.lock``.
* ``weights.unreadable`` - a weights file that was found torn, put aside.
* ``weights.last-good-weights.yaml``, ``weights.last-good-overrides.yaml`` - what pickers took last.
* ``overrides.yaml`` - pins; the operator's, whose commands write it in turns by ``overrides.pins.lock``.

Beside ``reward.json``, which the learner writes:

* ``reward.VERSION.json`` - the last versions of it (`epp.records.model_files.version_path`).
* ``reward.lock`` - who the learner is.
* ``reward.learner.msgpack`` - the learner's memory.
* ``reward.status.json`` - where it stands, for `epp learn status`.

Where pickers share, one leads and writes the files of all: beside a picker that follows it, weights, tuner's
memory and model are the picker's to write (`epp.server.lead`).
"""

from __future__ import annotations

import contextlib
import fcntl
from functools import partial
from glob import escape
from typing import TYPE_CHECKING, TypeVar

from epp.errors import EppError
from epp.records.files import DAMAGED
from epp.server.files import read_file, replace_file
from epp.server.lead import memory_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

T = TypeVar("T")


class WeightsPaths:
    """Paths of the tuner, from the weights file's."""

    def __init__(self, weights: Path) -> None:
        self.weights = weights
        self.lock = weights.with_name(f"{weights.stem}.lock")
        self.memory = memory_path(weights)
        self.requests = weights.with_name(f"{weights.stem}.requests.json")
        self.requests_lock = weights.with_name(f"{weights.stem}.requests.lock")
        self.unreadable = weights.with_name(f"{weights.stem}.unreadable")


class ModelPaths:
    """Paths of the learner, from the model file's."""

    def __init__(self, model: Path) -> None:
        self.model = model
        self.lock = model.with_name(f"{model.stem}.lock")
        self.memory = model.with_name(f"{model.stem}.learner.msgpack")
        self.status = model.with_name(f"{model.stem}.status.json")

    def versions(self) -> list[Path]:
        """List the versions that are kept, oldest first."""
        named = f"{escape(self.model.stem)}.{'[0-9a-f]' * 16}{escape(self.model.suffix)}"
        return sorted(self.model.parent.glob(named), key=lambda path: path.stat().st_mtime_ns)


class Files:
    """Writes to the file system; a seam, for tests with a disk that is full or a process that dies."""

    def replace(self, path: Path, content: bytes) -> None:
        """Put content where readers see the old or the new one, also after a crash; makes the folder.

        Raises:
            OSError: it is not on disk.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, content)

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
    """Writes files. A failure is reported once, and so is the end of it; the caller tries again.

    Args:
        report: takes sentences for the log.
        files: writes.
    """

    def __init__(self, report: Callable[[str], None], files: Files) -> None:
        self._report, self._files = report, files
        self._failing: dict[str, str] = {}

    def replace(self, what: str, path: Path, content: bytes) -> bool:
        """Put content in a file; whether it is on disk. ``what`` is the file, for people."""
        return self.attempt(what, partial(self._files.replace, path, content))

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


def lost(path: Path, content: bytes | None) -> str:
    """Say what became of a file that was written with this content; empty where it still has it."""
    try:
        found = read_file(path)
    except OSError:  # what is in its place is reported when it is written
        found = b""
    if found == content:
        return ""
    return "is gone" if found is None else "was changed by somebody else"
