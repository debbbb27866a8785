"""Traces on disk: telling formats apart, gzipped or not, and reading each into canonical records.

Times are relative to the trace's start; what a format does not say is derived by a rule named in its reader,
with keyed draws only.
"""

from __future__ import annotations

import gzip
import itertools
import math
import statistics
import zlib
from collections import Counter
from dataclasses import replace
from datetime import datetime
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec

from epp.keyed_uniform import keyed_uniform
from epp.records.files import DAMAGED, read_records
from epp_lab.compare.trace import TraceError, TraceRequest, in_time_order, select

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

_T = TypeVar("_T")
_Length = Annotated[int, msgspec.Meta(ge=0, le=10**9)]

_GZIP_MAGIC = b"\x1f\x8b"
_DAY_MS = 86_400_000.0
#: Longer ones have their times in other units: replaying them would take for ever, simulated or not.
_LONGEST_MS = 366 * _DAY_MS


def load_trace(
    path: str | Path,
    *,
    seed: int = 0,
    tick_ms: float | None = None,
    from_s: float = 0.0,
    seconds: float = 0.0,
    max_prompt_tokens: int | None = None,
) -> tuple[TraceRequest, ...]:
    """Read a trace, or a window of it, in time order; its format is known by the keys of its first line.

    Files are read as streams: what is outside the window, or too long, is not held. The recorder's records
    are the exception, whose requests and outcomes lie apart.

    Args:
        path: Mooncake rows, canonical records or the flight recorder's, one JSON object a
            line; Azure's CSV; or a folder of the recorder's files.
        seed: keys the draws that spread arrivals.
        tick_ms: what the times of Mooncake rows are multiples of; None to detect it.
        from_s: the window's start in the trace's own time; times count from it.
        seconds: the window's length, 0 for the rest of the trace.
        max_prompt_tokens: longer prompts are dropped.

    Raises:
        TraceError: no such file, an unknown format, a line that does not fit its format, times that
            cannot be milliseconds, or an empty window; names the file.
    """
    last_ms = 0.0

    def all_requests() -> Iterator[TraceRequest]:
        nonlocal last_ms
        for request in _read(Path(path), seed, tick_ms):
            last_ms = max(last_ms, request.at_ms)
            yield request

    from_ms, until_ms = from_s * 1000.0 or -inf, (from_s + (seconds or inf)) * 1000.0
    try:
        kept = select(all_requests(), from_ms=from_ms, until_ms=until_ms, max_prompt_tokens=max_prompt_tokens)
        requests = in_time_order(kept)
    except TraceError as error:
        raise TraceError(f"{path}: {error}") from error
    if last_ms > _LONGEST_MS:
        days = last_ms / _DAY_MS
        raise TraceError(
            f"{path}: the last request is {days:.4g} days after the start: are its times milliseconds?"
        )
    if from_s * 1e3 > last_ms:
        raise TraceError(
            f"{path}: the window starts at {from_s:g} s, and the trace ends at {last_ms / 1e3:g} s"
        )
    return requests


def _read(path: Path, seed: int, tick_ms: float | None) -> Iterable[TraceRequest]:
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
        return read_mooncake(rows, seed=seed, tick_ms=tick_ms)
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
            magic = head.read(4)
        if magic == b"PAR1":
            raise TraceError("Parquet is not read: write its rows as JSONL, with their times as `timestamp`")
        packed = magic[:2] == _GZIP_MAGIC
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
#: Rows at a file's start that its step of time and its block size are read off.
_HEAD_ROWS = 1000
_LEAST_TICKS, _LEAST_TICK_MS, _OFF_TICK = 3, 2.0, 0.01


_Id = str | int | None


class _MooncakeRow(msgspec.Struct):
    timestamp: float
    input_length: _Length
    output_length: _Length
    hash_ids: list[int | str]
    session_id: _Id = None
    session: _Id = None
    conversation_id: _Id = None
    user_id: _Id = None
    user: _Id = None
    token_hash: _Id = None

    def names(self, number: int) -> tuple[str, str]:
        """Return session and user; a row that has neither and shares nothing has its number's."""
        user = _first(self.user_id, self.user, self.token_hash)
        shared = self.hash_ids[:2] if user else self.hash_ids[1:2]
        opening = f"{user}m{shared[-1]}" if shared else user or f"row-{number}"
        session = _first(self.session_id, self.session, self.conversation_id) or opening
        return session, user or session


def _first(*ids: _Id) -> str:
    return next((str(name) for name in ids if name not in (None, "")), "")


