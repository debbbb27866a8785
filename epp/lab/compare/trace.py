"""The canonical trace record, and readers from public formats into it.

Owns: what one recorded or generated request is, and how each public format becomes that. Must not know: files
(lines come in), sockets, the wall clock. Readers are iterators over lines; times are relative to the trace's
start; what a format does not say is derived by a rule named in the reader, with keyed draws only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, TypeVar

import msgspec

from epp.errors import EppError
from epp.keyed_uniform import keyed_uniform
from epp.records.files import DAMAGED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_T = TypeVar("_T")

# What readers take; no context is nearly as long. Values made in Python are not checked.
Tokens = Annotated[int, msgspec.Meta(ge=1, le=10**9)]
Length = Annotated[int, msgspec.Meta(ge=0, le=10**9)]
Milliseconds = Annotated[float, msgspec.Meta(ge=0)]


class TraceError(EppError):
    """A line of a trace cannot be read; the message names the line and the problem."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request of a trace.

    Attributes:
        at_ms: intended send time since the start of the trace. For a request with ``after`` it is nominal:
            what an open-loop replay uses; a closed-loop replay waits for the answer instead.
        session: requests of one conversation share it.
        user: who sent it; sessions of one user may share content.
        prompt_tokens: length of the prompt.
        output_tokens: output limit to ask for.
        block_ids: one id per run of ``block_tokens`` prompt tokens. Ids are prefix-cumulative: equal ids at
            one position mean equal content up to there. The last block may be partial (its content is then
            the head of that id's content); tokens beyond the last id are shared with nobody.
        block_tokens: tokens per block.
        after: index (position in the trace) of the request whose answer this one waits for, None for a
            request that is sent at ``at_ms`` whatever happens.
        think_ms: pause between that answer and this request.
        turn_starts: token offsets at which a new message starts, rising; the system message comes before the
            first, then user and assistant alternate, the last is the user's. Empty when not known.
    """

    at_ms: Milliseconds
    session: str
    user: str
    prompt_tokens: Tokens
    output_tokens: Tokens
    block_ids: tuple[int, ...]
    block_tokens: Tokens
    after: int | None = None
    think_ms: Milliseconds = 0.0
    turn_starts: tuple[int, ...] = ()


def in_time_order(requests: Sequence[TraceRequest]) -> tuple[TraceRequest, ...]:
    """The same requests sorted by ``at_ms`` (ties in given order), ``after`` pointing to the new positions.

    Raises:
        TraceError: a request would come before the one it waits for.
    """
    order = sorted(range(len(requests)), key=lambda i: requests[i].at_ms)
    position = {old: new for new, old in enumerate(order)}
    out = []
    for new, old in enumerate(order):
        request = requests[old]
        if request.after is not None:
            after = position[request.after]
            if after >= new:
                raise TraceError(f"request {old} waits for {request.after}, which is sent later")
            request = replace(request, after=after)
        out.append(request)
    return tuple(out)


def select(
    requests: Sequence[TraceRequest], *, until_ms: float | None = None, max_prompt_tokens: int | None = None
) -> tuple[TraceRequest, ...]:
    """Requests that start before ``until_ms`` with prompts of at most ``max_prompt_tokens``.

    A follower of a dropped request follows the nearest kept request before it, with the think times in
    between added up; when none is kept it starts its session at its nominal time.
    """
    kept: list[TraceRequest] = []
    new_index: dict[int, int] = {}
    for index, request in enumerate(requests):
        late = until_ms is not None and request.at_ms >= until_ms
        if late or (max_prompt_tokens is not None and request.prompt_tokens > max_prompt_tokens):
            continue
        after, think_ms = request.after, request.think_ms
        while after is not None and after not in new_index:
            think_ms += requests[after].think_ms
            after = requests[after].after
        if after is None:
            think_ms = 0.0
        new_index[index] = len(kept)
        kept.append(replace(request, after=None if after is None else new_index[after], think_ms=think_ms))
    return tuple(kept)


def decode_line(line: str, number: int, decoder: msgspec.json.Decoder[_T]) -> _T:
    """A line as its format has it.

    Raises:
        TraceError: it is not of that format.
    """
    try:
        return decoder.decode(line)
    except DAMAGED as error:
        raise TraceError(f"line {number}: {error}") from error


def _checked_ids(ids: Sequence[int], number: int) -> tuple[int, ...]:
    if ids and not (min(ids) >= -(2**63) and max(ids) < 2**64):
        raise TraceError(f"line {number}: a block id has more than 64 bits")
    return tuple(ids)


def _scaled(tokens: int, scale: int) -> int:
    return max(1, round(tokens / scale))


# ---- Mooncake ------------------------------------------------------------------------------------------

MOONCAKE_BLOCK_TOKENS = 512
# Timestamps of the published conversation trace stand on 3 s ticks (source [T]).
MOONCAKE_TICK_MS = 3000.0


class _MooncakeRow(msgspec.Struct):
    timestamp: float
    input_length: Length
    output_length: Length
    hash_ids: list[int]
    session_id: str = ""


def read_mooncake(
    lines: Iterable[str],
    *,
    seed: int = 0,
    tick_ms: float = MOONCAKE_TICK_MS,
    scale: int = 1,
) -> Iterator[TraceRequest]:
    """Rows of Mooncake's JSONL format, open loop, in time order.

    ``timestamp`` is a tick, counted from the first row's: each row moves by a keyed draw uniform in
    [0, ``tick_ms``), which makes the arrivals of the published trace Poisson-like (squared coefficient of
    variation 9.2 -> 1.0). ``scale`` divides all lengths and the block size. The format does not say that
    size: it is the least power of two with which the longest row of the most ids has enough. Nor has it
    sessions: rows that share the block after the first (the first is one template for all rows) count as one
    session and one user, unless a row names its session itself (``session_id``, as LMCache's agent trace
    does).

    Raises:
        TraceError: a line is not a row of this format, or ticks run backwards.
    """
    decoder = msgspec.json.Decoder(_MooncakeRow)
    rows = [
        (number, decode_line(line, number, decoder)) for number, line in enumerate(lines, 1) if line.strip()
    ]
    block_tokens = _block_tokens(row for _, row in rows)
    if block_tokens % scale:
        raise TraceError(f"scale {scale} does not divide the block of {block_tokens} tokens")
    tick: float | None = None
    waiting: list[TraceRequest] = []
    for number, row in rows:
        if tick is not None and row.timestamp < tick:
            raise TraceError(f"line {number}: timestamp {row.timestamp} is before its predecessor's")
        if row.timestamp != tick:
            yield from sorted(waiting, key=lambda r: r.at_ms)
            waiting.clear()
            tick = row.timestamp
        key = f"row-{number}"
        session = row.session_id or (f"m{row.hash_ids[1]}" if len(row.hash_ids) > 1 else key)
        waiting.append(
            TraceRequest(
                at_ms=row.timestamp - rows[0][1].timestamp + tick_ms * keyed_uniform(seed, key, "tick"),
                session=session,
                user=session,
                prompt_tokens=_scaled(row.input_length, scale),
                output_tokens=_scaled(row.output_length, scale),
                block_ids=_checked_ids(row.hash_ids, number),
                block_tokens=block_tokens // scale,
            )
        )
    yield from sorted(waiting, key=lambda r: r.at_ms)


def _block_tokens(rows: Iterable[_MooncakeRow]) -> int:
    longest = max(rows, key=lambda row: (len(row.hash_ids), row.input_length), default=None)
    if longest is None or not longest.hash_ids or not longest.input_length:
        return MOONCAKE_BLOCK_TOKENS
    return 1 << (-(-longest.input_length // len(longest.hash_ids)) - 1).bit_length()


# ---- Azure's LLM inference traces --------------------------------------------------------------------------

AZURE_HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"
_AZURE_BLOCK_TOKENS = 16


def read_azure(lines: Iterable[str]) -> Iterator[TraceRequest]:
    """Rows of Azure's 2023 CSV traces: arrival and lengths, in time order, open loop.

    They hold no prefix data, and none is invented: prompts share nothing, and each row is a session.

    Raises:
        TraceError: a line is not a row of this format, or time runs backwards.
    """
    start: datetime | None = None
    last_ms = 0.0
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
        if at_ms < last_ms:
            raise TraceError(f"line {number}: {stamp} is before its predecessor's time")
        last_ms = at_ms
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


def dump(requests: Iterable[TraceRequest]) -> Iterator[str]:
    """Lines of the canonical format: one JSON object a request, keys as in `TraceRequest`."""
    encoder = msgspec.json.Encoder()
    for request in requests:
        yield encoder.encode(request).decode()


def read_canonical(lines: Iterable[str]) -> Iterator[TraceRequest]:
    """The inverse of `dump`.

    Raises:
        TraceError: a line is not a record, waits for a request that has not come yet, or has blocks of
            another size than those before.
    """
    decoder = msgspec.json.Decoder(TraceRequest)
    index = block_tokens = 0
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        request = decode_line(line, number, decoder)
        if request.after is not None and not 0 <= request.after < index:
            raise TraceError(f"line {number}: waits for request {request.after}, which has not come yet")
        block_tokens = block_tokens or request.block_tokens
        if request.block_tokens != block_tokens:
            raise TraceError(
                f"line {number}: blocks of {request.block_tokens} tokens after some of {block_tokens}"
            )
        _checked_ids(request.block_ids, number)
        index += 1
        yield request
