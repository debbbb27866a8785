"""`epp records show`: recorded requests as a table, the newest last."""

from __future__ import annotations

import heapq
from itertools import chain
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from epp.errors import EppError
from epp.ops.wide_console import wide_console
from epp.records.check import whole_records
from epp.records.query import (
    add_conditions,
    add_folder,
    clock_time,
    number,
    picked,
    query_of,
    served,
)
from epp.records.schema import join

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from epp.records.schema import Joined

_SHOWN = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    add_folder(parser)
    add_conditions(parser)
    parser.add_argument("--limit", type=int, default=_SHOWN, help="show so many of the newest (%(default)s)")


def run(arguments: argparse.Namespace) -> int:
    """Print the table.

    Raises:
        EppError: a flag that makes no sense, or nothing there is a record.
    """
    if arguments.limit < 0:
        raise EppError(f"--limit must be at least 0, not {arguments.limit}")
    query, total = query_of(arguments), 0
    records = whole_records(arguments.folder)
    first = next(records, None)
    if first is None:
        raise EppError(f"{arguments.folder}: nothing in it is a record")
    newest: list[tuple[float, int, Joined]] = []
    for request in join(chain([first], records)):
        if not query.matches(request):
            continue
        total += 1
        heapq.heappush(newest, (request.decision["at"], total, request))
        if len(newest) > arguments.limit:
            heapq.heappop(newest)
    console = wide_console()
    console.print(requests_table([request for _, _, request in sorted(newest, key=lambda entry: entry[:2])]))
    console.print(f"{len(newest)} of {total} requests; `epp explain ID` tells why one went where it did")
    return 0


def requests_table(requests: Sequence[Joined]) -> Table:
    """One row a request."""
    table = Table()
    for title in ("time", "id", "policy", "endpoint"):
        table.add_column(title, no_wrap=title == "id")
    for title in ("prompt", "expected cached", "cached", "TTFT ms", "E2E ms"):
        table.add_column(title, justify="right")
    table.add_column("ended")
    for request in requests:
        decision, outcome = request.decision, request.outcome or {}
        cells = (
            clock_time(decision["at"]),
            decision["id"],
            decision["policy"],
            served(request) if served(request) == picked(decision) else f"{served(request)} (retried)",
            number(decision["request"]["prompt_tokens"]),
            number(decision["signals"]["cached_tokens"][decision["chosen"]]),
            number(outcome.get("cached_tokens")),
            number(outcome.get("ttft_ms"), 1),
            number(outcome.get("e2e_ms"), 1),
            " ".join(str(part) for part in (outcome.get("cause"), outcome.get("status")) if part) or "-",
        )
        table.add_row(*map(escape, cells))  # an IPv6 address in brackets looks like markup
    return table
