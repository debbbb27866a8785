"""`epp weights rollback`: earlier weights again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epp.errors import EppError
from epp.ops import given
from epp.records.weight_files import read_history
from epp_lab.tuner.command import obey
from epp_lab.tuner.setup import read_setup

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the command."""
    parser.add_argument("number", type=int, metavar="N", help="as `epp weights history` numbers")
    parser.add_argument("--reason", default="", help="why, for the log and the status")
    given.add_weight_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Go back to the weights of that number.

    Raises:
        EppError: there are none.
    """
    setup = read_setup(arguments, looking=True)
    known = [change.number for change in read_history(setup.paths) or ()]
    if arguments.number not in known:
        raise EppError(
            f"no weights with number {arguments.number}; `epp weights history` has {known or 'none'}"
        )
    return obey(setup, "rollback", reason=arguments.reason, number=arguments.number)
