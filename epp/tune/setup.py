"""What the commands work on: policy, bounds, settings, files; from a configuration, or flags and records.

Owns which weights may be tuned and every mistake that can be told before anything starts.
"""

from __future__ import annotations

import math
from argparse import ArgumentTypeError
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from epp.config.load import parse_config
from epp.config.schema import Config
from epp.config.strict import decode
from epp.decide.weights import WeightBook
from epp.errors import ConfigError, EppError
from epp.policies.registry import create
from epp.server.files import required_file
from epp.tune.calibrate import newest_records
from epp.tune.lock import STALE_S
from epp.tune.places import Places
from epp.tuner.bounds import tuner_bounds
from epp.tuner.settings import TunerSettings
from epp.tuner.state import Rules

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

#: Weights that are the unit of the others: only ratios matter, so one of them stays where it is.
_UNITS: Mapping[str, str] = MappingProxyType({"gorgo": "prefill_weight"})
#: A heartbeat that is this late leaves others time to see the next one before they break the lock.
MOST_LOOK_INTERVAL_S = STALE_S / 3


@dataclass(frozen=True, slots=True)
class Setup:
    """Everything that is configured.

    Attributes:
        policy: that is tuned.
        starting: its weights where no shared file says other ones.
        file_bounds: of every weight, as pickers hold them.
        rules: what the tuner goes by.
        places: files around the weights file.
        records: folder of the flight recorder; of no meaning to who is only looking.
        overrides: the operator's file, None where none is configured.
        config: the picker's configuration.
        config_file: where it came from, None where there is none.
    """

    policy: str
    starting: Mapping[str, float]
    file_bounds: Mapping[str, tuple[float, float]]
    rules: Rules
    places: Places
    records: Path
    overrides: Path | None
    config: Config
    config_file: Path | None


def look_interval_s(text: str) -> float:
    """The value of a flag that says how often is looked: the lock has its heartbeat with each look.

    Raises:
        ArgumentTypeError: it is no number above 0, or one that makes the lock look abandoned.
    """
    try:
        interval_s = float(text)
    except ValueError:
        interval_s = math.nan
    if not 0.0 < interval_s <= MOST_LOOK_INTERVAL_S:
        raise ArgumentTypeError(f"{text!r} is not a number above 0, up to {MOST_LOOK_INTERVAL_S:g}")
    return interval_s


def at_least_one(text: str) -> int:
    """The value of a flag that counts, from 1.

    Raises:
        ArgumentTypeError: it does not.
    """
    if not text.isdecimal() or not int(text):
        raise ArgumentTypeError(f"{text!r} is not a whole number from 1")
    return int(text)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags that say what is worked on."""
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="the picker's configuration, e.g. epp.yaml"
    )
    parser.add_argument("--weights", type=Path, metavar="FILE", help="the shared weights file (weights_file)")
    parser.add_argument(
        "--records", type=Path, metavar="DIR", help="folder of flight records (records.folder)"
    )
    parser.add_argument("--overrides", type=Path, metavar="FILE", help="the operator's file (overrides_file)")
    parser.add_argument(
        "--settings", type=Path, metavar="FILE", help="the tuner's settings, see docs/configuration.md"
    )


def read_setup(arguments: argparse.Namespace, *, records: Path | None = None, looking: bool = False) -> Setup:
    """The setup of a command.

    Args:
        arguments: of `add_arguments`.
        records: of an offline rehearsal, which needs no weights file.
        looking: records are not read; they are needed only where no configuration names the policy.

    Raises:
        ConfigError: something is missing or wrong, or the policy has no weights.
    """
    config, base, source = Config(), Path(), "command line"
    if arguments.config is not None:
        source = str(arguments.config)
        config = parse_config(required_file(arguments.config), source)
        base = arguments.config.resolve().parent
    set_it = "set it, or give" if arguments.config is not None else "give --config epp.yaml, or"
    weights = arguments.weights or _named(base, config.weights_file)
    folder = records or arguments.records or _named(base, config.records.folder)
    if weights is None and records is None:
        raise ConfigError(source, "weights_file", "not set", f"{set_it} --weights FILE")
    if folder is None and weights is not None and looking and arguments.config is not None:
        folder = weights.parent
    if folder is None:
        raise ConfigError(source, "records.folder", "not set", f"{set_it} --records DIR")
    settings = TunerSettings()
    if arguments.settings is not None:
        settings = decode(required_file(arguments.settings), TunerSettings, str(arguments.settings))
    name: str = config.policy.name
    params: Mapping[str, object] = config.policy.params
    if arguments.config is None:
        name, params = _recorded_policy(folder)
    book = _book(config, name, params, source)
    starting = dict(book.current.values)
    bounds = tuner_bounds(name, book.bounds)
    if name in _UNITS:
        bounds[_UNITS[name]] = (starting[_UNITS[name]],) * 2
    return Setup(
        policy=name,
        starting=starting,
        file_bounds=book.bounds,
        rules=Rules(settings, bounds, starting),
        places=Places(weights or folder / "weights.yaml"),
        records=folder,
        overrides=arguments.overrides or _named(base, config.overrides_file),
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


def _named(base: Path, name: str) -> Path | None:
    return base / name if name else None
