"""What the command works on: the model file, records, settings, and whether a trial can be held.

Owns every mistake that can be told before anything starts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from epp.errors import ConfigError
from epp.learn.reward_model.challenger import LEARNED, POLICY, STARTING, WEIGHT
from epp.learn.reward_model.settings import LearnerKeys, learner_settings
from epp.learn.sidecar import setup as given
from epp.learn.sidecar.paths import ModelPaths, WeightsPaths
from epp.learn.tuner.setup import Setup as TrialSetup
from epp.learn.tuner.state import Rules
from epp.policies.registry import create
from epp.schedule.weights import WeightBook
from epp.server.files import read_file

if TYPE_CHECKING:
    import argparse

    from epp.config.schema import Config
    from epp.learn.reward_model.settings import LearnerSettings


@dataclass(frozen=True, slots=True)
class Setup:
    """Everything that is configured.

    Attributes:
        settings: of the learner.
        paths: files around the model file.
        records: folder of the flight recorder.
        trial: what a trial works on; None where models decide without one, or only shadow.
        note: why there is no trial, in words; empty when there is one.
    """

    settings: LearnerSettings
    paths: ModelPaths
    records: Path
    trial: TrialSetup | None
    note: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say what is worked on."""
    given.add_arguments(parser)
    parser.add_argument("--model", type=Path, metavar="FILE", help="the model file (policy.model_file)")
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
    found = given.read_given(arguments, LearnerKeys())
    config = found.config
    model = found.path(arguments.model, config.policy.model_file)
    folder = records or found.path(arguments.records, config.records.folder)
    if model is None and records is None:
        raise found.missing("policy.model_file", "--model FILE")
    if folder is None and looking and model is not None:
        folder = model.parent
    if folder is None:
        raise found.missing("records.folder", "--records DIR")
    settings = learner_settings(found.settings)
    settings = msgspec.structs.replace(settings, promotion=arguments.promotion or settings.promotion)
    weights = found.path(arguments.weights, config.weights_file)
    setup = Setup(settings, ModelPaths(model or folder / "reward.json"), folder, None)
    if records is not None or settings.promotion == "screen":
        note = "models decide as soon as they pass the gate"
        if records is None and config.policy.name == POLICY:
            note += _but_for(config, weights, found.source)
        return replace(setup, note=note)
    if arguments.config is not None and config.policy.name != POLICY:
        return replace(setup, note=f"policy {config.policy.name} decides: models are for its shadows")
    if weights is None and looking:
        return replace(setup, note="not looked for: --weights or --config names its file")
    if weights is None:
        fix = "set it, or give --weights; --promotion screen does without a trial"
        raise ConfigError(found.source, "weights_file", "not set: a trial needs it", fix)
    book = _book(config, found.source)
    trial = TrialSetup(
        policy=POLICY,
        starting=STARTING,
        file_bounds=book.bounds,
        rules=Rules(settings.trial, {name: book.bounds[name] for name in STARTING}),
        paths=WeightsPaths(weights),
        records=folder,
        overrides=found.path(None, config.overrides_file),
        config=config,
        config_file=arguments.config,
    )
    return replace(setup, trial=trial)


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
