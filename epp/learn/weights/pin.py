"""`epp weights pin NAME=VALUE...`: the operator's word, which wins over the tuner's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epp.errors import ConfigError
from epp.learn.tuner import setup as setups
from epp.learn.weights.pins import add_config_map, change

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    parser.add_argument("pins", nargs="+", metavar="NAME=VALUE", help="weights to pin")
    setups.add_arguments(parser)
    add_config_map(parser)


def run(arguments: argparse.Namespace) -> int:
    """Pin weights."""
    pins: dict[str, float] = {}
    for text in arguments.pins:
        name, _, value = text.partition("=")
        if name in pins:
            raise ConfigError("command line", name, "given twice", "one value for each weight")
        try:
            pins[name] = float(value)
        except ValueError:
            raise ConfigError(
                "command line", name, f"{value!r} is not a number", "write NAME=VALUE"
            ) from None
    return change(setups.read_setup(arguments, looking=True), pins, (), arguments)
