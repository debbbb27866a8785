"""The memory of a sidecar: one file, replaced as a whole: a killed process leaves the old or the new one.

Owns what happens to a memory that is there and cannot be used: nobody begins anew without what it says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from epp.errors import EppError
from epp.records.files import DAMAGED

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from epp.learn.sidecar.files import Files

T = TypeVar("T")


class MemoryFile(Generic[T]):
    """Keeps a memory.

    Args:
        path: of the file.
        files: the file system.
        encode: the memory as bytes.
        decode: and back; raises ValueError, or one of `DAMAGED`, for what is none.
    """

    def __init__(
        self, path: Path, files: Files, encode: Callable[[T], bytes], decode: Callable[[bytes], T]
    ) -> None:
        self._path, self._files, self._encode, self._decode = path, files, encode, decode

    def load(self) -> T | None:
        """Read the memory; None when there is none.

        Raises:
            EppError: it is there and cannot be read, is damaged, or is of another version of the program.
        """
        try:
            content = self._files.read_own(self._path)
        except OSError as error:
            raise EppError(
                f"{self._path}: {error.strerror or error}; this memory must be readable"
            ) from error
        if content is None:
            return None
        try:
            return self._decode(content)
        except (ValueError, *DAMAGED) as error:
            raise EppError(
                f"{self._path}: {error}; it is damaged, or of another version of epp: start that version, or "
                "move the file away to begin anew without what it says"
            ) from error

    def save(self, memory: T) -> None:
        """Write the memory.

        Raises:
            OSError: it is not on disk; the last one still is.
        """
        self._files.replace(self._path, self._encode(memory))
