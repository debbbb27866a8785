"""`epp weights history`: the incumbents so far, by the numbers that `rollback` takes; or the audit log."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING

from epp.errors import EppError
from epp.tune import setup as setups
from epp.tune.audit import read_audit
from epp.tune.disk import RealDisk
from epp.tune.status import history_lines
from epp.tune.store import StateStore

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    parser.add_argument("--audit", action="store_true", help="everything that happened, as JSON Lines")
    setups.add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print a line an incumbent."""
    setup, disk = setups.read_setup(arguments, looking=True), RealDisk()
    if arguments.audit:
        try:
            entries = read_audit(setup.places, disk)
        except OSError as error:
            raise EppError(f"{setup.places.audit}: {error}") from error
        for entry in entries:
            print(json.dumps(entry))
        if not entries:
            print(f"epp: nothing in {setup.places.audit}", file=sys.stderr)
        return 0
    state = StateStore(setup.places, disk, lambda said: print(f"epp: {said}", file=sys.stderr)).load()
    if state is None:
        print(f"no history: no tuner has run on {setup.places.weights}")
        return 0
    for line in history_lines(state, time.time()):
        print(line)
    return 0
