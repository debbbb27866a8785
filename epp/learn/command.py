"""`epp learn`: the learner as a process of its own, its training offline, its status.

Owns the process: its signals, its log, its priority, how often it looks. What it does is `epp.learn.loop`'s.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from epp.errors import EppError
from epp.learn import setup as setups
from epp.learn.disk import RealModelDisk
from epp.learn.loop import Loop
from epp.learn.offline import run_offline
from epp.learn.publish import Publisher
from epp.learn.status import status_lines
from epp.learn.store import MemoryStore
from epp.learn.trial import Contender
from epp.llmd.settings import LogSettings
from epp.server.clock import SystemClock
from epp.server.logs import configure
from epp.tune.audit import Audit
from epp.tune.command import build_session
from epp.tune.disk import RealDisk
from epp.tune.lock import TunerLock
from epp.tune.process import StopSignals, tidy, told_files
from epp.tune.setup import MOST_LOOK_INTERVAL_S, look_interval_s
from epp.tune.status import status_lines as trial_lines
from epp.tune.store import StateStore
from epp.tune.tuner import Tuner

if TYPE_CHECKING:
    import argparse

    from epp.learn.setup import Setup
    from epp.tune.setup import Setup as TrialSetup

log = logging.getLogger("epp.learn")

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
    parser.add_argument(
        "--every",
        type=look_interval_s,
        default=1.0,
        help=f"seconds between looks, up to {MOST_LOOK_INTERVAL_S:g} (%(default)s)",
    )


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
    for line in status_lines(setup.places, RealDisk(), now_wall_s):
        print(line)
    if setup.trial is None:
        print(f"no trial: {setup.note}")
        return 0
    trial = setup.trial
    state = StateStore(trial.places, RealDisk(), _warn).load()
    for line in trial_lines(state, trial.rules.settings, trial.places, now_wall_s):
        print(f"trial: {line}")
    return 0


def _run(setup: Setup, *, every_s: float) -> int:
    configure(LogSettings())
    with contextlib.ExitStack() as held:
        lock = TunerLock(setup.places.lock, tell=log.warning, who="learner")
        lock.acquire()
        held.callback(lock.release)
        os.nice(_NICE)
        stop = StopSignals()
        tidy(setup.places.model)
        loop = build_loop(setup, lock)
        loop.open()
        if setup.trial is None:
            log.info("no trial: %s", setup.note)
        else:
            trial_lock = TunerLock(setup.trial.places.lock, tell=log.warning)
            loop.heart.take(trial_lock)
            held.callback(trial_lock.release)
            tidy(setup.trial.places.weights, spared=setup.trial.places.asked)
            loop.trial = _trial(setup, setup.trial, loop, trial_lock)
            with told_files():
                loop.trial.open()
        log.info("learning from records of %s, models to %s", setup.records, setup.places.model)
        while not stop.wait(every_s):
            loop.tick()
        loop.close()
    log.info("stopped; the state is kept")
    return 0


def build_loop(setup: Setup, lock: TunerLock) -> Loop:
    """A loop on the files of a setup, without its trial; whoever makes one holds the lock."""
    disk = RealModelDisk()
    return Loop(
        settings=setup.settings,
        places=setup.places,
        disk=disk,
        records=setup.records,
        store=MemoryStore(setup.places, disk, setup.settings, log.warning),
        publisher=Publisher(setup.places, disk, keep=setup.settings.keep, check=lock.check, tell=log.warning),
        audit=Audit(setup.places, disk, log.warning, "learner"),
        lock=lock,
        clock=SystemClock(),
        tell=log.info,
    )


def _trial(setup: Setup, trial: TrialSetup, loop: Loop, lock: TunerLock) -> Tuner:
    clock = SystemClock()
    return Tuner(
        session=build_session(trial, lock.check, log.info, "learner"),
        places=trial.places,
        disk=RealDisk(),
        records=trial.records,
        overrides=trial.overrides,
        bounds=trial.file_bounds,
        lock=lock,
        clock=clock,
        rehearsal=Contender(lambda: loop.incumbent, clock, setup.settings.retry_s),
        tell=log.info,
        heart=loop.heart,
    )


def _warn(sentence: str) -> None:
    print(f"epp: {sentence}", file=sys.stderr)
