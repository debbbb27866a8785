"""Watched files: notice that the content changed, whatever way it was replaced.

Polls `os.stat` through symlinks: it sees atomic renames, in-place writes and the swap of the ``..data``
symlink in Kubernetes alike, and works on network file systems. Files are read in daemon threads and their
contents applied on the event loop. Owns what was last seen of each.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import logging
import os
import stat
import threading
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from epp.config.strict import positions
from epp.errors import ConfigError
from epp.threads import in_daemon_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import BinaryIO

    from epp.metrics.metrics import Metrics

_Value = TypeVar("_Value")

log = logging.getLogger(__name__)

_SECRET_BYTES, _MAKE = 16, "create it, e.g. 32 random bytes"

POLL_S = 0.5
MAX_FILE_BYTES = 16 * 1024 * 1024


def read_file(path: Path) -> bytes | None:
    """Read a regular file; None when it does not exist. Does not wait for the writer of a FIFO.

    Raises:
        OSError: it cannot be read, is no regular file, or is larger than 16 MiB.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return _bounded(file, path)
    finally:
        os.close(descriptor)


def required_file(path: Path, fix: str = "") -> bytes:
    """Read a file, or a pipe such as ``/dev/stdin``, that a command was given.

    Raises:
        ConfigError: it does not exist, cannot be read, or is larger than 16 MiB; ``fix`` says what to do.
    """
    try:
        with path.open("rb") as file:
            return _bounded(file, path)
    except FileNotFoundError as error:
        raise ConfigError(str(path), "", "the file does not exist", fix) from error
    except OSError as error:
        raise ConfigError(str(path), "", error.strerror or str(error)) from error


def _bounded(file: BinaryIO, path: Path) -> bytes:
    content = file.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise OSError(errno.EFBIG, f"larger than {MAX_FILE_BYTES} bytes", str(path))
    return content


def replace_file(path: Path, content: bytes) -> None:
    """Write a file so that readers see the old or the new content, also after a crash.

    Raises:
        OSError: it is not on disk.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
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


@contextlib.contextmanager
def exclusive(lock: Path) -> Iterator[None]:
    """Make others who change the same file wait; where the lock file cannot be written nobody waits."""
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):
            lock.parent.mkdir(parents=True, exist_ok=True)
            fcntl.flock(held.enter_context(lock.open("ab")), fcntl.LOCK_EX)
        yield


def placed(errors: Sequence[ConfigError]) -> list[str]:
    """Write errors with line and column, those of files that can be read again."""
    lines = []
    for source, found in groupby(errors, lambda error: error.source):
        group, text = list(found), b""
        with contextlib.suppress(OSError):
            text = read_file(Path(source)) or b""
        for error, place in zip(group, positions(text, [each.key for each in group]), strict=True):
            lines.append(str(error).replace(f"{source}: ", f"{source}: {place}", 1))
    return lines


class WatchedFiles:
    """Files whose contents belong together, such as a certificate and its key.

    Args:
        paths: the files.
        on_contents: takes the new contents, in the order of the paths, None for a file that does not exist;
            called when one differs from the last, or could not be read meanwhile.
        on_fault: called at each new fault: a file cannot be read, or ``on_contents`` raised, which it never
            should.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        on_contents: Callable[[tuple[bytes | None, ...]], None],
        on_fault: Callable[[], None] = lambda: None,
    ) -> None:
        self._paths, self.names = paths, ", ".join(map(str, paths))
        self._on_contents, self._on_fault = on_contents, on_fault
        self._signature: tuple[tuple[int, int, int] | None, ...] = ()
        self._contents: tuple[bytes | None, ...] = ()
        self._problem = ""

    def look(self) -> Callable[[], None] | None:
        """Read the files if they changed since the last look, always at the first; may block.

        Returns:
            What the event loop has to call, None when nothing changed.
        """
        try:
            signature = tuple(map(_signature, self._paths))
            if not self._problem and signature == self._signature:
                return None
            contents = tuple(map(read_file, self._paths))
        except OSError as error:
            return self.fault(str(error))
        again, self._problem = bool(self._problem), ""
        self._signature = signature
        if not again and contents == self._contents:
            return None
        self._contents = contents
        return partial(self._apply, contents)

    def fault(self, problem: str) -> Callable[[], None] | None:
        """Return what reports a fault, None when the last look had the same."""
        if problem == self._problem:
            return None
        self._problem = problem
        return partial(self._report, problem)

    def check(self) -> bool:
        """Look at the files and apply what changed, in the caller's thread; returns whether anything did."""
        change = self.look()
        if change is not None:
            change()
        return change is not None

    def _report(self, problem: str) -> None:
        log.error("cannot read a file: %s; the last content stays in force", problem)
        self._on_fault()

    def _apply(self, contents: tuple[bytes | None, ...]) -> None:
        try:
            self._on_contents(contents)
        except Exception:  # a fault of ours: the files must go on being watched
            log.exception(
                "%s cannot be taken, by a fault of the picker: its content has no effect", self.names
            )
            self._on_fault()


