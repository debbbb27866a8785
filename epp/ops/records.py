"""Commands `epp records show | filter | follow | verify | ttca`: recorded requests for people and tools."""

from __future__ import annotations

import os
import re
import sys
import time
from collections import defaultdict, deque
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from epp.console.figures import number
from epp.errors import EppError
from epp.records.files import Place, Tail, parse_line, read_records, record_files
from epp.records.model_files import ModelVersions
from epp.records.schema import MAX_WAITING, Joined, join
from epp.records.ttca import Question, asked_questions
from epp.records.verify import verify

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping, Sequence

DEFAULT_FOLDER = Path("demo-out/records")
_AGO = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
_UNIT_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SHOWN_REQUESTS = 20
_SHOWN_DIFFERENCES = 20
_POLL_S = 0.2
#: A pipe or `kubectl exec` has no width, and the usual 80 columns would cut addresses and figures.
_PLAIN_WIDTH = 180


@dataclass(frozen=True, slots=True)
class Query:
    """Conditions that all must hold; an empty one always does.

    Attributes:
        endpoint: address of the chosen endpoint, or of who served instead.
        policy: name of the policy.
        cause: why the request ended; ``none`` for one without an outcome.
        model: public model name.
        since_s: earliest Unix time of the decision.
        until_s: latest.
    """

    endpoint: str = ""
    policy: str = ""
    cause: str = ""
    model: str = ""
    since_s: float = 0.0
    until_s: float = float("inf")

    def decision(self, record: Mapping[str, Any]) -> bool:
        """Return whether what is known at the decision fits."""
        return (
            self.policy in ("", record["policy"])
            and self.model in ("", record["request"]["model"])
            and self.since_s <= float(record["at"]) <= self.until_s
        )

    def matches(self, request: Joined) -> bool:
        """Return whether a request fits."""
        cause = request.outcome["cause"] if request.outcome else "none"
        return (
            self.cause in ("", cause)
            and self.endpoint in ("", _picked(request.decision), _served(request))
            and self.decision(request.decision)
        )


class Follower:
    """Lines about new records of a folder, whoever writes them and however files are rotated.

    Args:
        place: the folder, or one file.
        query: which requests are wanted; of one that asks for a cause the end alone is shown.
        from_start: whether what is there already counts as new.

    Raises:
        EppError: there is no such folder.
    """

    def __init__(self, place: Path, query: Query, *, from_start: bool) -> None:
        self._place = place
        self._query = query
        self._decisions: dict[str, Mapping[str, Any]] = {}
        self._tails = {path: Tail(path) for path in record_files(place)}
        if not from_start:
            for tail in self._tails.values():
                tail.skip()

    def lines(self) -> Iterator[str]:
        """Yield lines about the records written since the last call."""
        self._tails = {path: self._tails.get(path) or Tail(path) for path in record_files(self._place)}
        for path, tail in self._tails.items():
            for text in tail.lines():
                record = parse_line(text, path)
                line = "" if record is None else self._line(record)
                if line:
                    yield line

    def _line(self, record: Mapping[str, Any]) -> str:
        query = self._query
        if record["kind"] == "decision":
            if not query.decision(record):
                return ""
            if len(self._decisions) >= MAX_WAITING:
                self._decisions.pop(next(iter(self._decisions)))
            self._decisions[record["id"]] = record
            wanted = not query.cause and query.matches(Joined(record, None))
            return _decision_line(record) if wanted else ""
        if record["kind"] != "outcome":
            return ""
        decision = self._decisions.pop(record["id"], None)
        # One that was decided before only who asks for everything wants.
        wanted = query == Query() if decision is None else query.matches(Joined(decision, record))
        return _outcome_line(record) if wanted else ""


def wide_console() -> Console:
    """Make a console for tables of records."""
    width_is_set = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(width=None if width_is_set else _PLAIN_WIDTH)


