"""`epp migrate llm-d`: values of llm-d's charts become values of ours."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from epp.feeds.files import required_file
from epp.llmd.migrate import migrate

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    parser.add_argument(
        "files", nargs="+", type=Path, metavar="VALUES", help="values files, the later laid over the earlier"
    )


def run(arguments: argparse.Namespace) -> int:
    """Print our values; comments say what is left out, and what of the plugins means something else."""
    texts = {str(path): required_file(path, "a values file of llm-d's") for path in arguments.files}
    values, left_out, changed = migrate(texts)
    for line in left_out:
        print(f"# left out: {line}")
    for line in changed:
        print(f"# changed: {line}")
    print(yaml.safe_dump(values, sort_keys=False), end="")
    return 0
