"""`epp records follow`: a line for every decision and every outcome as they are written."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from epp.records.check import whole
from epp.records.files import Tail, parse_line, record_files
from epp.records.query import (
    Query,
    add_conditions,
    add_folder,
    clock_time,
    number,
    picked,
    query_of,
)
from epp.records.schema import MAX_WAITING, Joined

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_POLL_S = 0.2


class Follower:
    """New records of a folder, whoever writes them and however files are rotated.

    Lines that are no whole records are passed over, and counted in ``damaged``.

    Args:
        place: the folder, or one file.
        from_start: whether what is there already counts as new.

    Raises:
        EppError: there is no such folder.
    """

    def __init__(self, place: Path, *, from_start: bool) -> None:
        self._place = place
        self.damaged = 0
        self._tails = {path: Tail(path) for path in record_files(place)}
        if not from_start:
            for tail in self._tails.values():
                tail.skip()

    def new(self) -> Iterator[dict[str, Any]]:
        """Records written since the last call."""
        files = record_files(self._place)
        self._tails = {path: self._tails.get(path) or Tail(path) for path in files}
        for path, tail in self._tails.items():
            for line in tail.lines():
                record = parse_line(line, path)
                if record is not None and whole(record):
                    yield record
                else:
                    self.damaged += 1


class Narrator:
    """Records to lines for people.

    Args:
        query: which requests are wanted. One that asks for a cause is told about at its end alone.
    """

    def __init__(self, query: Query) -> None:
        self._query = query
        self._decisions: dict[str, Mapping[str, Any]] = {}

    def tell(self, record: Mapping[str, Any]) -> str:
        """A line about the record, ``""`` when it is not wanted."""
        if record["kind"] == "decision":
            if not self._query.decision(record):
                return ""
            if len(self._decisions) >= MAX_WAITING:
                self._decisions.pop(next(iter(self._decisions)))
            self._decisions[record["id"]] = record
            wanted = not self._query.cause and self._query.matches(Joined(record, None))
            return _decided(record) if wanted else ""
        if record["kind"] != "outcome":
            return ""
        decision = self._decisions.pop(record["id"], None)
        if decision is None:  # decided before we looked: only who asks for everything wants it
            return _ended(record) if self._query == Query() else ""
        return _ended(record) if self._query.matches(Joined(decision, record)) else ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    add_folder(parser)
    add_conditions(parser)
    parser.add_argument("--from-start", action="store_true", help="begin with what is on file already")


def run(arguments: argparse.Namespace) -> int:
    """Print lines until stopped."""
    follower = Follower(arguments.folder, from_start=arguments.from_start)
    narrator, told = Narrator(query_of(arguments)), False
    while True:
        for record in follower.new():
            line = narrator.tell(record)
            if line:
                print(line, flush=True)
        if follower.damaged and not told:
            told = True
            print(f"epp: damaged lines in {arguments.folder} are passed over", file=sys.stderr)
        time.sleep(_POLL_S)


def _decided(record: Mapping[str, Any]) -> str:
    chosen, tokens = record["chosen"], record["request"]["prompt_tokens"]
    cached = record["signals"]["cached_tokens"][chosen]
    return (
        f"{clock_time(record['at'])} {record['id']} -> {picked(record)} by {record['policy']}"
        f" ({record['probabilities'][chosen]:.0%}), {number(tokens)} tokens, {number(cached)} expected cached"
    )


def _ended(record: Mapping[str, Any]) -> str:
    status = f" {record['status']}" if record["status"] else ""
    where = record.get("served") or record["endpoint"]
    return (
        f"{clock_time(record['at'])} {record['id']} {record['cause']}{status} at {where},"
        f" TTFT {number(record['ttft_ms'], 1)} ms, E2E {number(record['e2e_ms'], 1)} ms,"
        f" cached {number(record['cached_tokens'])}"
    )
