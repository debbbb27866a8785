"""Records that hold what their readers ask of them, and a word about the lines that do not.

What a record means is told in docs/records.md. A line may be JSON and no record all the same: cut by hand, or
by a disk. Whoever reads a folder for people passes over it as over half a line, and says so once.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from epp.records.files import Place, Tail, parse_line, record_files

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

#: Unix times that a date can be made of, years 1970 to 9999.
_Moment = Annotated[float, msgspec.Meta(ge=0.0, lt=253_402_300_800.0)]
_Columns = dict[str, list[float]]
_Rows = dict[str, list[int]]
#: Columns of every record's signals that readers show.
_SIGNALS = frozenset(
    (
        "rtt_ms",
        "cached_tokens",
        "uncached_tokens",
        "queued_tokens",
        "pending_uncached_tokens",
        "running_requests",
    )
)
#: Columns that later records have all of, or none.
_OF_CONNECTIONS = frozenset(("cold_chance", "connect_ms", "upload_rounds"))


class _Request(msgspec.Struct):
    model: str
    prompt_tokens: int
    max_output_tokens: int | None = None
    affinity_key: str = ""
    usual_first_token_ms: float = 0.0


class _Decision(msgspec.Struct):
    id: str
    at: _Moment
    basis: str
    policy: str
    weights: dict[str, float]
    weights_version: str
    tie_band: float
    request: _Request
    endpoints: list[str]
    regions: list[str]
    engine_classes: list[str]
    signals: _Columns
    unknown: _Rows
    terms: _Columns
    costs: list[float]
    chosen: int
    fallbacks: list[int]
    tied: int
    probabilities: list[float]
    excluded: dict[str, list[str]]
    params: dict[str, Any] = {}
    arm: str = ""
    session: str = ""
    blocks: list[str] = []
    block_tokens: float = 0.0
    text_bytes: int = 0
    rtt_sources: _Rows = {}
    least_first_token_ms: float = 0.0


class _Outcome(msgspec.Struct):
    id: str
    at: _Moment
    endpoint: str
    cause: str
    status: int | None
    ttft_ms: float | None
    e2e_ms: float | None
    completion_tokens: int | None
    cached_tokens: int | None
    prompt_tokens: int | None = None
    served: str | None = None


def whole(record: Mapping[str, Any]) -> bool:
    """Whether a decision or an outcome holds what its readers ask of it; other kinds are theirs to judge."""
    try:
        if record["kind"] == "decision":
            return _fits(msgspec.convert(record, _Decision))
        if record["kind"] == "outcome":
            msgspec.convert(record, _Outcome)
    except msgspec.ValidationError:
        return False
    return True


def _fits(decision: _Decision) -> bool:
    """Every column has a value per endpoint, and every index is one."""
    count, signals = len(decision.endpoints), decision.signals
    lists: tuple[list[Any], ...] = (
        decision.regions,
        decision.engine_classes,
        decision.costs,
        decision.probabilities,
    )
    if not signals.keys() >= _SIGNALS or _OF_CONNECTIONS & signals.keys() not in (set(), _OF_CONNECTIONS):
        return False
    lengths = {len(column) for column in (*lists, *signals.values(), *decision.terms.values())}
    if lengths != {count}:
        return False
    return all(0 <= row < count for row in (decision.chosen, *decision.fallbacks))


def whole_records(place: Path) -> Iterator[dict[str, Any]]:
    """As `record_files.read_records`, without damaged ones; at its end it says on stderr how many lines were.

    Raises:
        EppError: there is nothing to read, or it was written under another schema.
    """
    damaged, first = 0, None
    try:
        for path in record_files(place):
            for number, line in enumerate(Tail(path).lines(), 1):
                record = parse_line(line, path)
                if record is not None and whole(record):
                    yield record
                    continue
                damaged, first = damaged + 1, first or Place(path, number)
    finally:
        if damaged:
            lines = "1 damaged line was" if damaged == 1 else f"{damaged} damaged lines were"
            print(f"epp: {lines} passed over, the first is {first}", file=sys.stderr)
