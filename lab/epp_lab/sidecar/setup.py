"""What sidecars are given beside the picker's configuration: settings of their own, how often to look."""

from __future__ import annotations

import math
from argparse import ArgumentTypeError
from typing import TYPE_CHECKING, TypeVar

from epp.config.section import Section
from epp.config.strict import decode
from epp.feeds.files import required_file

if TYPE_CHECKING:
    import argparse

S = TypeVar("S", bound=Section)
#: Requests of operators and pins are answered within so long.
LONGEST_LOOK_INTERVAL_S = 10.0


def add_interval(parser: argparse.ArgumentParser) -> None:
    """Add the flag that says how often is looked."""
    parser.add_argument(
        "--every",
        type=_interval_s,
        default=1.0,
        help=f"seconds between looks, up to {LONGEST_LOOK_INTERVAL_S:g} (%(default)s)",
    )


def _interval_s(text: str) -> float:
    try:
        interval_s = float(text)
    except ValueError:
        interval_s = math.nan
    if not 0.0 < interval_s <= LONGEST_LOOK_INTERVAL_S:
        raise ArgumentTypeError(f"{text!r} is not a number above 0, up to {LONGEST_LOOK_INTERVAL_S:g}")
    return interval_s


def read_settings(arguments: argparse.Namespace, defaults: S) -> S:
    """Read the file of ``--settings``; the defaults where none is given.

    Raises:
        ConfigError: it is missing or wrong.
    """
    if arguments.settings is None:
        return defaults
    return decode(required_file(arguments.settings), type(defaults), str(arguments.settings))
