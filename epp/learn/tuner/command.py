"""`epp tune`: the tuner as a process of its own, its rehearsal offline, its status, and words to it.

Owns the process: its signals, its log and how often it looks. What it does is `epp.learn.tuner.tuner`'s.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from epp.config.load import parse_weights
from epp.errors import ConfigError, EppError
from epp.learn.sidecar.files import Files
from epp.learn.sidecar.lock import LockHeldError, ProcessLock
from epp.learn.sidecar.process import reported_files, run_until_stopped
from epp.learn.sidecar.setup import add_interval
from epp.learn.tuner import setup as setups
from epp.learn.tuner.offline import BUDGET, ChildRehearsal, run_child, run_offline
from epp.learn.tuner.operator_requests import as_done, ask, not_done, read_requests, withdraw
from epp.learn.tuner.session import Session, memory_at
from epp.learn.tuner.status_command import status_lines, went_by
from epp.learn.tuner.tuner import Tuner, cursor_of
from epp.llmd.settings import LogSettings
from epp.server.clock import SystemClock
from epp.server.files import read_file
from epp.server.logs import configure

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from epp.learn.tuner.operator_requests import OperatorRequest
    from epp.learn.tuner.setup import Setup
    from epp.learn.tuner.state import State
    from epp.learn.tuner.tuner import Rehearsal

log = logging.getLogger("epp.learn.tuner")

#: What a running tuner starts as a process of its own; nobody else needs it, so that it is not shown.
_CHILD = "rehearse"


ACTIONS = ("run", "status", "freeze", "thaw")


def _action(text: str) -> str:
    if text not in {*ACTIONS, _CHILD}:
        raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(ACTIONS)}")
    return text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    parser.add_argument(
        "action",
        nargs="?",
        default="run",
        type=_action,
        metavar="ACTION",
        help="run (default): tune beside the picker until SIGTERM; status: phase, incumbent, candidate, "
        "evidence so far, next step; freeze: no search until thawed, a running trial ends; thaw: search",
    )
    setups.add_arguments(parser)
    parser.add_argument(
        "--offline", type=Path, metavar="DIR", help="rehearse on these records, print what would be set, stop"
    )
    parser.add_argument(
        "--budget",
        type=_at_least_one,
        default=BUDGET,
        help="simulated measurements of a rehearsal (%(default)s)",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of an offline rehearsal (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print an offline rehearsal as JSON")
    parser.add_argument("--reason", default="", help="why, for the log and the status (freeze, thaw)")
    add_interval(parser)


def run(arguments: argparse.Namespace) -> int:
    """Do what was asked.

    Raises:
        EppError: flags that go against each other, or what the action says.
    """
    if arguments.action == _CHILD:
        return run_child()
    if arguments.offline is not None and arguments.action != "run":
        raise ConfigError("command line", "--offline", f"goes without {arguments.action!r}", "leave one out")
    if arguments.offline is not None:
        setup = setups.read_setup(arguments, records=arguments.offline)
        return run_offline(
            setup,
            budget=arguments.budget,
            seed=arguments.seed,
            pins=read_pins(setup),
            as_json=arguments.json,
        )
    setup = setups.read_setup(arguments, looking=arguments.action != "run")
    if arguments.action == "status":
        state = memory_at(setup.paths).load()
        setup = _as_remembered(setup, state)
        for line in status_lines(state, setup.rules.settings, setup.paths, time.time()):
            print(line)
        if state is not None and state.policy != setup.policy:
            print(f"configured is policy {setup.policy}: a tuner that is started now begins anew with it")
        return 0
    if arguments.action in ("freeze", "thaw"):
        return tell_tuner(setup, arguments.action, reason=arguments.reason)
    return _run(setup, every_s=arguments.every, budget=arguments.budget)


def build_session(setup: Setup, tell: Callable[[str], None], warn: Callable[[str], None]) -> Session:
    """A session on the files of a setup; whoever makes one holds the lock.

    Args:
        setup: the files.
        tell: takes sentences for the log.
        warn: takes sentences of what is not as it should be.
    """
    return Session(
        paths=setup.paths,
        files=Files(),
        rules=setup.rules,
        policy=setup.policy,
        file_bounds=setup.file_bounds,
        starting=setup.starting,
        tell=tell,
        warn=warn,
    )


def tell_tuner(
    setup: Setup, what: Literal["freeze", "thaw", "rollback"], *, reason: str, number: int = -1
) -> int:
    """Ask a running tuner, or do it to the memory of one that does not run.

    Raises:
        EppError: there is nothing to do it to, it is another policy's, or it cannot be written.
    """
    files = Files()
    setup = _as_remembered(setup, _same_policy(setup))
    try:
        request = ask(setup.paths, files, what, reason=reason, number=number, at_wall_s=time.time())
    except OSError as error:
        raise EppError(f"{setup.paths.requests}: {error}") from error
    try:
        with ProcessLock(setup.paths.lock, "tuner"):
            return _do_now(setup, request)
    except LockHeldError:
        print(f"asked the running tuner: {what}; `epp tune status` shows it within seconds")
        return 0
    except BaseException:
        withdraw(setup.paths, files, request)  # who was told that it failed is not to see it done later
        raise


def _as_remembered(setup: Setup, state: State | None) -> Setup:
    """By the settings of the memory: an operator's word says nothing of any, and need not be told them."""
    if state is None:
        return setup
    return replace(setup, rules=replace(setup.rules, settings=went_by(state, setup.rules.settings)))


