"""The shared folder, and who works on it: whole contents in and out, turns, one process a shared file.

Names of all that lies beside a model file shared with pickers, as `epp.records.weight_files` has those beside
the weights; one writer each, and all but the model may be deleted.

Beside ``reward.json``, which the learner writes:

* ``reward.VERSION.json`` - the last versions of it (`epp.records.model_files.version_path`).
* ``reward.lock`` - who the learner is.
* ``reward.learner.msgpack`` - the learner's memory.
* ``reward.status.json`` - where it stands, for `epp learn status`.

Where pickers share, one leads and writes the files of all: beside a picker that follows it, weights, tuner's
memory and model are the picker's to write (`epp.feeds.lead`).

A lock is an `flock`: the kernel frees it when its process ends, however it ends. Its file says who holds it,
for people, and is never deleted: between a deletion and a creation two could hold it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import time
from functools import partial
from glob import escape
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Protocol

from epp.errors import EppError
from epp.feeds.files import read_file, replace_file
from epp.feeds.lead import LeadFile, is_led, read_lead
from epp.records.weight_files import ago
from epp.threads import stop_signals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from epp.config.schema import Config


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


#: Whoever asks for the holder (`holder_of`) has the lock for a moment, and has released it by then.
_RETRY_S = 0.1


class LockHeldError(EppError):
    """Another process has this file."""


@contextlib.contextmanager
def process_lock(path: Path, who: str) -> Iterator[None]:
    """Hold the lock of one shared file.

    Args:
        path: the lock file.
        who: what holds it, for people.

    Raises:
        LockHeldError: another process has it.
        EppError: the lock file cannot be written, or its file system has no locks.
    """
    with contextlib.ExitStack() as held:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = held.enter_context(path.open("ab", buffering=0))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(_RETRY_S)
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.truncate(0)
            file.write(f"pid {os.getpid()} on {socket.gethostname()}\n".encode())
        except BlockingIOError:
            problem = f"{path}: a {who} runs on this file already: {holder_of(path)}"
            raise LockHeldError(problem) from None
        except OSError as error:
            why = error.strerror or str(error)
            raise EppError(f"{path}: {why}; a {who} must be able to write here") from error
        yield


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


def running(lock: Path, written: Path, now_wall_s: float) -> str:
    """Say who holds a lock, and when it last wrote a file that it writes every few seconds."""
    holder = holder_of(lock)
    if not holder:
        return "not running"
    with contextlib.suppress(OSError):
        return f"{holder}, last wrote {ago(now_wall_s - written.stat().st_mtime)}"
    return holder


def run_until_stopped(tick: Callable[[], None], every_s: float) -> None:
    """Tick every so many seconds until SIGTERM, SIGINT or SIGHUP comes.

    Not `threading.Event`: its lock cannot be taken twice, and a signal that comes while the main thread holds
    it, on its way into a wait, stops the process for good. `SimpleQueue.put` may interrupt itself.
    """
    heard: SimpleQueue[int] = SimpleQueue()
    for number in stop_signals():
        signal.signal(number, lambda given, _: heard.put(given))
    while True:
        try:
            heard.get(timeout=every_s)
        except Empty:
            tick()
        else:
            return


class Work(Protocol):
    """What a sidecar does while its picker leads."""

    def tick(self) -> None:
        """Do one round."""

    def close(self) -> None:
        """Write the memory, and end."""

    def drop(self) -> None:
        """End without writing anything: another one leads."""


def lead_of(config: Config, records: Path) -> LeadFile:
    """Read whether the picker of this configuration leads; one that is alone always does."""
    return read_lead(records) if is_led(config) else LeadFile(leads=True)


def require_lead(config: Config, records: Path) -> None:
    """Refuse what only the leader's sidecar can do.

    Raises:
        EppError: another picker leads.
    """
    lead = lead_of(config, records)
    if not lead.leads:
        raise EppError(f"this picker does not lead, {lead.leader or 'nobody'} does: ask there")


class Turn:
    """Begins the work when the picker takes the lead, and ends it when another does.

    Args:
        begin: makes the work, from what is on file.
        lead: reads who leads.
        report: takes sentences for the log.
    """

    def __init__(
        self, begin: Callable[[], Work], lead: Callable[[], LeadFile], report: Callable[[str], None]
    ) -> None:
        self._begin, self._lead, self._report = begin, lead, report
        self._work: Work | None = None
        self._waits_for: str | None = None

    def run(self, every_s: float) -> None:
        """Look every so many seconds, and do the rounds of the work, until stopped."""
        self.look()
        run_until_stopped(self.tick, every_s)
        self.close()

    def look(self) -> None:
        """Begin or end the work.

        Raises:
            EppError: it cannot begin.
        """
        lead = self._lead()
        if not lead.leads:
            self.end()
            if lead.leader != self._waits_for:
                self._report(f"waiting: {lead.leader or 'nobody'} leads the pickers")
            self._waits_for = lead.leader
        elif self._work is None:
            if self._waits_for is not None:
                self._report(f"this picker leads, in term {lead.term}")
            self._waits_for = None
            self._work = self._begin()

    def tick(self) -> None:
        """Do one round, where there is work."""
        self.look()
        if self._work is not None:
            self._work.tick()

    def end(self) -> None:
        """End the work without writing anything."""
        work, self._work = self._work, None
        if work is not None:
            work.drop()

    def close(self) -> None:
        """End the work in order."""
        if not self._lead().leads:
            self.end()
        elif self._work is not None:
            self._work.close()
