"""Traces on disk: telling formats apart, gzipped or not, and reading each into canonical records.

Times are relative to the trace's start; what a format does not say is derived by a rule named in its reader,
with keyed draws only.
"""

from __future__ import annotations

import gzip
import itertools
import statistics
import zlib
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec

from epp.keyed_uniform import keyed_uniform
from epp.lab.compare.trace import TraceError, TraceRequest, in_time_order
from epp.records.files import DAMAGED, read_records

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_T = TypeVar("_T")
_Length = Annotated[int, msgspec.Meta(ge=0, le=10**9)]

_GZIP_MAGIC = b"\x1f\x8b"
_DAY_MS = 86_400_000.0
#: Longer ones have their times in other units: replaying them would take for ever, simulated or not.
_LONGEST_MS = 366 * _DAY_MS


def load_trace(path: str | Path, *, seed: int = 0, scale: int = 1) -> tuple[TraceRequest, ...]:
    """Read a whole trace in time order; its format is known by the keys of its first line.

    Args:
        path: Mooncake rows, canonical records or the flight recorder's, one JSON object a
            line; Azure's CSV; or a folder of the recorder's files.
        seed: keys the draws that spread arrivals.
        scale: divides lengths and block sizes (canonical records are taken as they are).

    Raises:
        TraceError: no such file, an unknown format, a line that does not fit its format, or times that
            cannot be milliseconds; names the file.
    """
    try:
        requests = in_time_order(tuple(_read(Path(path), seed, scale)))
    except TraceError as error:
        raise TraceError(f"{path}: {error}") from error
    if requests and requests[-1].at_ms > _LONGEST_MS:
        days = requests[-1].at_ms / _DAY_MS
        raise TraceError(
            f"{path}: the last request is {days:.4g} days after the start: are its times milliseconds?"
        )
    return requests


def _read(path: Path, seed: int, scale: int) -> Iterable[TraceRequest]:
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
        words = f"neither a JSON object nor the header of Azure's CSV, {AZURE_HEADER}"
        raise TraceError(f"line 1 is {words}: {first.strip()[:60]!r}") from error
    keys = set(row) if isinstance(row, dict) else set()
    if "hash_ids" in keys:
        # Rows that name their sessions carry real times; only the original's stand on ticks.
        tick_ms = 0.0 if "session_id" in keys else MOONCAKE_TICK_MS
        return read_mooncake(rows, seed=seed, scale=scale, tick_ms=tick_ms)
    if {"at_ms", "block_ids"} <= keys:
        return read_canonical(rows)
    if {"kind", "schema"} <= keys:
        return read_flight_records(read_records(path))
    raise TraceError(
        f"unknown format: the first line has keys {sorted(keys)}; "
        "known are Mooncake rows, Azure's CSV, canonical records and the recorder's"
    )


def _lines(path: Path) -> Iterator[str]:
    """Read lines of a text file; gzip is known by its first bytes, not by the name; byte order marks go."""
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


def _decode_line(line: str, number: int, decoder: msgspec.json.Decoder[_T]) -> _T:
    """Decode a line of a format.

    Raises:
        TraceError: it is not of that format.
    """
    try:
        return decoder.decode(line)
    except DAMAGED as error:
        raise TraceError(f"line {number}: {error}") from error


# ---- Mooncake ------------------------------------------------------------------------------------------

MOONCAKE_BLOCK_TOKENS = 512
# Timestamps of the published conversation trace stand on 3 s ticks (source [T]).
MOONCAKE_TICK_MS = 3000.0


class _MooncakeRow(msgspec.Struct):
    timestamp: float
    input_length: _Length
    output_length: _Length
    hash_ids: list[int]
    session_id: str = ""


def read_mooncake(
    lines: Iterable[str],
    *,
    seed: int = 0,
    tick_ms: float = MOONCAKE_TICK_MS,
    scale: int = 1,
) -> Iterator[TraceRequest]:
    """Read rows of Mooncake's JSONL format, open loop, not yet in time order.

    ``timestamp`` is a tick, counted from the first row's: each row moves by a keyed draw uniform in
    [0, ``tick_ms``), which makes the arrivals of the published trace Poisson-like (squared coefficient of
    variation 9.2 -> 1.0). ``scale`` divides all lengths and the block size. The format does not say that
    size: it is the least power of two with which the longest row of the most ids has enough. Nor has it
    sessions: rows that share the block after the first (the first is one template for all rows) count as one
    session and one user, unless a row names its session itself (``session_id``, as LMCache's agent trace
    does).

    Raises:
        TraceError: a line is not a row of this format.
    """
    decoder = msgspec.json.Decoder(_MooncakeRow)
    rows = [
        (number, _decode_line(line, number, decoder)) for number, line in enumerate(lines, 1) if line.strip()
    ]
    block_tokens = _mooncake_block_tokens(row for _, row in rows)
    if block_tokens % scale:
        raise TraceError(f"scale {scale} does not divide the block of {block_tokens} tokens")
    start_ms = rows[0][1].timestamp if rows else 0.0
    for number, row in rows:
        key = f"row-{number}"
        session = row.session_id or (f"m{row.hash_ids[1]}" if len(row.hash_ids) > 1 else key)
        yield TraceRequest(
            at_ms=row.timestamp - start_ms + tick_ms * keyed_uniform(seed, key, "tick"),
            session=session,
            user=session,
            prompt_tokens=max(1, round(row.input_length / scale)),
            output_tokens=max(1, round(row.output_length / scale)),
            block_ids=tuple(row.hash_ids),
            block_tokens=block_tokens // scale,
        )


