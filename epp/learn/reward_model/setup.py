"""What the command works on: the model file, records, settings, and whether a trial can be held.

Reports every mistake that can be found before anything starts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from epp.config.plan import parse_plan
from epp.errors import ConfigError
from epp.learn.reward_model.settings import LearnerKeys, learner_settings
from epp.learn.reward_model.trial import LEARNED, POLICY, STARTING, WEIGHT
from epp.learn.sidecar import setup as given
from epp.learn.sidecar.files import ModelPaths, WeightsPaths
from epp.learn.tuner.setup import Setup as TrialSetup
from epp.learn.tuner.state import Rules
from epp.server.files import read_file

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from epp.config.schema import Config
    from epp.learn.reward_model.settings import LearnerSettings


@dataclass(frozen=True, slots=True)
class Setup:
    """Everything that is configured.

    Attributes:
        settings: of the learner.
        paths: files around the model file.
        records: folder of the flight recorder.
        config: the picker's configuration.
        trial: what a trial works on; None where models decide without one, or only shadow.
        note: why there is no trial, in words; empty when there is one.
    """

    settings: LearnerSettings
    paths: ModelPaths
    records: Path
    config: Config
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
    """Return the setup of a command.

    Args:
        arguments: of `add_arguments`.
        records: of a training offline, which needs no model file.
        looking: nothing is going to be done: the model file is enough.

    Raises:
        ConfigError: something is missing or wrong.
    """
    found = given.read_given(arguments, LearnerKeys())
    config, folder = found.config, records
    model = found.path(arguments.model, config.policy.model_file)
    if folder is None:
        model = found.required(arguments.model, config.policy.model_file, "policy.model_file", "--model FILE")
        place = str(model.parent.resolve()) if looking else ""
        folder = found.required(
            arguments.records, config.records.folder or place, "records.folder", "--records DIR"
        )
    settings = learner_settings(found.settings)
    settings = msgspec.structs.replace(settings, promotion=arguments.promotion or settings.promotion)
    weights = found.path(arguments.weights, config.weights_file)
    setup = Setup(settings, ModelPaths(model or folder / "reward.json"), folder, config, None)
    if records is not None or settings.promotion == "screen":
        note = "models decide as soon as they pass the gate"
        if records is None and config.policy.name == POLICY and weights is not None:
            note += _left_by_a_trial(weights, found.book(POLICY).bounds)
        return replace(setup, note=note)
    if arguments.config is not None and config.policy.name != POLICY:
        return replace(setup, note=f"policy {config.policy.name} decides: models are for its shadows")
    if weights is None and looking:
        return replace(setup, note="not looked for: --weights or --config names its file")
    if weights is None:
        fix = "set it, or give --weights; --promotion screen does without a trial"
        raise ConfigError(found.source, "weights_file", "not set: a trial needs it", fix)
    book = found.book(POLICY)
    trial = TrialSetup(
        policy=POLICY,
        book=book,
        rules=Rules(settings.trial, {name: book.bounds[name] for name in STARTING}, STARTING),
        paths=WeightsPaths(weights),
        records=folder,
        overrides=found.path(None, config.overrides_file),
        config=config,
        config_file=arguments.config,
    )
    return replace(setup, trial=trial)


def _left_by_a_trial(weights: Path, bounds: Mapping[str, tuple[float, float]]) -> str:
    """Say what of a trial keeps models from deciding; empty where nothing does."""
    try:
        plan = parse_plan(read_file(weights) or b"{}", str(weights), policy=POLICY, bounds=bounds)
    except (ConfigError, OSError):  # pickers refuse it too, and say so
        return ""
    if plan.weights.get(WEIGHT, 1.0) >= LEARNED:
        return ""
    return f"; but {weights} has {WEIGHT}: 0, of a trial: the heuristic decides until that file is removed"
