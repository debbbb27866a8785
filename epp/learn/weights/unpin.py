"""`epp weights unpin [NAME...]`: give weights back to the tuner."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epp.errors import ConfigError
from epp.learn.tuner import setup as setups
from epp.learn.weights.pins import add_config_map, change

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    parser.add_argument("names", nargs="*", metavar="NAME", help="weights to unpin")
    parser.add_argument(
        "--all", action="store_true", help="unpin all; also begins a file anew that cannot be read"
    )
    setups.add_arguments(parser)
    add_config_map(parser)


def run(arguments: argparse.Namespace) -> int:
    """Unpin weights."""
    setup = setups.read_setup(arguments, looking=True)
    if bool(arguments.names) == arguments.all:
        what = "weights are named beside --all" if arguments.all else "nothing to unpin"
        raise ConfigError("command line", "", what, "name weights, or give --all")
    return change(setup, {}, None if arguments.all else tuple(arguments.names), arguments)
