"""One tuner a weights file: a lock that works on one machine by `flock`, and elsewhere by a heartbeat.

Owns the lock file: one line of JSON, of fixed length, written in place (a rename would leave the `flock` on a
file that nobody finds any more). Clocks of two machines are never compared: a foreign lock is watched, and it
is stale when nothing in it moves for `STALE_S`.

Rules
- Whoever finds another's name in the file has lost it, and must not write anything any more.
- The file is never deleted: between a deletion and a creation two could hold it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from epp.decide.record_files import DAMAGED
from epp.errors import EppError

if TYPE_CHECKING:
    from collections.abc import Callable

    from epp.clock import Clock

_BEAT_S = 5.0
STALE_S = 30.0
_LOOK_S = 1.0
_LENGTH = 512
#: What file systems without locks say.
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


class LockHeldError(EppError):
    """Another tuner has this file."""


class LockLostError(EppError):
    """Another tuner has taken this file over."""


class LockFileError(EppError):
    """The lock file cannot be written: a full disk, or a folder that is read-only."""


class Holder(msgspec.Struct, frozen=True):
    """What a lock file says.

    Attributes:
        host: machine, for people.
        boot: the machine's id since it was started; one for all containers on it.
        pid: process.
        token: drawn by each holder.
        beat: counts heartbeats.
        beat_wall_s: Unix time of the last, by the holder's clock.
    """

    host: str
    boot: str
    pid: int
    token: str
    beat: int = 0
    beat_wall_s: float = 0.0

    def __str__(self) -> str:
        """For people."""
        return f"pid {self.pid} on {self.host}"


def read_holder(path: Path) -> Holder | None:
    """Who holds the lock by its file's word; None for nobody, or for half a word."""
    try:
        return msgspec.json.decode(path.read_bytes()[:_LENGTH], type=Holder)
    except (OSError, *DAMAGED):
        return None


@dataclass(slots=True)
class _Own:
    fd: int
    holder: Holder


