"""`epp envoy module`: the observing filter's compiled part, for the machine that it is built on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from epp.envoy.module import MODULE_SINCE, build

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    parser.add_argument(
        "--out", required=True, type=Path, help="shared object to write, e.g. libepp_observe.so"
    )
    parser.add_argument("--cc", default="", help="C compiler, with flags (default: CC, else cc)")


def run(arguments: argparse.Namespace) -> int:
    """Compile.

    Raises:
        EppError: there is no compiler, or it fails.
    """
    out: Path = arguments.out
    build(out, arguments.cc)
    version = ".".join(map(str, MODULE_SINCE))
    print(f"{out}: for Envoy {version}; `epp envoy render --observe-module PATH` names it as Envoy finds it")
    return 0
