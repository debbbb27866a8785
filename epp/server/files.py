"""Watched files: notice that the content changed, whatever way it was replaced.

Polls `os.stat` through symlinks: it sees atomic renames, in-place writes and the swap of the ``..data``
symlink in Kubernetes alike, works on network file systems, and costs microseconds. Owns what was last
seen of each.
"""

from __future__ import annotations

import asyncio
import logging
import os
from typing import TYPE_CHECKING

from epp.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

log = logging.getLogger(__name__)

POLL_S = 0.5
MAX_FILE_BYTES = 16 * 1024 * 1024


def read_file(path: Path) -> bytes | None:
    """Content of a file; None when it does not exist.

    Raises:
        OSError: it exists but cannot be read, or is larger than 16 MiB.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        return None
    if len(content) > MAX_FILE_BYTES:
        raise OSError(f"{path} is larger than {MAX_FILE_BYTES} bytes")
    return content


def required_file(path: Path, fix: str = "") -> bytes:
    """Content of a file that has to be there.

    Raises:
        ConfigError: it is not, or cannot be read, or is larger than 16 MiB; ``fix`` says what to do.
    """
    try:
        content = read_file(path)
    except OSError as error:
        raise ConfigError(str(path), "", str(error)) from error
    if content is None:
        raise ConfigError(str(path), "", "the file does not exist", fix)
    return content


def replace_file(path: Path, content: bytes) -> None:
    """Write a file so that readers see the old or the new content, never a mixture."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


class WatchedFile:
    """One file and the callback that takes its content.

    Args:
        path: the file.
        on_content: gets the new bytes, None when the file is gone, only when they differ from the last or the
            file could not be read meanwhile.
        on_fault: told when the file cannot be read, once, or ``on_content`` raised, which it never should.
    """

    def __init__(
        self,
        path: Path,
        on_content: Callable[[bytes | None], None],
        on_fault: Callable[[], None] = lambda: None,
    ) -> None:
        self.path = path
        self._on_content, self._on_fault = on_content, on_fault
        self._signature: tuple[int, int, int] | None = None
        self._content: bytes | None = None
        self._unreadable = False

    def check(self, *, first: bool = False) -> bool:
        """Look at the file and hand over changed content; returns whether it did."""
        signature = self._stat()
        if not first and not self._unreadable and signature == self._signature:
            return False
        try:
            content = read_file(self.path)
        except OSError as error:
            if not self._unreadable:
                log.error("cannot read %s: %s; keeping what it said before", self.path, error)  # noqa: TRY400
                self._on_fault()
            self._unreadable = True
            return False
        again, self._unreadable = self._unreadable, False
        self._signature = signature
        if not first and not again and content == self._content:
            return False
        self._content = content
        try:
            self._on_content(content)
        except Exception:  # a fault of ours: the file, and the others, must go on being watched
            log.exception(
                "%s cannot be taken, by a fault of the picker: its content has no effect", self.path
            )
            self._on_fault()
        return True

    def _stat(self) -> tuple[int, int, int] | None:
        try:
            status = self.path.stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size


async def watch(files: list[WatchedFile], poll_s: float = POLL_S) -> None:
    """Check the files for ever."""
    while True:
        await asyncio.sleep(poll_s)
        for file in files:
            file.check()
