"""Traces and reports on disk: the only module of this folder that opens files.

Owns: telling formats apart and reading lines, gzipped or not; where a comparison is written. Formats
themselves are in `epp.lab.compare.trace` and `epp.lab.compare.agent_sessions`.
"""

from __future__ import annotations

import gzip
import itertools
import os
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from epp.errors import EppError
from epp.lab.compare.agent_sessions import AgentOptions, read_agent_sessions
from epp.lab.compare.flight_records import read_flight_records
from epp.lab.compare.trace import (
    AZURE_HEADER,
    MOONCAKE_TICK_MS,
    TraceError,
    TraceRequest,
    dump,
    in_time_order,
    read_azure,
    read_canonical,
    read_mooncake,
)
from epp.records.files import DAMAGED, read_records

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_GZIP_MAGIC = b"\x1f\x8b"
_DAY_MS = 86_400_000.0
#: Longer ones have their times in other units: replaying them would take for ever, simulated or not.
_LONGEST_MS = 366 * _DAY_MS


def load_trace(
    path: str | Path, *, seed: int = 0, scale: int = 1, agents: AgentOptions | None = None
) -> tuple[TraceRequest, ...]:
    """A whole trace in time order, its format told by the keys of its first line.

    Args:
        path: Mooncake rows, agent sessions, canonical records or the flight recorder's, one JSON object a
            line; Azure's CSV; or a folder of the recorder's files.
        seed: keys the draws that spread arrivals.
        scale: divides lengths and block sizes (canonical records are taken as they are).
        agents: options for agent sessions; ``seed`` and ``scale`` apply when it is left out.

    Raises:
        TraceError: no such file, an unknown format, a line that does not fit its format, or times that
            cannot be milliseconds; names the file.
    """
    options = agents or AgentOptions(seed=seed, scale=scale)
    try:
        requests = in_time_order(tuple(_read(Path(path), seed, scale, options)))
    except TraceError as error:
        raise TraceError(f"{path}: {error}") from error
    if requests and requests[-1].at_ms > _LONGEST_MS:
        days = requests[-1].at_ms / _DAY_MS
        raise TraceError(
            f"{path}: the last request is {days:.4g} days after the start: are its times milliseconds?"
        )
    return requests


def _read(path: Path, seed: int, scale: int, agents: AgentOptions) -> Iterable[TraceRequest]:
    if path.is_dir() or path.suffix == ".zst":
        return read_flight_records(read_records(path))
    lines = _lines(path)
    first = next((line for line in lines if line.strip()), None)
    if first is None:
        raise TraceError("the file is empty")
    rows = itertools.chain([first], lines)
    if first.strip() == AZURE_HEADER:
        return read_azure(rows)
    try:
        row = msgspec.json.decode(first)
    except DAMAGED as error:
        if not first.lstrip().startswith(("{", "[")):
            words = f"neither a JSON object nor the header of Azure's CSV, {AZURE_HEADER}"
            raise TraceError(f"line 1 is {words}: {first.strip()[:60]!r}") from error
        raise TraceError(f"line 1: {error}") from error
    keys = set(row) if isinstance(row, dict) else set()
    if "hash_ids" in keys:
        # Rows that name their sessions carry real times; only the original's stand on ticks.
        tick_ms = 0.0 if "session_id" in keys else MOONCAKE_TICK_MS
        return read_mooncake(rows, seed=seed, scale=scale, tick_ms=tick_ms)
    if {"block", "requests"} <= keys:
        return read_agent_sessions(rows, agents)
    if {"at_ms", "block_ids"} <= keys:
        return read_canonical(rows)
    if {"kind", "schema"} <= keys:
        return read_flight_records(read_records(path))
    raise TraceError(
        f"unknown format: the first line has keys {sorted(keys)}; "
        "known are Mooncake rows, agent sessions, Azure's CSV, canonical records and the recorder's"
    )


def _lines(path: Path) -> Iterator[str]:
    """Lines of a text file; gzip is told by its first bytes, not by the name; byte order marks go."""
    try:
        with path.open("rb") as head:
            packed = head.read(2) == _GZIP_MAGIC
        encoding = "utf-8-sig"
        with gzip.open(path, "rt", encoding=encoding) if packed else path.open(encoding=encoding) as lines:
            yield from lines
    except OSError as error:
        raise TraceError(error.strerror or str(error)) from error
    except (EOFError, UnicodeDecodeError, zlib.error) as error:
        raise TraceError(str(error)) from error


def save_trace(path: str | Path, requests: Iterable[TraceRequest]) -> None:
    """Write canonical records, gzipped when the name ends in ``.gz`` (without a time stamp)."""
    data = "".join(f"{line}\n" for line in dump(requests)).encode()
    path = Path(path)
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)


def check_folder(folder: Path) -> None:
    """Whether a report can be written there, asked before the runs that it is to hold; makes nothing.

    Raises:
        EppError: it cannot.
    """
    whole = folder.absolute()
    there = next(path for path in (whole, *whole.parents) if path.exists() or path.is_symlink())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise EppError(f"--out {folder}: {there} is no folder that can be written to")


def save_report(folder: Path, results: bytes, page: str) -> str:
    """Write ``results.json`` and ``report.html``; says what was written.

    Raises:
        EppError: the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "results.json").write_bytes(results)
        (folder / "report.html").write_text(page, encoding="utf-8")
    except OSError as error:
        raise EppError(f"{folder}: {error.strerror}") from error
    return f"Written: {folder}/results.json, {folder}/report.html"
