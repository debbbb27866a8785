"""`epp learn`: the learner as a process of its own, its training offline, its status.

Owns what the command works on: the model file, records, settings, and whether a trial can be held; reports
every mistake that can be found before anything starts.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from epp.config.plan import parse_plan
from epp.errors import ConfigError, EppError
from epp.feeds.files import read_file
from epp.feeds.lead import is_led
from epp.logs import LogSettings, configure
from epp.ops import given
from epp.records.model_files import dump_reward_model
from epp.records.weight_files import WeightsPaths
from epp.server.process import SystemClock
from epp_lab.reward_model.loop import Loop, Setup, round_lines, status_lines
from epp_lab.reward_model.rounds import Learner
from epp_lab.reward_model.samples import all_on_file
from epp_lab.reward_model.settings import LearnerKeys, learner_settings
from epp_lab.reward_model.trial import LEARNED, POLICY, STARTING, WEIGHT, Contender
from epp_lab.sidecar.process import Files, ModelPaths, Turn, lead_of, process_lock
from epp_lab.sidecar.setup import add_interval, read_settings
from epp_lab.tuner.setup import Setup as TrialSetup
from epp_lab.tuner.state import Rules
from epp_lab.tuner.status import status_lines as trial_lines
from epp_lab.tuner.tuner import Tuner, read_state

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping


def read_setup(arguments: argparse.Namespace, *, records: Path | None = None, looking: bool = False) -> Setup:
    """Return the setup of a command.

    Args:
        arguments: of `add_arguments`.
        records: of a training offline, which needs no model file.
        looking: nothing is going to be done: the model file is enough.

    Raises:
        ConfigError: something is missing or wrong.
    """
    found = given.read_given(arguments)
    config, folder = found.config, records
    model = found.path(arguments.model, config.policy.model_file)
    if folder is None:
        model = found.required(arguments.model, config.policy.model_file, "policy.model_file", "--model FILE")
        place = str(model.parent.resolve()) if looking else ""
        folder = found.required(
            arguments.records, config.records.folder or place, "records.folder", "--records DIR"
        )
    settings = learner_settings(read_settings(arguments, LearnerKeys()))
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


log = logging.getLogger("epp_lab.reward_model")

_NICE = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the command."""
    parser.add_argument("action", nargs="?", default="run", choices=("run", "status"), help="run (default)")
    given.add_arguments(parser)
    parser.add_argument("--model", type=Path, metavar="FILE", help="the model file (policy.model_file)")
    parser.add_argument(
        "--promotion",
        choices=("switchback", "screen"),
        help="how a first model comes to decide (the settings' word otherwise)",
    )
    parser.add_argument(
        "--offline", type=Path, metavar="DIR", help="train on these records, print every round, stop"
    )
    parser.add_argument("--seed", type=int, default=0, help="of a training offline (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print a training offline as JSON")
    add_interval(parser)


def run(arguments: argparse.Namespace) -> int:
    """Do what was asked."""
    if arguments.offline is not None:
        setup = read_setup(arguments, records=arguments.offline)
        return _run_offline(setup, seed=arguments.seed, out=arguments.model, as_json=arguments.json)
    if arguments.action == "status":
        return _status(read_setup(arguments, looking=True))
    return _run(read_setup(arguments), every_s=arguments.every)


def _run_offline(setup: Setup, *, seed: int, out: Path | None, as_json: bool) -> int:
    """Hold rounds over what is on file, in the order of time, as a learner would have; 0 when a model passed.

    Raises:
        EppError: there are no records, too few of them, or the model cannot be written.
    """
    settings, rounds = setup.settings, []
    learner = Learner(settings, seed)
    for entry in all_on_file(setup.records, settings.network.features, _warn):
        learner.add(entry)
        if learner.due():
            learner.train(entry.ended_wall_s)
            if (held := learner.last) is not None:
                rounds.append(held)
            if held is not None and not as_json:
                print("\n".join(round_lines(held)))
    if not rounds:
        raise EppError(
            f"{setup.records}: {learner.memory.seen} usable requests of {settings.data.first} for a first "
            "round (data.first of --settings)"
        )
    if as_json:
        print(msgspec.json.format(msgspec.json.encode({"rounds": rounds})).decode())
    model = learner.incumbent
    if model is None:
        _warn("no model passed the gate")
        return 1
    if out is not None:
        Files().replace(out, dump_reward_model(model))
    if not as_json:
        print(f"model {model.version}" + (f" written to {out}" if out else ": give --model FILE to keep it"))
    return 0


def _status(setup: Setup) -> int:
    now_wall_s, trial = time.time(), setup.trial
    for line in status_lines(setup.paths, now_wall_s):
        print(line)
    if trial is None:
        print(f"no trial: {setup.note}")
        return 0
    for line in trial_lines(read_state(trial.paths), trial.paths, now_wall_s):
        print(f"trial: {line}")
    return 0


def _run(setup: Setup, *, every_s: float) -> int:
    configure(LogSettings())
    clock = SystemClock()

    def begin() -> Loop:
        loop = Loop(setup, clock=clock, report=log.info)
        loop.open(go_on=is_led(setup.config))
        if setup.trial is None:
            log.info("no trial: %s", setup.note)
        else:
            contender = Contender(lambda: loop.learner.incumbent, clock, setup.settings.retry_s)
            loop.trial = Tuner(
                setup.trial,
                rehearsal=contender,
                clock=clock,
                report=log.info,
            )
            loop.trial.open()
        log.info("learning from records of %s, models to %s", setup.records, setup.paths.model)
        return loop

    with contextlib.ExitStack() as held:
        held.enter_context(process_lock(setup.paths.lock, "learner"))
        if setup.trial is not None:
            held.enter_context(process_lock(setup.trial.paths.lock, "tuner"))
        os.nice(_NICE)
        Turn(begin, partial(lead_of, setup.config, setup.records), log.info).run(every_s)
    log.info("stopped; the state is kept")
    return 0


def _warn(sentence: str) -> None:
    print(f"epp: {sentence}", file=sys.stderr)
