"""Flight-recorder records as a trace: what was served is a load to replay.

Owns the reading of what a decision's record says of its request: when, which session, how long, and the
coarse prefix-cumulative block ids. Of the rest of a record it knows nothing. Pure: records come in.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from epp.lab.compare.trace import TraceError, TraceRequest, in_time_order

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: Answer length where neither the engine nor the client said one.
DEFAULT_OUTPUT_TOKENS = 128
_BLOCK_TOKENS = 256  # where no record has blocks


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
    """Requests in the order of their decisions, open loop.

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
    block_tokens = max(1, round(statistics.median(sizes))) if sizes else _BLOCK_TOKENS
    start_s = min(d.at for d in decisions)
    numbers: dict[str, int] = {}
    return in_time_order([_request(d, outcomes.get(d.id), start_s, block_tokens, numbers) for d in decisions])


def _request(
    decision: _Decision, outcome: _Outcome | None, start_s: float, block_tokens: int, numbers: dict[str, int]
) -> TraceRequest:
    request = decision.request
    output_tokens = _told(outcome.completion_tokens if outcome else None) or request.max_output_tokens
    prompt_tokens = _told(outcome.prompt_tokens if outcome else None) or request.prompt_tokens
    session = decision.session or request.affinity_key or decision.id
    return TraceRequest(
        at_ms=round((decision.at - start_s) * 1000.0, 3),
        session=session,
        user=session,
        prompt_tokens=prompt_tokens,
        output_tokens=max(1, output_tokens or DEFAULT_OUTPUT_TOKENS),
        block_ids=tuple(numbers.setdefault(block, len(numbers)) for block in decision.blocks),
        block_tokens=block_tokens,
    )


def _told(count: int | None) -> int:
    """An engine's count; 0 where it told none, or one that none can be."""
    return max(0, count or 0)
