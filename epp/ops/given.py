"""What commands about a picker's shared files are given: its configuration, and flags that win over it.

Owns which weights may be tuned; reports every mistake that can be found before anything starts.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from epp.config.bounds import tuner_bounds
from epp.config.load import parse_config, parse_weights
from epp.config.schema import Config
from epp.errors import ConfigError, EppError
from epp.feeds.files import read_file, required_file
from epp.policies.registry import create
from epp.records.files import read_records, record_files
from epp.records.weight_files import WeightsPaths
from epp.schedule.weights import WeightBook

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

#: Weights that are the unit of the others: only ratios matter, so one of them stays where it is.
_UNITS: Mapping[str, str] = MappingProxyType(dict.fromkeys(("gorgo", "gorgo-hillclimb"), "prefill_weight"))


@dataclass(frozen=True, slots=True)
class Given:
    """What a command was given.

    Attributes:
        config: the picker's configuration; the defaults where there is none.
        config_file: where it came from, None where there is none.
    """

    config: Config
    config_file: Path | None

    @property
    def source(self) -> str:
        """Where a mistake is, for people."""
        return "command line" if self.config_file is None else str(self.config_file)

    def path(self, flag: Path | None, configured: str) -> Path | None:
        """Return the path of a flag, else of the configuration, relative to its file; None for neither."""
        if flag is not None or not configured:
            return flag
        return (
            Path(configured) if self.config_file is None else self.config_file.resolve().parent / configured
        )

    def required(self, flag: Path | None, configured: str, key: str, fix: str) -> Path:
        """Return a path that something must name.

        Raises:
            ConfigError: nothing does.
        """
        found = self.path(flag, configured)
        if found is None:
            begin = "give --config epp.yaml, or" if self.config_file is None else "set it, or give"
            raise ConfigError(self.source, key, "not set", f"{begin} {fix}")
        return found

    def book(self, policy: str, params: Mapping[str, object] | None = None) -> WeightBook:
        """Return a policy's weights by the configuration alone.

        Raises:
            ConfigError: they are configured wrongly.
        """
        return WeightBook(
            policy=policy,
            specs=create(policy, params, source=self.source).weight_specs,
            configured=self.config.policy.weights,
            bounds=self.config.policy.bounds,
            source=self.source,
        )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say what is worked on."""
    for flag, metavar, text in (
        ("--config", "FILE", "the picker's configuration, e.g. epp.yaml"),
        ("--weights", "FILE", "the shared weights file (weights_file)"),
        ("--records", "DIR", "folder of flight records (records.folder)"),
        ("--settings", "FILE", "settings of this process"),
    ):
        parser.add_argument(flag, type=Path, metavar=metavar, help=text)


def read_given(arguments: argparse.Namespace) -> Given:
    """Read the configuration.

    Raises:
        ConfigError: its file is missing or wrong.
    """
    path = arguments.config
    return Given(Config() if path is None else parse_config(required_file(path), str(path), os.environ), path)


@dataclass(frozen=True, slots=True)
class WeightFiles:
    """A policy's weights and the files around them.

    Attributes:
        policy: whose weights they are.
        book: its weights by the configuration alone, with the bounds that pickers hold them by.
        paths: files around the weights file.
        records: folder of the flight recorder; of no meaning to who is only looking.
        overrides: the operator's file, None where none is configured.
        config: the picker's configuration.
        config_file: where it came from, None where there is none.
    """

    policy: str
    book: WeightBook
    paths: WeightsPaths
    records: Path
    overrides: Path | None
    config: Config
    config_file: Path | None

    def tuned_bounds(self) -> dict[str, tuple[float, float]]:
        """Return within what a tuner keeps each weight, by the values in the book."""
        bounds = tuner_bounds(self.policy, self.book.bounds)
        if self.policy in _UNITS:
            bounds[_UNITS[self.policy]] = (self.book.current.values[_UNITS[self.policy]],) * 2
        return bounds

    def read_pins(self) -> Mapping[str, float]:
        """Read what the operator's file pins now; nothing where there is none.

        Raises:
            ConfigError: nothing that can be used.
        """
        if self.overrides is None:
            return {}
        try:
            text = read_file(self.overrides)
        except OSError as error:
            raise ConfigError(str(self.overrides), "", error.strerror or str(error)) from error
        if text is None:
            return {}
        return parse_weights(text, str(self.overrides), policy=self.policy, bounds=self.book.bounds)


def add_weight_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say whose weights, and which files, are worked on."""
    add_arguments(parser)
    parser.add_argument("--overrides", type=Path, metavar="FILE", help="the operator's file (overrides_file)")


def read_weight_files(
    arguments: argparse.Namespace, *, records: Path | None = None, looking: bool = False
) -> WeightFiles:
    """Return what a command about weights works on.

    Args:
        arguments: of `add_weight_arguments`.
        records: of an offline rehearsal, which needs no weights file.
        looking: records are not read; they are needed only where no configuration names the policy.

    Raises:
        ConfigError: something is missing or wrong, or the policy has no weights.
    """
    found = read_given(arguments)
    config = found.config
    weights = None
    if records is None:
        weights = found.required(arguments.weights, config.weights_file, "weights_file", "--weights FILE")
    folder = records or found.path(arguments.records, config.records.folder)
    if folder is None and not (looking and arguments.config is not None):
        folder = found.required(None, "", "records.folder", "--records DIR")
    folder = folder or Path()
    name: str = config.policy.name
    params: Mapping[str, object] = config.policy.params
    if arguments.config is None:
        name, params = _recorded_policy(folder)
    book = found.book(name, params)
    if not book.bounds:
        raise ConfigError(
            found.source, "policy.name", f"policy {name!r} declares no weights: there is nothing to tune"
        )
    return WeightFiles(
        policy=name,
        book=book,
        paths=WeightsPaths(weights or folder / "weights.yaml"),
        records=folder,
        overrides=found.path(arguments.overrides, config.overrides_file),
        config=config,
        config_file=arguments.config,
    )


def _recorded_policy(folder: Path) -> tuple[str, Mapping[str, object]]:
    """Return policy and parameters of the newest decision."""
    fix = "give --config epp.yaml, or wait for records"
    try:
        files = record_files(folder)
    except EppError as error:
        raise ConfigError("command line", "", f"no configuration, and {error}", fix) from error
    for path in reversed(files):
        newest = None
        with suppress(EppError):  # another schema: what else there is may do
            for record in read_records(path):
                if record["kind"] == "decision" and record["basis"] == "policy":
                    newest = record
        if newest is not None:
            return newest["policy"], newest.get("params", {})
    raise ConfigError("command line", "", f"no configuration, and no decision in {folder}", fix)