def read_mooncake(
    lines: Iterable[str],
    *,
    seed: int = 0,
    tick_ms: float | None = None,
) -> Iterator[TraceRequest]:
    """Read rows of Mooncake's JSONL format, open loop, in the file's order.

    Times count from the first row's. Where they stand on ticks (source [T]: 3 s in the published
    conversation trace), rows move within theirs and keep their order: draws uniform in [0, ``tick_ms``) make
    arrivals Poisson-like (squared coefficient of variation 9.2 -> 1.0). Other times stay as they are.
    The block size, which the format does not say, is the least power of two with which, at the file's start,
    the longest row of the most ids has enough.

    Users and sessions are the rows' own where they have any, under the names of `_MooncakeRow`
    (``token_hash`` is ART-Chat's user, source [G]). Rows without a session count as one where user and second
    block are the same: the first block is one template for all rows. Rows without a user are their session's.

    Raises:
        TraceError: a line is not a row of this format.
    """
    decoder = msgspec.json.Decoder(_MooncakeRow)
    rows = ((n, _decode_line(line, n, decoder)) for n, line in enumerate(lines, 1) if line.strip())
    head = list(itertools.islice(rows, _HEAD_ROWS))
    block_tokens = _mooncake_block_tokens(row for _, row in head)
    start_ms = head[0][1].timestamp if head else 0.0
    if tick_ms is None:
        tick_ms = _tick_ms([row.timestamp - start_ms for _, row in head])
    ticks = itertools.groupby(itertools.chain(head, rows), key=lambda numbered: numbered[1].timestamp)
    for at_ms, tick in ticks:
        together = list(tick)
        delays_ms = sorted(tick_ms * keyed_uniform(seed, f"row-{n}", "tick") for n, _ in together)
        for delay_ms, (number, row) in zip(delays_ms, together, strict=True):
            session, user = row.names(number)
            yield TraceRequest(
                at_ms=at_ms - start_ms + delay_ms,
                session=session,
                user=user,
                prompt_tokens=max(1, row.input_length),
                output_tokens=max(1, row.output_length),
                block_ids=tuple(
                    i if isinstance(i, int) else int.from_bytes(i.encode()) for i in row.hash_ids
                ),
                block_tokens=block_tokens,
            )


def _tick_ms(times_ms: Sequence[float]) -> float:
    """Return the step that times stand on, 0 where there is none.

    On ticks, half of the rows share their time with another, and the gaps between times are multiples of the
    middle one, but for 1 % of it (source [T]: 2,997 to 3,003 ms).
    """
    counts = Counter(times_ms)
    gaps_ms = [later - earlier for earlier, later in pairwise(sorted(counts))]
    step_ms = statistics.median(gaps_ms) if len(gaps_ms) >= _LEAST_TICKS else 0.0
    alone = sum(count == 1 for count in counts.values())
    if step_ms < _LEAST_TICK_MS or 2 * alone > len(times_ms):
        return 0.0
    off_ms = max(abs(math.remainder(gap_ms, step_ms)) for gap_ms in gaps_ms)
    return step_ms if off_ms <= _OFF_TICK * step_ms else 0.0


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
#: Share of a session's next requests that wait for answers where clients do; the gaps of open-loop sessions
#: (source [T]: median 3.3 s) are shorter than an answer far more often.
_WAITING = 0.8

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
    e2e_ms: float | None = None


def read_flight_records(records: Iterable[Mapping[str, Any]]) -> tuple[TraceRequest, ...]:
    """Read requests in the order of their decisions.

    Times are those of the decisions. Where `_WAITING` of the requests that follow one of their session came
    after its answer, those follow it in closed loop, after the recorded pause; else all is open loop. The
    answer's length is the engine's count, else the client's limit. A prompt is as long as the engine counted
    it, else as the picker did; counts below 0 are none. Requests without a prompt (unknown path, a body that
    was not understood) are left out: there is nothing to replay.
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
    decisions.sort(key=lambda decision: decision.at)
    start_s = decisions[0].at
    numbers: dict[str, int] = {}
    answered: dict[str, tuple[int, float]] = {}  # by session: its last request, and when that ended
    requests, thinks_ms = [], {}
    for index, decision in enumerate(decisions):
        request, outcome = decision.request, outcomes.get(decision.id, _Outcome(""))
        session = decision.session or request.affinity_key or decision.id
        output_tokens = max(0, outcome.completion_tokens or 0) or request.max_output_tokens
        found = TraceRequest(
            at_ms=round((decision.at - start_s) * 1000.0, 3),
            session=session,
            user=session,
            prompt_tokens=max(0, outcome.prompt_tokens or 0) or request.prompt_tokens,
            output_tokens=max(1, output_tokens or DEFAULT_OUTPUT_TOKENS),
            max_output_tokens=request.max_output_tokens or None,
            block_ids=tuple(numbers.setdefault(block, len(numbers)) for block in decision.blocks),
            block_tokens=block_tokens,
        )
        requests.append(found)
        if session in answered:
            before, ended_ms = answered.pop(session)
            thinks_ms[index] = before, found.at_ms - ended_ms
        if outcome.e2e_ms is not None:
            answered[session] = index, found.at_ms + outcome.e2e_ms
    waiting = {index: found for index, found in thinks_ms.items() if found[1] >= 0.0}
    if len(waiting) >= _WAITING * len(thinks_ms):
        for index, (before, think_ms) in waiting.items():
            requests[index] = replace(requests[index], after=before, think_ms=think_ms)
    return tuple(requests)
