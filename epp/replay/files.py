"""Traces and reports on disk: the only module of this folder that opens files.

Owns: telling formats apart and reading lines, gzipped or not; where a comparison is written. Formats
themselves are in `epp.replay.trace` and `epp.replay.agent_sessions`.
"""

from __future__ import annotations

import gzip
import itertools
import math
import os
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from epp.decide.record_files import read_records
from epp.errors import EppError
from epp.replay.agent_sessions import AgentOptions, read_agent_sessions
from epp.replay.flight_records import read_flight_records
from epp.replay.trace import (
    AZURE_HEADER,
    MOONCAKE_BLOCK_TOKENS,
    MOONCAKE_TICK_MS,
    TraceError,
    TraceRequest,
    dump,
    in_time_order,
    read_azure,
    read_canonical,
    read_mooncake,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_GZIP_MAGIC = b"\x1f\x8b"


def read_lines(path: str | Path) -> Iterator[str]:
    """Lines of a text file; gzip is told by its first bytes, not by the name.

    Raises:
        TraceError: the file cannot be opened or is not UTF-8 text.
    """
    path = Path(path)
    try:
        with path.open("rb") as head:
            packed = head.read(2) == _GZIP_MAGIC
        with gzip.open(path, "rt", encoding="utf-8") if packed else path.open(encoding="utf-8") as lines:
            yield from lines
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise TraceError(f"{path}: {error}") from error


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
        TraceError: no such file, an unknown format, or a line that does not fit its format.
    """
    if Path(path).is_dir() or Path(path).suffix == ".zst":
        return read_flight_records(read_records(Path(path)))
    lines = read_lines(path)
    first = next((line for line in lines if line.strip()), None)
    if first is None:
        raise TraceError(f"{path}: the file is empty")
    if first.strip() == AZURE_HEADER:
        return tuple(_located(path, read_azure(itertools.chain([first], lines))))
    try:
        row = msgspec.json.decode(first)
    except msgspec.DecodeError as error:
        if not first.lstrip().startswith(("{", "[")):
            words = f"neither a JSON object nor the header of Azure's CSV, {AZURE_HEADER}"
            raise TraceError(f"{path}: line 1 is {words}: {first.strip()[:60]!r}") from error
        raise TraceError(f"{path}: line 1: {error}") from error
    keys = set(row) if isinstance(row, dict) else set()
    rows = itertools.chain([first], lines)
    requests: Iterable[TraceRequest]
    if "hash_ids" in keys and isinstance(row, dict):
        block_tokens = _block_tokens(row)
        # Rows that name their sessions carry real times; only the original's stand on ticks.
        tick_ms = 0.0 if "session_id" in keys else MOONCAKE_TICK_MS
        requests = read_mooncake(rows, seed=seed, scale=scale, block_tokens=block_tokens, tick_ms=tick_ms)
    elif {"block", "requests"} <= keys:
        requests = read_agent_sessions(rows, agents or AgentOptions(seed=seed, scale=scale))
    elif {"at_ms", "block_ids"} <= keys:
        requests = read_canonical(rows)
    elif {"kind", "schema"} <= keys:
        requests = read_flight_records(read_records(Path(path)))
    else:
        raise TraceError(
            f"{path}: unknown format: the first line has keys {sorted(keys)}; "
            "known are Mooncake rows, agent sessions, Azure's CSV, canonical records and the recorder's"
        )
    return in_time_order(tuple(_located(path, requests)))


def _located(path: str | Path, requests: Iterable[TraceRequest]) -> Iterator[TraceRequest]:
    """The requests; a problem among them names the file."""
    try:
        yield from requests
    except TraceError as error:
        raise TraceError(f"{path}: {error}") from error


def _block_tokens(row: Mapping[str, Any]) -> int:
    """Block size of Mooncake-like rows, which do not say it: the power of two that explains their ids."""
    try:
        tokens = row["input_length"] / len(row["hash_ids"])
        return int(2 ** math.ceil(math.log2(max(1.0, tokens))))
    except (KeyError, TypeError, ZeroDivisionError):  # the reader says what is wrong with the line
        return MOONCAKE_BLOCK_TOKENS


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
    there = next(path for path in (whole, *whole.parents) if path.exists())
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
