"""What the commands work on: policy, bounds, settings, files; from a configuration, or flags and records.

Owns which weights may be tuned; reports every mistake that can be found before anything starts.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from epp.config.bounds import tuner_bounds
from epp.errors import ConfigError, EppError
from epp_lab.sidecar import setup as given
from epp_lab.sidecar.process import WeightsPaths
from epp_lab.tuner.calibrate import newest_records
from epp_lab.tuner.settings import TunerKeys, tuner_settings
from epp_lab.tuner.state import Rules

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from epp.config.schema import Config
    from epp.schedule.weights import WeightBook

#: Weights that are the unit of the others: only ratios matter, so one of them stays where it is.
_UNITS: Mapping[str, str] = MappingProxyType({"gorgo": "prefill_weight"})


@dataclass(frozen=True, slots=True)
class Setup:
    """Everything that is configured.

    Attributes:
        policy: that is tuned.
        book: its weights by the configuration alone, with the bounds that pickers hold them by.
        rules: what the tuner goes by.
        paths: files around the weights file.
        records: folder of the flight recorder; of no meaning to who is only looking.
        overrides: the operator's file, None where none is configured.
        config: the picker's configuration.
        config_file: where it came from, None where there is none.
    """

    policy: str
    book: WeightBook
    rules: Rules
    paths: WeightsPaths
    records: Path
    overrides: Path | None
    config: Config
    config_file: Path | None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say what is worked on."""
    given.add_arguments(parser)
    parser.add_argument("--overrides", type=Path, metavar="FILE", help="the operator's file (overrides_file)")


def read_setup(arguments: argparse.Namespace, *, records: Path | None = None, looking: bool = False) -> Setup:
    """Return the setup of a command.

    Args:
        arguments: of `add_arguments`.
        records: of an offline rehearsal, which needs no weights file.
        looking: records are not read; they are needed only where no configuration names the policy.

    Raises:
        ConfigError: something is missing or wrong, or the policy has no weights.
    """
    found = given.read_given(arguments, TunerKeys())
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
    starting = dict(book.current.values)
    bounds = tuner_bounds(name, book.bounds)
    if name in _UNITS:
        bounds[_UNITS[name]] = (starting[_UNITS[name]],) * 2
    return Setup(
        policy=name,
        book=book,
        rules=Rules(tuner_settings(found.settings), bounds, starting),
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
        decisions, _ = newest_records(folder, "", 1)
    except EppError as error:
        raise ConfigError("command line", "", f"no configuration, and {error}", fix) from error
    if not decisions:
        raise ConfigError("command line", "", f"no configuration, and no decision in {folder}", fix)
    return decisions[-1]["policy"], decisions[-1].get("params", {})