def add_show_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `epp records show`."""
    add_filter_arguments(parser)
    parser.add_argument(
        "--limit", type=int, default=_SHOWN_REQUESTS, help="show so many of the newest (%(default)s)"
    )


def run_show(arguments: argparse.Namespace) -> int:
    """Print recorded requests as a table, the newest last.

    Raises:
        EppError: a flag that makes no sense.
    """
    if arguments.limit < 0:
        raise EppError(f"--limit must be at least 0, not {arguments.limit}")
    newest: deque[Joined] = deque(maxlen=arguments.limit)
    total = 0
    for request in _requests(arguments):
        total += 1
        newest.append(request)
    console = wide_console()
    console.print(_requests_table(sorted(newest, key=lambda request: float(request.decision["at"]))))
    console.print(f"{len(newest)} of {total} requests; `epp explain ID` shows why one went where it did")
    return 0


def run_filter(arguments: argparse.Namespace) -> int:
    """Print decision and outcome of each request, a line each; the output reads like a file of records."""
    encode = msgspec.json.Encoder().encode
    for request in _requests(arguments):
        for record in (request.decision, request.outcome):
            if record is not None:
                sys.stdout.write(encode(record).decode() + "\n")
    return 0


def add_follow_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `epp records follow`."""
    add_filter_arguments(parser)
    parser.add_argument("--from-start", action="store_true", help="begin with what is on file already")


def run_follow(arguments: argparse.Namespace) -> int:
    """Print a line for every decision and every outcome as they are written, until stopped."""
    follower = Follower(arguments.folder, _query_of(arguments), from_start=arguments.from_start)
    while True:
        for line in follower.lines():
            print(line, flush=True)
        time.sleep(_POLL_S)


def add_verify_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `epp records verify`."""
    _add_folder(parser)
    _add_decision_conditions(parser)
    parser.add_argument(
        "--models",
        type=Path,
        help="folder with the versions of the reward model, or file of one (the folder above the records, and"
        " models in it)",
    )


def run_verify(arguments: argparse.Namespace) -> int:
    """Run recorded decisions again and print what differs; 1 when anything does, or a line is damaged.

    Raises:
        EppError: there was nothing to verify, which proves nothing; or no such models.
    """
    damaged: list[Place] = []
    query = _query_of(arguments)
    wanted = (
        record
        for record in read_records(arguments.folder, damaged)
        if record["kind"] == "decision" and query.decision(record)
    )
    above = arguments.folder.resolve().parent
    if arguments.folder.is_file():
        above = above.parent
    places = [above, above / "models"] if arguments.models is None else [arguments.models]
    if arguments.models is not None and not arguments.models.exists():
        raise EppError(f"--models {arguments.models} does not exist: name a folder of models, or one's file")
    models = ModelVersions(places)
    verdict = verify(wanted, models)
    for version, path in models.used.items():
        print(f"reward model {version} is {path}")
    for version, count in verdict.models_gone.items():
        where = " or ".join(map(str, places))
        print(f"{count} decisions of reward model {version} not verifiable: it is not in {where}")
    if not verdict.decisions:
        raise EppError(f"no decisions in {arguments.folder} that can be run again: nothing was verified")
    for line in verdict.differences[:_SHOWN_DIFFERENCES]:
        print(line)
    if len(verdict.differences) > _SHOWN_DIFFERENCES:
        print(f"... and {len(verdict.differences) - _SHOWN_DIFFERENCES} more")
    same = "all identical" if not verdict.differences else f"{len(verdict.differences)} differ"
    print(f"{verdict.decisions} decisions run again: {same}")
    if damaged:
        print(f"{len(damaged)} damaged lines prove nothing, the first is {damaged[0]}")
    return 1 if verdict.differences or damaged else 0


def add_ttca_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `epp records ttca`."""
    parser.add_argument("places", nargs="+", type=Path, help="folders of records, or files of them")
    _add_decision_conditions(parser)


def run_ttca(arguments: argparse.Namespace) -> int:
    """Print how long first correct answers took, by policy and by the model that was asked first."""
    query = _query_of(arguments)
    asked = asked_questions(
        record
        for place in arguments.places
        for record in read_records(place)
        if record["kind"] != "decision" or query.decision(record)
    )
    judged = [one for one in asked if one.correct is not None and one.ttca_ms > 0]
    groups = defaultdict[tuple[str, str], list[Question]](list)
    for one in judged:
        groups[one.policy, "any"].append(one)
        groups[one.policy, one.models[0]].append(one)
    table = Table("policy", "first model")
    for title in ("questions", "right", "attempts", "TTCA s", "s per right answer"):
        table.add_column(title, justify="right")
    for names, members in groups.items():
        right = fmean(bool(one.correct) for one in members)
        ttca_s = fmean(one.ttca_ms for one in members) / 1e3
        figures = (fmean(len(one.models) for one in members), ttca_s, ttca_s / right if right else None)
        table.add_row(*names, f"{len(members)}", f"{right:.1%}", *(number(each, 2) for each in figures))
    console = wide_console()
    console.print(table)
    console.print(f"{len(judged)} of {len(asked)} questions; the others lack a verdict or an end")
    return 0