def _mooncake_block_tokens(rows: Iterable[_MooncakeRow]) -> int:
    longest = max(rows, key=lambda row: (len(row.hash_ids), row.input_length), default=None)
    if longest is None or not longest.hash_ids or not longest.input_length:
        return MOONCAKE_BLOCK_TOKENS
    return 1 << (-(-longest.input_length // len(longest.hash_ids)) - 1).bit_length()


# ---- Azure's LLM inference traces --------------------------------------------------------------------------

AZURE_HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"
_AZURE_BLOCK_TOKENS = 16


def read_azure(lines: Iterable[str]) -> Iterator[TraceRequest]:
    """Read rows of Azure's 2023 CSV traces: arrival and lengths, open loop.

    They hold no prefix data, and none is invented: prompts share nothing, and each row is a session.

    Raises:
        TraceError: a line is not a row of this format.
    """
    start: datetime | None = None
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.strip() == AZURE_HEADER:
            continue
        try:
            stamp, prompt, output = line.strip().split(",")
            at, prompt_tokens, output_tokens = datetime.fromisoformat(stamp), int(prompt), int(output)
            start = start or at
            at_ms = (at - start).total_seconds() * 1000.0
        except (ValueError, TypeError) as error:  # a zone in some rows and not in others is the latter
            raise TraceError(f"line {number}: not a row of {AZURE_HEADER}: {error}") from error
        name = f"row-{number}"
        yield TraceRequest(
            at_ms=at_ms,
            session=name,
            user=name,
            prompt_tokens=max(1, prompt_tokens),
            output_tokens=max(1, output_tokens),
            block_ids=(),
            block_tokens=_AZURE_BLOCK_TOKENS,
        )


# ---- canonical JSONL -----------------------------------------------------------------------------------


def read_canonical(lines: Iterable[str]) -> Iterator[TraceRequest]:
    """Read one JSON object a request, keys as in `TraceRequest`.

    Raises:
        TraceError: a line is not a record, or waits for a request that has not come yet.
    """
    decoder = msgspec.json.Decoder(TraceRequest)
    index = 0
    for number, line in enumerate(lines, 1):
        if line.strip():
            request = _decode_line(line, number, decoder)
            if request.after is not None and not 0 <= request.after < index:
                raise TraceError(f"line {number}: waits for request {request.after}, which has not come yet")
            index += 1
            yield request


# ---- the flight recorder's records ---------------------------------------------------------------------

#: Answer length where neither the engine nor the client said one.
DEFAULT_OUTPUT_TOKENS = 128
_RECORDER_BLOCK_TOKENS = 256  # where no record has blocks

_BlockTokens = Annotated[float, msgspec.Meta(ge=0, le=1e9)]


class _Request(msgspec.Struct):
    prompt_tokens: int
    max_output_tokens: int | None = None
    affinity_key: str = ""


class _Decision(msgspec.Struct):
    id: str
    at: float
    request: _Request
    session: str = ""
    blocks: list[str] = []
    block_tokens: _BlockTokens = 0.0


class _Outcome(msgspec.Struct):
    id: str
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


def read_flight_records(records: Iterable[Mapping[str, Any]]) -> tuple[TraceRequest, ...]:
    """Read requests in the order of their decisions, open loop.

    Times are those of the decisions. The answer's length is the engine's count, else the client's limit. A
    prompt is as long as the engine counted it, else as the picker did; counts below 0 are none. Requests
    without a prompt (unknown path, a body that was not understood) are left out: there is nothing to replay.
    One block size holds for all, the median, since a picker's idea of bytes per token moves as it learns.
    Requests without a recorded session are grouped by their affinity key, else each is its own.

    Raises:
        TraceError: a record is not what the recorder writes, or no decision has a prompt.
    """
    decisions: list[_Decision] = []
    outcomes: dict[str, _Outcome] = {}
    for number, record in enumerate(records, 1):
        try:
            if record.get("kind") == "decision":
                decisions.append(msgspec.convert(record, _Decision))
            elif record.get("kind") == "outcome":
                outcome = msgspec.convert(record, _Outcome)
                outcomes[outcome.id] = outcome
        except msgspec.ValidationError as error:
            raise TraceError(f"record {number}: {error}") from error
    decisions = [d for d in decisions if d.request.prompt_tokens > 0]
    if not decisions:
        raise TraceError("no recorded decision has a prompt: nothing can be replayed")
    sizes = [d.block_tokens for d in decisions if d.blocks and d.block_tokens > 0]
    block_tokens = max(1, round(statistics.median(sizes))) if sizes else _RECORDER_BLOCK_TOKENS
    start_s = min(d.at for d in decisions)
    numbers: dict[str, int] = {}
    requests = []
    for decision in decisions:
        request, outcome = decision.request, outcomes.get(decision.id, _Outcome(""))
        session = decision.session or request.affinity_key or decision.id
        output_tokens = max(0, outcome.completion_tokens or 0) or request.max_output_tokens
        found = TraceRequest(
            at_ms=round((decision.at - start_s) * 1000.0, 3),
            session=session,
            user=session,
            prompt_tokens=max(0, outcome.prompt_tokens or 0) or request.prompt_tokens,
            output_tokens=max(1, output_tokens or DEFAULT_OUTPUT_TOKENS),
            block_ids=tuple(numbers.setdefault(block, len(numbers)) for block in decision.blocks),
            block_tokens=block_tokens,
        )
        requests.append(found)
    return in_time_order(requests)
