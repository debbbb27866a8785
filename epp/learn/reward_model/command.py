"""`epp learn`: the learner as a process of its own, its training offline, its status.

Owns the process: its signals, its log, its priority, how often it looks. What it does is
`epp.learn.reward_model.loop`'s.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from epp.errors import EppError
from epp.learn.reward_model import setup as setups
from epp.learn.reward_model.loop import Loop
from epp.learn.reward_model.offline import run_offline
from epp.learn.reward_model.status import status_lines
from epp.learn.reward_model.trial import Contender
from epp.learn.sidecar.files import Files
from epp.learn.sidecar.lock import ProcessLock
from epp.learn.sidecar.process import reported_files, run_until_stopped
from epp.learn.sidecar.setup import add_interval
from epp.learn.tuner.command import build_session, build_tuner
from epp.learn.tuner.session import memory_at
from epp.learn.tuner.status_command import status_lines as trial_lines
from epp.llmd.settings import LogSettings
from epp.server.clock import SystemClock
from epp.server.logs import configure

if TYPE_CHECKING:
    import argparse

    from epp.learn.reward_model.setup import Setup

log = logging.getLogger("epp.learn.reward_model")

_NICE = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    parser.add_argument("action", nargs="?", default="run", choices=("run", "status"), help="run (default)")
    setups.add_arguments(parser)
    parser.add_argument(
        "--offline", type=Path, metavar="DIR", help="train on these records, print every round, stop"
    )
    parser.add_argument("--seed", type=int, default=0, help="of a training offline (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print a training offline as JSON")
    add_interval(parser)


def run(arguments: argparse.Namespace) -> int:
    """Do what was asked."""
    if arguments.offline is not None:
        if arguments.seed < 0:
            raise EppError("--seed must be 0 or more")
        setup = setups.read_setup(arguments, records=arguments.offline)
        return run_offline(
            setup.records, setup.settings, seed=arguments.seed, out=arguments.model, as_json=arguments.json
        )
    if arguments.action == "status":
        return _status(setups.read_setup(arguments, looking=True))
    return _run(setups.read_setup(arguments), every_s=arguments.every)


def _status(setup: Setup) -> int:
    now_wall_s = time.time()
    for line in status_lines(setup.paths, Files(), now_wall_s):
        print(line)
    if setup.trial is None:
        print(f"no trial: {setup.note}")
        return 0
    trial = setup.trial
    for line in trial_lines(memory_at(trial.paths).load(), trial.rules.settings, trial.paths, now_wall_s):
        print(f"trial: {line}")
    return 0


def _run(setup: Setup, *, every_s: float) -> int:
    configure(LogSettings())
    with contextlib.ExitStack() as held:
        held.enter_context(ProcessLock(setup.paths.lock, "learner"))
        os.nice(_NICE)
        loop = build_loop(setup)
        loop.open()
        if setup.trial is None:
            log.info("no trial: %s", setup.note)
        else:
            trial = setup.trial
            held.enter_context(ProcessLock(trial.paths.lock, "tuner"))
            contender = Contender(lambda: loop.incumbent, SystemClock(), setup.settings.retry_s)
            loop.trial = build_tuner(trial, build_session(trial, log.info, log.info), contender)
            with reported_files():
                loop.trial.open()
        log.info("learning from records of %s, models to %s", setup.records, setup.paths.model)
        run_until_stopped(loop.tick, every_s)
        loop.close()
    log.info("stopped; the state is kept")
    return 0


def build_loop(setup: Setup) -> Loop:
    """A loop on the files of a setup, without its trial; whoever makes one holds the lock."""
    return Loop(
        settings=setup.settings,
        paths=setup.paths,
        files=Files(),
        records=setup.records,
        clock=SystemClock(),
        tell=log.info,
    )
