"""How sidecars that look at files run and stop, one process a shared file.

Owns the lock file and the signals of the process. The lock is an `flock`: the kernel frees it when its
process ends, however it ends. Its file says who holds it, for people, and is never deleted: between a
deletion and a creation two could hold it.

Where several pickers share, one works only beside the picker that leads (`epp.server.lead`).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import time
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Protocol

from epp.errors import EppError
from epp.server.lead import LeadFile, is_led, read_lead
from epp.server.process import stop_signals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from epp.config.schema import Config


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


def ago(seconds: float) -> str:
    """Say how long something is past."""
    for size, name in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {name} ago"
    return f"{max(seconds, 0.0):.0f} s ago"


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
