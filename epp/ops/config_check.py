"""`epp config check`: all errors of configurations and of the files they name, as `epp serve` finds them.

A file is one of ours, or has one or several of llm-d's `EndpointPickerConfig` in it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from epp.config.load import salvage_config
from epp.errors import ConfigError, raise_all
from epp.feeds.files import placed, required_file
from epp.llmd.check import CheckedConfig, check_text, refused
from epp.llmd.picker_config import KIND
from epp.server.check import all_errors

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    parser.add_argument(
        "files", nargs="*", type=Path, metavar="FILE", help="epp.yaml, llm-d's plugins or values, or a folder"
    )
    parser.add_argument("--config", type=Path, help="one more file, e.g. epp.yaml")
    parser.add_argument("--json", action="store_true", help="print the verdicts as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Check, and print what becomes of each file; 1 where anything is refused."""
    named = [*arguments.files, *([arguments.config] if arguments.config else [])]
    if not named:
        raise ConfigError("command line", "", "no file", "epp config check epp.yaml")
    verdicts = [verdict for path in named for verdict in _verdicts(path)]
    bad = sum(verdict.status == "refused" for verdict in verdicts)
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode(verdicts)).decode())
        return int(bad > 0)
    for verdict in verdicts:
        for line in placed([ConfigError(*msgspec.structs.astuple(each)) for each in verdict.refused]):
            print(f"epp: {line}", file=sys.stderr)
        if verdict.status != "refused":
            print(f"{verdict.source}: {_words(verdict)}")
            print(*(f"  {line}\n" for line in verdict.mapped), sep="", end="")
    if len(verdicts) > 1:
        mapped = sum(verdict.status == "mapped" for verdict in verdicts)
        print(f"{len(verdicts) - bad - mapped} accepted, {mapped} mapped, {bad} refused")
    return int(bad > 0)


def _words(verdict: CheckedConfig) -> str:
    return f"{verdict.status}, policy {verdict.policy}" if verdict.policy else "no errors"


def _verdicts(path: Path) -> Iterator[CheckedConfig]:
    """Check a file, or of a folder's files those that have a configuration of llm-d's in them."""
    if path.is_dir():
        for file in sorted(each for each in path.rglob("*") if each.suffix in (".yaml", ".yml", ".json")):
            found = _llm_d(file)
            if found and (found[0].status != "refused" or KIND.encode() in file.read_bytes()):
                yield from found
    elif found := _llm_d(path):
        yield from found
    else:
        yield _ours(path)


def _llm_d(path: Path) -> list[CheckedConfig]:
    try:
        return check_text(required_file(path, "name another"), str(path))
    except ConfigError as error:
        return [refused(str(path), error)]


def _ours(path: Path) -> CheckedConfig:
    source = str(path)
    try:
        config, errors = salvage_config(
            required_file(path, "see deploy/epp.example.yaml"), source, os.environ
        )
        raise_all(all_errors(config, path.resolve().parent, source, errors, os.environ))
    except ConfigError as error:
        return refused(source, error)
    return CheckedConfig(source, "accepted")
