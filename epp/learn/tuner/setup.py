"""What the commands work on: policy, bounds, settings, files; from a configuration, or flags and records.

Owns which weights may be tuned and every mistake that can be told before anything starts.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from epp.errors import ConfigError, EppError
from epp.learn.sidecar import setup as given
from epp.learn.sidecar.paths import WeightsPaths
from epp.learn.tuner.bounds import tuner_bounds
from epp.learn.tuner.calibrate import newest_records
from epp.learn.tuner.settings import TunerKeys, tuner_settings
from epp.learn.tuner.state import Rules
from epp.policies.registry import create
from epp.schedule.weights import WeightBook

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from epp.config.schema import Config

#: Weights that are the unit of the others: only ratios matter, so one of them stays where it is.
_UNITS: Mapping[str, str] = MappingProxyType({"gorgo": "prefill_weight"})


@dataclass(frozen=True, slots=True)
class Setup:
    """Everything that is configured.

    Attributes:
        policy: that is tuned.
        starting: its weights where no shared file says other ones.
        file_bounds: of every weight, as pickers hold them.
        rules: what the tuner goes by.
        paths: files around the weights file.
        records: folder of the flight recorder; of no meaning to who is only looking.
        overrides: the operator's file, None where none is configured.
        config: the picker's configuration.
        config_file: where it came from, None where there is none.
    """

    policy: str
    starting: Mapping[str, float]
    file_bounds: Mapping[str, tuple[float, float]]
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
    """The setup of a command.

    Args:
        arguments: of `add_arguments`.
        records: of an offline rehearsal, which needs no weights file.
        looking: records are not read; they are needed only where no configuration names the policy.

    Raises:
        ConfigError: something is missing or wrong, or the policy has no weights.
    """
    found = given.read_given(arguments, TunerKeys())
    config = found.config
    weights = found.path(arguments.weights, config.weights_file)
    folder = records or found.path(arguments.records, config.records.folder)
    if weights is None and records is None:
        raise found.missing("weights_file", "--weights FILE")
    if folder is None and weights is not None and looking and arguments.config is not None:
        folder = weights.parent
    if folder is None:
        raise found.missing("records.folder", "--records DIR")
    name: str = config.policy.name
    params: Mapping[str, object] = config.policy.params
    if arguments.config is None:
        name, params = _recorded_policy(folder)
    book = _book(config, name, params, found.source)
    starting = dict(book.current.values)
    bounds = tuner_bounds(name, book.bounds)
    if name in _UNITS:
        bounds[_UNITS[name]] = (starting[_UNITS[name]],) * 2
    return Setup(
        policy=name,
        starting=starting,
        file_bounds=book.bounds,
        rules=Rules(tuner_settings(found.settings), bounds, starting),
        paths=WeightsPaths(weights or folder / "weights.yaml"),
        records=folder,
        overrides=found.path(arguments.overrides, config.overrides_file),
        config=config,
        config_file=arguments.config,
    )


def _book(config: Config, name: str, params: Mapping[str, object], source: str) -> WeightBook:
    """Weights of a policy by the configuration alone.

    Raises:
        ConfigError: it has none, or they are configured wrongly.
    """
    policy = create(name, params, source=source)
    if not policy.weight_specs:
        raise ConfigError(
            source, "policy.name", f"policy {name!r} declares no weights: there is nothing to tune"
        )
    return WeightBook(
        policy=name,
        specs=policy.weight_specs,
        configured=config.policy.weights,
        bounds=config.policy.bounds,
        source=source,
    )


def _recorded_policy(folder: Path) -> tuple[str, Mapping[str, object]]:
    """Policy and parameters of the newest decision."""
    fix = "give --config epp.yaml, or wait for records"
    try:
        decisions, _ = newest_records(folder, "", 1)
    except EppError as error:
        raise ConfigError("command line", "", f"no configuration, and {error}", fix) from error
    if not decisions:
        raise ConfigError("command line", "", f"no configuration, and no decision in {folder}", fix)
    return decisions[-1]["policy"], decisions[-1].get("params", {})
