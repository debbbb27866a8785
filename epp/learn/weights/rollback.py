"""`epp weights rollback N`: an earlier incumbent again, and no search until somebody thaws it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epp.errors import EppError
from epp.learn.tuner import setup as setups
from epp.learn.tuner.command import tell_tuner
from epp.learn.tuner.session import memory_at

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    parser.add_argument("number", type=int, metavar="N", help="as `epp weights history` numbers them")
    parser.add_argument("--reason", default="", help="why, for the log and the status")
    setups.add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Go back."""
    setup = setups.read_setup(arguments, looking=True)
    state = memory_at(setup.paths).load()
    known = [] if state is None else [change.number for change in state.history]
    if arguments.number not in known:
        raise EppError(
            f"no weights with number {arguments.number}; `epp weights history` has {known or 'none'}"
        )
    return tell_tuner(setup, "rollback", reason=arguments.reason, number=arguments.number)
