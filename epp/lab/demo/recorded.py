"""What the picker's records say of a demo's requests, beside what the load generator's own clock saw."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.table import Table

from epp.lab.compare.stats import percentile
from epp.records.files import read_records
from epp.records.schema import join

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from epp.lab.compare.load import RequestResult

    Pair = tuple[RequestResult, Mapping[str, Any]]

#: Facts shown: name, title, digits.
_SHOWN = (
    ("ttft_ms", "TTFT ms", 1),
    ("e2e_ms", "E2E ms", 1),
    ("itl_ms", "ITL ms", 2),
    ("cached_tokens", "cached tokens", 0),
)


def pair(folder: Path, results: Sequence[RequestResult]) -> list[Pair]:
    """Pair results that ended well with the outcome on record, by decision id."""
    outcomes = {
        request.decision["id"]: request.outcome
        for request in join(read_records(folder))
        if request.outcome is not None
    }
    return [
        (seen, outcomes[seen.decision_id]) for seen in results if seen.ok and seen.decision_id in outcomes
    ]


def both(pairs: Sequence[Pair], fact: str) -> list[tuple[float, float]]:
    """List the client's and the record's values of a fact, where both have one.

    The client counts latencies from the moment at which it should have sent; what it was late with no
    picker can know.
    """
    found = []
    for seen, outcome in pairs:
        client, record = getattr(seen, fact), outcome.get(fact)
        if client is not None and record is not None:
            found.append((client - (seen.slip_ms if fact in ("ttft_ms", "e2e_ms") else 0.0), record))
    return found


def recorded_table(pairs: Sequence[Pair]) -> Table:
    """Lay out a row a fact: what is on record, the client's median, and how far they are apart."""
    table = Table(title=f"on record of {len(pairs)} requests, beside the client's own clock")
    table.add_column("")
    for title in ("p50", "p95", "client p50", "apart p50", "apart p99"):
        table.add_column(title, justify="right")
    for fact, title, digits in _SHOWN:
        values = both(pairs, fact)
        client, record = [ours for ours, _ in values], [theirs for _, theirs in values]
        apart = [abs(ours - theirs) for ours, theirs in values]
        cells = [percentile(record, 50), percentile(record, 95), percentile(client, 50),
                 percentile(apart, 50), percentile(apart, 99)]  # fmt: skip
        table.add_row(title, *(f"{value:,.{digits}f}" if values else "-" for value in cells))
    return table
