"""`epp feedback`: tell a running picker whether an answer was right."""

from __future__ import annotations

import json
from http.client import HTTPException
from typing import TYPE_CHECKING
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import Request, urlopen

from epp.errors import EppError

if TYPE_CHECKING:
    import argparse

_TIMEOUT_S = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    parser.add_argument("id", help="the decision's id (response header x-epp-decision-id)")
    said = parser.add_mutually_exclusive_group(required=True)
    said.add_argument("--correct", action="store_true", help="the answer was right")
    said.add_argument("--wrong", action="store_true", help="the answer was wrong")
    parser.add_argument("--score", type=float, help="how good it was, 0 to 1")
    parser.add_argument("--evaluator", default="", help="who says so, a short name")
    parser.add_argument("--url", default="http://127.0.0.1:9090", help="the picker's HTTP side (%(default)s)")


def run(arguments: argparse.Namespace) -> int:
    """Tell it.

    Raises:
        EppError: the picker cannot be reached, or does not take it.
    """
    body = {"correct": arguments.correct, "score": arguments.score, "evaluator": arguments.evaluator}
    address = f"{arguments.url.rstrip('/')}/decisions/{quote(arguments.id, safe='')}/feedback"
    if not address.startswith(("http://", "https://")):
        raise EppError(f"{arguments.url} is not an http address, e.g. http://{arguments.url}")
    header = {"content-type": "application/json"}
    try:
        request = Request(address, json.dumps(body).encode(), header)  # noqa: S310  # scheme checked above
        with urlopen(request, timeout=_TIMEOUT_S):  # noqa: S310  # scheme checked above
            return 0
    except HTTPError as error:
        raise EppError(f"{address}: {reason(error)}") from error
    except (URLError, OSError, HTTPException, ValueError) as error:
        raise EppError(no_answer(address, error)) from error


def no_answer(address: str, error: Exception) -> str:
    """What to say where no picker answers, or nothing that is one."""
    why = error.reason if isinstance(error, URLError) else error
    words = getattr(why, "strerror", None) or why
    return f"{address}: {words} (--url is the picker's listen.http; does it run?)"


def reason(error: HTTPError) -> str:
    """What a picker says of a request that it refused, in its own words where it gave any."""
    try:
        return str(json.load(error)["error"])
    except (ValueError, KeyError, TypeError):
        return str(error)