def _add_folder(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder",
        nargs="?",
        type=Path,
        default=DEFAULT_FOLDER,
        help="folder of records, or one of its files (%(default)s)",
    )


def add_filter_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `epp records filter`: the conditions of all but `verify`, which has no outcomes."""
    _add_folder(parser)
    parser.add_argument("--endpoint", default="", help="address that was chosen, or that served it")
    parser.add_argument("--cause", default="", help="why it ended, e.g. completed; 'none': no outcome yet")
    _add_decision_conditions(parser)


def _add_decision_conditions(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--policy", default="", help="name of the policy")
    parser.add_argument("--model", default="", help="public model name")
    parser.add_argument("--since", default="", help="an ISO 8601 time, or how long ago: 90s, 10m, 2h, 1d")
    parser.add_argument("--until", default="", help="likewise")


def _query_of(arguments: argparse.Namespace) -> Query:
    return Query(
        endpoint=getattr(arguments, "endpoint", ""),
        policy=arguments.policy,
        cause=getattr(arguments, "cause", ""),
        model=arguments.model,
        since_s=_moment(arguments.since, 0.0),
        until_s=_moment(arguments.until, float("inf")),
    )


def _moment(text: str, default: float) -> float:
    """Convert a point in time, or how long ago it was, to Unix time.

    Raises:
        EppError: it is neither.
    """
    if not text:
        return default
    ago = _AGO.fullmatch(text)
    if ago:
        return time.time() - float(ago[1]) * _UNIT_S[ago[2]]
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise EppError(f"{text!r} is neither an ISO 8601 time nor like 90s, 10m, 2h, 1d") from None


def _requests(arguments: argparse.Namespace) -> Iterator[Joined]:
    query = _query_of(arguments)
    return filter(query.matches, join(read_records(arguments.folder)))


def _picked(decision: Mapping[str, Any]) -> str:
    """Return the address of the chosen endpoint."""
    return str(decision["endpoints"][decision["chosen"]])


def _served(request: Joined) -> str:
    """Return the address of who served it, as far as is known."""
    outcome = request.outcome or {}
    return outcome.get("served") or outcome.get("endpoint") or _picked(request.decision)


def _clock_time(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def _requests_table(requests: Sequence[Joined]) -> Table:
    table = Table("time", Column("id", no_wrap=True), "policy", "endpoint")
    for title in ("prompt", "expected cached", "cached", "TTFT ms", "E2E ms"):
        table.add_column(title, justify="right")
    table.add_column("ended")
    for request in requests:
        decision, outcome = request.decision, request.outcome or {}
        served = _served(request)
        cells = (
            _clock_time(decision["at"]),
            decision["id"],
            decision["policy"],
            served if served == _picked(decision) else f"{served} (retried)",
            number(decision["request"]["prompt_tokens"]),
            number(decision["signals"]["cached_tokens"][decision["chosen"]]),
            number(outcome.get("cached_tokens")),
            number(outcome.get("ttft_ms"), 1),
            number(outcome.get("e2e_ms"), 1),
            " ".join(str(part) for part in (outcome.get("cause"), outcome.get("status")) if part) or "-",
        )
        table.add_row(*map(escape, cells))  # an IPv6 address in brackets looks like markup
    return table


def _decision_line(record: Mapping[str, Any]) -> str:
    chosen, tokens = record["chosen"], record["request"]["prompt_tokens"]
    cached = record["signals"]["cached_tokens"][chosen]
    return (
        f"{_clock_time(record['at'])} {record['id']} -> {_picked(record)} by {record['policy']}"
        f" ({record['probabilities'][chosen]:.0%}), {number(tokens)} tokens, {number(cached)} expected cached"
    )


def _outcome_line(record: Mapping[str, Any]) -> str:
    status = f" {record['status']}" if record["status"] else ""
    where = record.get("served") or record["endpoint"]
    return (
        f"{_clock_time(record['at'])} {record['id']} {record['cause']}{status} at {where},"
        f" TTFT {number(record['ttft_ms'], 1)} ms, E2E {number(record['e2e_ms'], 1)} ms,"
        f" cached {number(record['cached_tokens'])}"
    )
