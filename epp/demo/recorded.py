"""What the picker's records say of the demo's requests, beside what the load generator's own clock saw."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.table import Table

from epp.decide.record_files import read_records
from epp.decide.record_schema import join
from epp.replay.stats import percentile

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from epp.replay.load import RequestResult


@dataclass(frozen=True, slots=True)
class Pair:
    """One request by both accounts.

    Attributes:
        seen: the client's.
        outcome: the record of its outcome.
    """

    seen: RequestResult
    outcome: Mapping[str, Any]

    def both(self, fact: str) -> tuple[float, float] | None:
        """The client's and the record's value; None where one of them has none.

        The client counts latencies from the moment at which it should have sent; what it was late with no
        picker can know.
        """
        ours, theirs = getattr(self.seen, fact), self.outcome.get(fact)
        if ours is None or theirs is None:
            return None
        return ours - (self.seen.slip_ms if fact in ("ttft_ms", "e2e_ms") else 0.0), theirs


def pair(folder: Path, results: Sequence[RequestResult]) -> list[Pair]:
    """Requests that ended well by the client's account and have an outcome on record, by decision id."""
    outcomes = {
        request.decision["id"]: request.outcome
        for request in join(read_records(folder))
        if request.outcome is not None
    }
    return [
        Pair(seen, outcomes[seen.decision_id]) for seen in results if seen.ok and seen.decision_id in outcomes
    ]


#: Facts shown: name, title, digits.
_SHOWN = (
    ("ttft_ms", "TTFT ms", 1),
    ("e2e_ms", "E2E ms", 1),
    ("itl_ms", "ITL ms", 2),
    ("cached_tokens", "cached tokens", 0),
)


def recorded_table(pairs: Sequence[Pair]) -> Table:
    """A row a fact: median and 95th percentile on record, the client's median, and how far they are apart."""
    table = Table(title=f"on record of {len(pairs)} requests, beside the client's own clock")
    table.add_column("")
    for title in ("p50", "p95", "client p50", "apart p50", "apart p99"):
        table.add_column(title, justify="right")
    for fact, title, digits in _SHOWN:
        values = [both for entry in pairs if (both := entry.both(fact)) is not None]
        if not values:
            table.add_row(title, *["-"] * 5)
            continue
        client, record = [ours for ours, _ in values], [theirs for _, theirs in values]
        apart = [abs(ours - theirs) for ours, theirs in values]
        cells = [percentile(record, 50), percentile(record, 95), percentile(client, 50),
                 percentile(apart, 50), percentile(apart, 99)]  # fmt: skip
        table.add_row(title, *(f"{value:,.{digits}f}" for value in cells))
    return table
