"""`epp config check`: all errors of a configuration and of the files it names, as `epp serve` finds them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from epp.config.load import salvage_config
from epp.errors import ConfigError, raise_all
from epp.server.check import all_errors
from epp.server.files import required_file

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    parser.add_argument("--config", required=True, type=Path, help="configuration file, e.g. epp.yaml")


def run(arguments: argparse.Namespace) -> int:
    """Check, and print a line for each error."""
    path: Path = arguments.config
    try:
        config, errors = salvage_config(required_file(path, "see deploy/epp.example.yaml"), str(path))
        raise_all(all_errors(config, path.resolve().parent, str(path), errors))
    except ConfigError as error:
        for each in error.errors:
            print(f"epp: {each}", file=sys.stderr)
        return 1
    print(f"{path}: no errors")
    return 0
