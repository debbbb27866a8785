"""What the command works on: the model file, records, settings, and whether a trial can be held.

Owns every mistake that can be told before anything starts.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from epp.config.load import parse_config
from epp.config.schema import Config
from epp.config.strict import decode
from epp.decide.weights import WeightBook
from epp.errors import ConfigError
from epp.learn.places import ModelPlaces
from epp.learner.challenger import LEARNED, POLICY, STARTING, WEIGHT
from epp.learner.settings import LearnerSettings
from epp.policies.registry import create
from epp.server.files import read_file, required_file
from epp.tune.places import Places
from epp.tune.setup import Setup as TrialSetup
from epp.tuner.state import Rules

if TYPE_CHECKING:
    import argparse


@dataclass(frozen=True, slots=True)
class Setup:
    """Everything that is configured.

    Attributes:
        settings: of the learner.
        places: files around the model file.
        records: folder of the flight recorder.
        trial: what a trial works on; None where models decide without one, or only shadow.
        note: why there is no trial, in words; empty when there is one.
    """

    settings: LearnerSettings
    places: ModelPlaces
    records: Path
    trial: TrialSetup | None
    note: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags that say what is worked on."""
    parser.add_argument("--config", type=Path, help="the picker's configuration, e.g. epp.yaml")
    parser.add_argument("--model", type=Path, metavar="FILE", help="the model file (policy.model_file)")
    parser.add_argument(
        "--records", type=Path, metavar="DIR", help="folder of flight records (records.folder)"
    )
    parser.add_argument(
        "--weights", type=Path, metavar="FILE", help="the shared weights file (weights_file), for trials"
    )
    parser.add_argument(
        "--settings", type=Path, metavar="FILE", help="the learner's settings, see docs/learner.md"
    )
    parser.add_argument(
        "--promotion",
        choices=("switchback", "screen"),
        help="how a first model comes to decide (the settings' word otherwise)",
    )


def read_setup(arguments: argparse.Namespace, *, records: Path | None = None, looking: bool = False) -> Setup:
    """The setup of a command.

    Args:
        arguments: of `add_arguments`.
        records: of a training offline, which needs no model file.
        looking: nothing is going to be done: the model file is enough.

    Raises:
        ConfigError: something is missing or wrong.
    """
    config, base, source = Config(), Path(), "command line"
    if arguments.config is not None:
        source = str(arguments.config)
        config = parse_config(required_file(arguments.config), source)
        base = arguments.config.resolve().parent
    settings = LearnerSettings()
    if arguments.settings is not None:
        settings = decode(required_file(arguments.settings), LearnerSettings, str(arguments.settings))
    model = arguments.model or _named(base, config.policy.model_file)
    folder = records or arguments.records or _named(base, config.records.folder)
    if model is None and records is None:
        raise ConfigError(source, "policy.model_file", "not set", "set it, or give --model")
    if folder is None and looking and model is not None:
        folder = model.parent
    if folder is None:
        raise ConfigError(source, "records.folder", "not set", "set it, or give --records")
    places = ModelPlaces(model or folder / "reward.json")
    promotion = arguments.promotion or settings.promotion
    settings = msgspec.structs.replace(settings, promotion=promotion)
    weights = arguments.weights or _named(base, config.weights_file)
    if records is not None or promotion == "screen":
        note = "models decide as soon as they pass the gate"
        if records is None and config.policy.name == POLICY:
            note += _but_for(config, weights, source)
        return Setup(settings, places, folder, None, note)
    if arguments.config is not None and config.policy.name != POLICY:
        note = f"policy {config.policy.name} decides: models are for its shadows"
        return Setup(settings, places, folder, None, note)
    if weights is None and looking:
        return Setup(settings, places, folder, None, "not looked for: --weights or --config names its file")
    if weights is None:
        fix = "set it, or give --weights; --promotion screen does without a trial"
        raise ConfigError(source, "weights_file", "not set: a trial needs it", fix)
    trial = _trial(
        arguments=arguments,
        settings=settings,
        config=config,
        base=base,
        weights=weights,
        records=folder,
        source=source,
    )
    return Setup(settings, places, folder, trial)


def _trial(
    *,
    arguments: argparse.Namespace,
    settings: LearnerSettings,
    config: Config,
    base: Path,
    weights: Path,
    records: Path,
    source: str,
) -> TrialSetup:
    book = _book(config, source)
    return TrialSetup(
        policy=POLICY,
        starting=STARTING,
        file_bounds=book.bounds,
        rules=Rules(settings.trial, {name: book.bounds[name] for name in STARTING}),
        places=Places(weights),
        records=records,
        overrides=_named(base, config.overrides_file),
        config=config,
        config_file=arguments.config,
    )


def _book(config: Config, source: str) -> WeightBook:
    """The learned policy's weights by the configuration alone.

    Raises:
        ConfigError: they are configured wrongly.
    """
    return WeightBook(
        policy=POLICY,
        specs=create(POLICY, {}, source=source).weight_specs,
        configured=config.policy.weights,
        bounds=config.policy.bounds,
        source=source,
    )


def _but_for(config: Config, weights: Path | None, source: str) -> str:
    """What a trial has left that no learner without one takes away; empty where nothing is in the way."""
    if weights is None:
        return ""
    try:
        book = _book(config, source)
        book.update("tuner", read_file(weights), str(weights))
    except (ConfigError, OSError):  # pickers refuse it too, and say so
        return ""
    if book.plan.weights.get(WEIGHT, 1.0) >= LEARNED:
        return ""
    return f"; but {weights} has {WEIGHT}: 0, of a trial: the heuristic decides until that file is removed"


def _named(base: Path, name: str) -> Path | None:
    return base / name if name else None