def _same_policy(setup: Setup) -> State | None:
    """The memory. A session begins anew with another policy: asked for by mistake that would cost all of it.

    Raises:
        ConfigError: the memory is of another policy.
    """
    state = memory_at(setup.paths).load()
    if state is None or state.policy == setup.policy:
        return state
    held = f"the tuner's memory beside {setup.paths.weights} is of policy {state.policy!r}"
    raise ConfigError(
        "command line" if setup.config_file is None else str(setup.config_file),
        "policy.name",
        f"{setup.policy!r}, but {held}",
        f"give the configuration with {state.policy!r}; nothing was changed",
    )


def _do_now(setup: Setup, request: OperatorRequest) -> int:
    now_wall_s = time.time()
    session = build_session(setup, _warn, _warn)
    with reported_files():
        session.open(now_wall_s)
    requests = read_requests(setup.paths, Files())
    cursor = cursor_of(session.state, _warn)
    waiting = not_done(requests, cursor.requests) if cursor is not None else []
    others = [other for other in waiting if other.id != request.id]
    for other in others:
        session.handle(other.event(now_wall_s))
    before = session.state
    if request.what == "thaw" and before.phase != "frozen" and not others:
        withdraw(setup.paths, Files(), request)
        print(f"nothing to thaw, no tuner is running: {before.phase}: {before.reason}")
        return 0
    session.handle(request.event(now_wall_s))
    if request.what == "rollback" and session.state.history == before.history:
        raise EppError(f"nothing was changed: the memory has no weights with number {request.number}")
    if cursor is not None:  # without one, the tuner that comes next takes all on file as done
        cursor.requests = as_done(requests)
    if not session.save(cursor="" if cursor is None else msgspec.json.encode(cursor).decode()):
        raise EppError("nothing was changed: the files cannot be written")
    for other in others:
        print(f"done before it, asked of a tuner that has stopped: {other.what}")
    print(f"done, no tuner is running: {session.state.phase}: {session.state.reason}")
    return 0


def read_pins(setup: Setup) -> Mapping[str, float]:
    """What the operator's file says now.

    Raises:
        ConfigError: nothing that can be used.
    """
    if setup.overrides is None:
        return {}
    try:
        text = read_file(setup.overrides)
    except OSError as error:
        raise ConfigError(str(setup.overrides), "", str(error)) from error
    if text is None:
        return {}
    return parse_weights(text, str(setup.overrides), policy=setup.policy, bounds=setup.file_bounds)


def _run(setup: Setup, *, every_s: float, budget: int) -> int:
    configure(LogSettings())
    with ProcessLock(setup.paths.lock, "tuner"):
        tuner = build_tuner(
            setup,
            build_session(setup, log.info, log.warning),
            ChildRehearsal(setup, budget=budget, tell=log.info),
        )
        with reported_files():
            tuner.open()
        log.info("tuning %s: records of %s, weights to %s", setup.policy, setup.records, setup.paths.weights)
        run_until_stopped(tuner.tick, every_s)
        tuner.close()
    log.info("stopped; the state is kept")
    return 0


def build_tuner(setup: Setup, session: Session, rehearsal: Rehearsal) -> Tuner:
    """A tuner on the files of a setup, not yet opened; whoever makes one holds the lock."""
    return Tuner(
        session=session,
        paths=setup.paths,
        files=Files(),
        records=setup.records,
        overrides=setup.overrides,
        bounds=setup.file_bounds,
        clock=SystemClock(),
        rehearsal=rehearsal,
        tell=log.warning,
    )


def _at_least_one(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1")
    return int(text)


def _warn(sentence: str) -> None:
    print(f"epp: {sentence}", file=sys.stderr)
