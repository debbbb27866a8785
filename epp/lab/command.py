"""`epp lab experiment`: run one of the experiments of `epp.lab.experiments`."""

from __future__ import annotations

import argparse
import pkgutil
from importlib import import_module

from epp.lab import experiments
from epp.lab.experiment import main


def names() -> list[str]:
    """List the experiments: a module each."""
    return sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(experiments.__path__))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("name", choices=names(), help="of the experiment")
    parser.add_argument("options", nargs=argparse.REMAINDER, help="NAME --help lists them")


def run(arguments: argparse.Namespace) -> int:
    """Run the experiment."""
    module = import_module(f"{experiments.__name__}.{arguments.name.replace('-', '_')}")
    return main(module.EXPERIMENT, arguments.options)
