"""What sidecar commands are given: the picker's configuration, own settings, flags that win over both."""

from __future__ import annotations

import math
import os
from argparse import ArgumentTypeError
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from epp.config.load import parse_config
from epp.config.schema import Config
from epp.config.section import Section
from epp.config.strict import decode
from epp.errors import ConfigError
from epp.policies.registry import create
from epp.schedule.weights import WeightBook
from epp.server.files import required_file

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

S = TypeVar("S", bound=Section)
#: Requests of operators and pins are answered within so long.
LONGEST_LOOK_INTERVAL_S = 10.0


@dataclass(frozen=True, slots=True)
class Given(Generic[S]):
    """What a command was given.

    Attributes:
        config: the picker's configuration; the defaults where there is none.
        config_file: where it came from, None where there is none.
        settings: of the sidecar.
    """

    config: Config
    config_file: Path | None
    settings: S

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


def read_given(arguments: argparse.Namespace, defaults: S) -> Given[S]:
    """Read the configuration and the settings.

    Args:
        arguments: of `add_arguments`.
        defaults: settings where no file is given.

    Raises:
        ConfigError: a file is missing or wrong.
    """
    config, settings = Config(), defaults
    if arguments.config is not None:
        config = parse_config(required_file(arguments.config), str(arguments.config), os.environ)
    if arguments.settings is not None:
        settings = decode(required_file(arguments.settings), type(defaults), str(arguments.settings))
    return Given(config, arguments.config, settings)