class WatchedFile(WatchedFiles):
    """One file; ``on_content`` takes its content as `WatchedFiles` says."""

    def __init__(
        self,
        path: Path,
        on_content: Callable[[bytes | None], None],
        on_fault: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__((path,), lambda contents: on_content(contents[0]), on_fault)
        self.path = path


class AppliedFile(WatchedFile, Generic[_Value]):
    """A file whose good contents are put in force, and whose bad ones change nothing.

    Args:
        path: the file.
        label: its name in `epp_file_ok`.
        metrics: shows whether its content is in force.
        parse: reads a content, None for a file that does not exist; raises ConfigError.
        apply: puts in force what was read.
        kept: what stays in force when the content is bad, for the log.
        last_good: where the last good content is kept, for a start that finds the file unusable.
        may_go: its writer removes it when nothing shall be in force.
    """

    def __init__(
        self,
        path: Path,
        label: str,
        metrics: Metrics,
        *,
        parse: Callable[[bytes | None], _Value],
        apply: Callable[[_Value], None],
        kept: str,
        last_good: Path | None = None,
        may_go: bool = False,
    ) -> None:
        super().__init__(path, self._take, self._failed)
        self._may_go = may_go
        self._label, self._metrics, self._kept, self._last_good = label, metrics, kept, last_good
        self._parse, self._put = parse, apply
        self._good: bytes | None = None
        self._on_disk: bytes | None = None
        self._looked = self._in_force = False

    def look(self) -> Callable[[], None] | None:
        """Read or write the last good content, then look as `WatchedFiles.look` does."""
        path, looked, self._looked = self._last_good, self._looked, True
        try:
            if path is not None and not looked:
                self._good = self._on_disk = read_file(path)
            elif path is not None and self._good != self._on_disk:
                self._on_disk = self._good
                if self._good is None:
                    path.unlink(missing_ok=True)
                else:
                    replace_file(path, self._good)
        except OSError as error:
            log.warning("the last good content of %s is not kept: %s", self.path, error)
        return super().look()

    def _take(self, text: bytes | None) -> None:
        try:
            value = self._parse(text)
        except ConfigError as error:
            log.error("%s; %s in force", error, self._kept)  # noqa: TRY400
            self._failed()
            return
        if text is None and self._good is not None and not self._may_go:
            log.warning("%s is gone: nothing of it is in force any more", self.path)
            self._metrics.file_failed(self._label)
        else:
            self._metrics.file_good(self._label, there=text is not None)
        self._good, self._in_force = text, True
        self._put(value)

    def _failed(self) -> None:
        self._metrics.file_failed(self._label)
        if self._good is None or self._in_force:
            return
        self._in_force = True
        try:
            value = self._parse(self._good)
        except ConfigError as error:
            log.error("the last good content in %s: %s", self._last_good, error)  # noqa: TRY400
            return
        log.warning("the last good content, in %s, is in force", self._last_good)
        self._put(value)


async def watch(files: Sequence[WatchedFiles], poll_s: float = POLL_S) -> None:
    """Check the files for ever; one on a file system that hangs delays no other."""
    await asyncio.gather(*(_watch(file, poll_s) for file in files))


async def _watch(file: WatchedFiles, poll_s: float) -> None:
    stopped = threading.Event()
    try:
        while True:
            try:
                change = await in_daemon_thread(_next_change, file, poll_s, stopped)
            except OSError as error:  # no thread
                change = file.fault(f"{file.names}: {error}")
                await asyncio.sleep(poll_s)
            if change is not None:
                change()
    finally:
        stopped.set()


def _next_change(file: WatchedFiles, poll_s: float, stopped: threading.Event) -> Callable[[], None] | None:
    """Look until there is a change, without waking the event loop before."""
    while not stopped.wait(poll_s):
        change = file.look()
        if change is not None:
            return change
    return None


def _signature(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def read_secret(path: Path, key: str, source: str) -> bytes:
    """Read a secret, whose file's name may say more than a log should.

    Args:
        path: its file.
        key: of the configuration.
        source: name of the configuration file, for errors.

    Raises:
        ConfigError: it cannot be read, or holds fewer than 16 bytes.
    """
    try:
        secret = (read_file(path) or b"").strip()
    except OSError as error:
        raise ConfigError(source, key, f"the file cannot be read: {error.strerror}", _MAKE) from None
    if len(secret) < _SECRET_BYTES:
        problem = f"there is no file of at least {_SECRET_BYTES} bytes"
        raise ConfigError(source, key, problem, _MAKE)
    return secret
