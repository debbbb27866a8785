"""Which recorded requests are wanted, and one line about each: shared by the commands on records."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epp.errors import EppError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from epp.records.schema import Joined

DEFAULT_FOLDER = Path("demo-out/records")
_AGO = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
_UNIT_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True, slots=True)
class Query:
    """Conditions that all must hold; an empty one always does.

    Attributes:
        endpoint: address of the pick, or of who served instead.
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
        """Whether what is known at the decision fits."""
        at_s: float = record["at"]
        return (
            self.policy in ("", record["policy"])
            and self.model in ("", record["request"]["model"])
            and self.since_s <= at_s <= self.until_s
        )

    def matches(self, request: Joined) -> bool:
        """Whether a request fits."""
        cause = request.outcome["cause"] if request.outcome else "none"
        if self.cause and cause != self.cause:
            return False
        if self.endpoint and self.endpoint not in (picked(request.decision), served(request)):
            return False
        return self.decision(request.decision)


def picked(decision: Mapping[str, Any]) -> str:
    """Address of the pick."""
    address: str = decision["endpoints"][decision["chosen"]]
    return address


def served(request: Joined) -> str:
    """Address of who served it, as far as is known."""
    outcome = request.outcome or {}
    return outcome.get("served") or outcome.get("endpoint") or picked(request.decision)


def add_folder(parser: argparse.ArgumentParser) -> None:
    """The place of the records."""
    parser.add_argument(
        "folder",
        nargs="?",
        type=Path,
        default=DEFAULT_FOLDER,
        help="folder of records, or one of its files (%(default)s)",
    )


def add_conditions(parser: argparse.ArgumentParser) -> None:
    """Conditions on requests."""
    parser.add_argument("--endpoint", default="", help="address of the pick, or of who served it")
    parser.add_argument("--cause", default="", help="why it ended, e.g. completed; 'none': no outcome yet")
    add_decision_conditions(parser)


def add_decision_conditions(parser: argparse.ArgumentParser) -> None:
    """Conditions on decisions, whatever became of them."""
    parser.add_argument("--policy", default="", help="name of the policy")
    parser.add_argument("--model", default="", help="public model name")
    parser.add_argument("--since", default="", help="an ISO 8601 time, or how long ago: 90s, 10m, 2h, 1d")
    parser.add_argument("--until", default="", help="likewise")


def query_of(arguments: argparse.Namespace) -> Query:
    """The conditions that the arguments ask for.

    Raises:
        EppError: a time cannot be read.
    """
    return Query(
        endpoint=getattr(arguments, "endpoint", ""),
        policy=arguments.policy,
        cause=getattr(arguments, "cause", ""),
        model=arguments.model,
        since_s=_moment(arguments.since, 0.0),
        until_s=_moment(arguments.until, float("inf")),
    )


def _moment(text: str, default: float) -> float:
    if not text:
        return default
    ago = _AGO.fullmatch(text)
    if ago:
        return time.time() - float(ago[1]) * _UNIT_S[ago[2]]
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):  # the latter of a time that is none where this machine is
        raise EppError(f"{text!r} is neither an ISO 8601 time nor like 90s, 10m, 2h, 1d") from None


def clock_time(at_s: float) -> str:
    """A moment for people, in UTC."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def number(value: float | None, digits: int = 0) -> str:
    """A number for people, ``-`` when it is not known."""
    return "-" if value is None else f"{value:,.{digits}f}"