class TunerLock:
    """The lock of one weights file.

    Args:
        path: the lock file.
        tell: takes sentences for the log.
        pause: sleeps; what a foreign lock is watched with.
        wall_s: Unix time, for people who read the file.
        boot: id of this machine's start.
        who: what holds it, for people.
    """

    def __init__(
        self,
        path: Path,
        *,
        tell: Callable[[str], None],
        pause: Callable[[float], object] = time.sleep,
        wall_s: Callable[[], float] = time.time,
        boot: str | None = None,
        who: str = "tuner",
    ) -> None:
        self._who = who
        self._path, self._tell, self._pause, self._wall_s = path, tell, pause, wall_s
        self._host, self._boot = socket.gethostname(), _boot_id() if boot is None else boot
        self._own: _Own | None = None

    def acquire(self, on_progress: Callable[[], None] = lambda: None) -> None:
        """Take the lock; a stale one is told and broken.

        Args:
            on_progress: called at every look at a foreign lock, which may take `STALE_S` and more.

        Raises:
            LockHeldError: a living tuner has it.
            LockFileError: the lock file cannot be written.
        """
        try:
            self._own = self._taken(on_progress)
        except OSError as error:
            why = error.strerror or str(error)
            raise LockFileError(f"{self._path}: {why}; a {self._who} must be able to write here") from error

    def _taken(self, on_progress: Callable[[], None]) -> _Own:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            locked = self._flock(fd)
            before = read_holder(self._path)
            if before is not None:
                self._judge(before, on_progress, locked=locked)
            holder = Holder(self._host, self._boot, os.getpid(), secrets.token_hex(8), 0, self._wall_s())
            self._write(fd, holder)
            if not locked:
                # Two may have found it stale at once: the later word stays, and the other sees it here.
                self._pause(2 * _LOOK_S)
                self._check(holder)
        except BaseException:
            os.close(fd)
            raise
        return _Own(fd, holder)

    def beat(self) -> None:
        """Say that this tuner lives; `Heart` does so often enough.

        Raises:
            LockLostError: the lock is another's by now.
            OSError: the file cannot be written.
        """
        own = self._held()
        self._check(own.holder)
        own.holder = msgspec.structs.replace(own.holder, beat=own.holder.beat + 1, beat_wall_s=self._wall_s())
        self._write(own.fd, own.holder)

    def check(self) -> None:
        """Before anything is written.

        Raises:
            LockLostError: the lock is another's by now.
        """
        self._check(self._held().holder)

    def release(self) -> None:
        """Give it back, if it is still ours."""
        own, self._own = self._own, None
        if own is None:
            return
        with contextlib.suppress(OSError, LockLostError):
            self._check(own.holder)
            os.pwrite(own.fd, b" " * _LENGTH, 0)
        with contextlib.suppress(OSError):
            os.close(own.fd)

    def _held(self) -> _Own:
        if self._own is None:
            raise RuntimeError("the lock is not held")
        return self._own

    def _flock(self, fd: int) -> bool:
        """Whether the machine's own lock could be had; False where there are none.

        Raises:
            LockHeldError: another process of this machine has it (or of any, where locks travel).
        """
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = read_holder(self._path)
            other = f"{holder}" if holder else "another process"
            raise LockHeldError(f"{self._path}: a {self._who} runs on this file already: {other}") from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            return False
        return True

    def _judge(self, before: Holder, on_progress: Callable[[], None], *, locked: bool) -> None:
        """Whether the holder that the file names is gone.

        Raises:
            LockHeldError: it lives.
        """
        if before.boot == self._boot and locked:
            self._tell(f"{self._path}: the {self._who} that held it, {before}, is gone; taking over")
            return
        self._tell(f"{self._path}: held by {before}; watching for {STALE_S:g} s whether it lives")
        watched_s, last = 0.0, before
        while watched_s < STALE_S:
            self._pause(_LOOK_S)
            watched_s += _LOOK_S
            on_progress()
            now = read_holder(self._path)
            if now is None:
                continue  # given back, or half a word: the next look tells
            if now != last:
                raise LockHeldError(f"{self._path}: a {self._who} runs on this file already: {now}")
        self._tell(f"{self._path}: no sign of life of {before} for {STALE_S:g} s; the lock is broken")

    def _check(self, holder: Holder) -> None:
        found = read_holder(self._path)
        if found is not None and found.token != holder.token:
            raise LockLostError(f"{self._path}: taken over by {found}")

    @staticmethod
    def _write(fd: int, holder: Holder) -> None:
        text = msgspec.json.encode(holder)
        os.pwrite(fd, text.ljust(_LENGTH - 1)[: _LENGTH - 1] + b"\n", 0)


class Heart:
    """Beats the locks of a process as often as it takes.

    Whoever works calls it at every look, and again and again within whatever may take long: records that are
    read, a training. No thread does, because it would beat for one that hangs, too.

    Args:
        lock: held, and beaten just now.
        clock: the time.
        tell: takes sentences for the log.
    """

    def __init__(self, lock: TunerLock, clock: Clock, tell: Callable[[str], None]) -> None:
        self._locks, self._clock, self._tell = [lock], clock, tell
        self._beat_s = clock.mono_s()

    def take(self, lock: TunerLock) -> None:
        """Acquire another lock for the same process, and beat it, too; those held are beaten meanwhile.

        Raises:
            LockLostError: a lock is another's by now.
            LockHeldError: a living tuner has the other one.
            LockFileError: its file cannot be written.
        """
        lock.acquire(self.tick)
        self._locks.append(lock)

    def tick(self) -> None:
        """Beat when it is time to; a lock file that cannot be written is told of.

        Raises:
            LockLostError: a lock is another's by now.
        """
        now_s = self._clock.mono_s()
        if now_s - self._beat_s < _BEAT_S:
            return
        self._beat_s = now_s
        for lock in self._locks:
            try:
                lock.beat()
            except OSError as error:
                self._tell(f"cannot write the lock: {error}")


def _boot_id() -> str:
    """Linux's id of this start of the machine; the host's name elsewhere."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()
