"""`epp weights history`: the incumbents so far, by the numbers that `rollback` takes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from epp.learn.tuner import setup as setups
from epp.learn.tuner.session import memory_at
from epp.learn.tuner.status_command import history_lines

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    setups.add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print a line an incumbent."""
    setup = setups.read_setup(arguments, looking=True)
    state = memory_at(setup.paths).load()
    if state is None:
        print(f"no history: no tuner has run on {setup.paths.weights}")
        return 0
    for line in history_lines(state, time.time()):
        print(line)
    return 0
