"""The files of records: their names, their order, and how they are read while or after somebody writes them.

One file belongs to one process for life and its name says when it began, so nobody ever writes to another's.
A reader trusts whole lines only: a writer that was killed leaves half of one at the end, and that is skipped.
The content of a line is no business of this module.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import secrets
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from epp.errors import EppError
from epp.schedule.decision import SCHEMA_VERSION

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import FileIO
    from pathlib import Path

log = logging.getLogger(__name__)

_NAME = re.compile(r"records-(\d{8}T\d{6}\.\d{6}Z)-\d+-[0-9a-f]{8}\.jsonl(\.zst)?")
_STAMP = "%Y%m%dT%H%M%S.%fZ"
_READ_BYTES = 1 << 20
#: What decoding a damaged line may raise: no JSON, text that is no UTF-8, brackets that nest too deep.
DAMAGED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def file_name(wall_s: float, *, compressed: bool, after: str = "") -> str:
    """A name for a new file of this process; names sort by time.

    Args:
        wall_s: Unix time.
        compressed: whether it is.
        after: name of the newest file that is there. The new one follows it, whatever the clock says: where
            it was set back, the newest records would be deleted first, and outcomes read before decisions.
    """
    begun, newest = datetime.fromtimestamp(wall_s, UTC), _NAME.fullmatch(after)
    if newest is not None:
        with contextlib.suppress(ValueError, OverflowError):  # a stamp that is none, or the last there is
            last = datetime.strptime(newest[1], _STAMP).replace(tzinfo=UTC)
            begun = max(begun, last + timedelta(microseconds=1))
    stamp = begun.strftime(_STAMP)
    return f"records-{stamp}-{os.getpid()}-{secrets.token_hex(4)}.jsonl" + (".zst" if compressed else "")


def record_files(place: Path) -> list[Path]:
    """Files of records, oldest first; ``place`` is their folder, or one of them.

    Raises:
        EppError: there is no such folder or file.
    """
    if place.is_file():
        return [place]
    try:
        names = os.listdir(place)  # noqa: PTH208  # names are all that is wanted
    except OSError as error:
        raise EppError(
            f"{place} is not a folder of records: {error.strerror} (name the configuration's records.folder)"
        ) from error
    return [place / name for name in sorted(names) if _NAME.fullmatch(name)]


class Place(NamedTuple):
    """Where a record stands: a file, and the number of its line in it, from 1."""

    path: Path
    line: int

    def __str__(self) -> str:
        """For people."""
        return f"{self.path}, line {self.line}"


def zstandard(path: object) -> Any:
    """The optional module.

    Raises:
        EppError: it is not installed.
    """
    try:
        import zstandard as module  # noqa: PLC0415  # optional: only who compresses needs it
    except ImportError as error:
        raise EppError(f"{path}: zstd needs the extra: pip install 'gorgo-epp[zstd]'") from error
    return module


class Tail:
    """Whole lines of one file, each once; more of them whenever the file has grown.

    Args:
        path: a file of records, compressed when its name ends in ``.zst``.

    Attributes:
        damaged: whether it can be decompressed no further.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._rest = b""
        self._offset = 0
        self._decompressor: Any = None
        self.damaged = False
        self._broken: tuple[type[Exception], ...] = ()
        if path.name.endswith(".zst"):
            module = zstandard(path)
            self._decompressor = module.ZstdDecompressor().decompressobj()
            self._broken = (module.ZstdError,)

    def lines(self) -> Iterator[bytes]:
        """Lines completed since the last call, without their ends.

        Raises:
            EppError: the file cannot be read.
        """
        try:
            with self.path.open("rb", buffering=0) as file:
                file.seek(self._offset)
                yield from self._read(file)
        except FileNotFoundError:
            return  # rotation was faster
        except OSError as error:
            raise EppError(f"{self.path}: {error.strerror}") from error

    def skip(self) -> None:
        """Pass over what is there now."""
        for _ in self.lines():
            pass

    def _read(self, file: FileIO) -> Iterator[bytes]:
        while data := file.read(_READ_BYTES):
            self._offset += len(data)
            if self._decompressor is not None:
                try:
                    data = self._decompressor.decompress(data)
                except self._broken:  # damaged from here on; what came before was good
                    self.damaged = True
                    return
            *lines, self._rest = (self._rest + data).split(b"\n")
            yield from lines


def read_records(place: Path, damaged: list[Place] | None = None) -> Iterator[dict[str, Any]]:
    """Yield all records of a folder or a file, file by file, oldest first.

    Damaged lines are skipped, put into ``damaged``, and logged in one warning at the end; half a line at the
    end of a file, which a killed writer leaves, is none. Files of several processes may
    overlap in time: sort by ``at`` where that matters.

    Raises:
        EppError: there is nothing to read, or it was written under another schema.
    """
    for _, record in placed_records(place, damaged):
        yield record


def placed_records(place: Path, damaged: list[Place] | None = None) -> Iterator[tuple[Place, dict[str, Any]]]:
    """Yield records as `read_records` does, each with the line that it stands in.

    Raises:
        EppError: there is nothing to read, or it was written under another schema.
    """
    damaged = [] if damaged is None else damaged
    for path in record_files(place):
        tail, number = Tail(path), 0
        for number, line in enumerate(tail.lines(), 1):
            record = parse_line(line, path)
            if record is None:
                damaged.append(Place(path, number))
            else:
                yield Place(path, number), record
        if tail.damaged:
            damaged.append(Place(path, number + 1))
    if damaged:
        log.warning("%d damaged lines were skipped, the first is %s", len(damaged), damaged[0])


def parse_line(line: bytes, path: Path) -> dict[str, Any] | None:
    """A line as a record, None for one that is damaged.

    Raises:
        EppError: it was written under another schema.
    """
    try:
        record = msgspec.json.decode(line)
    except DAMAGED:
        return None
    if not isinstance(record, dict) or "kind" not in record or not isinstance(record.get("schema"), int):
        return None
    if record["schema"] != SCHEMA_VERSION:
        raise EppError(f"{path} has schema {record['schema']}; this version reads {SCHEMA_VERSION}")
    return record
