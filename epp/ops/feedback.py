"""`epp feedback`: tell a running picker whether an answer was right."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from epp.ops.picker_http import answered

if TYPE_CHECKING:
    import argparse


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
    with answered(arguments.url, f"decisions/{quote(arguments.id, safe='')}/feedback", body):
        return 0
