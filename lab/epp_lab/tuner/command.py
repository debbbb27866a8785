"""`epp tune`: the tuner as a process of its own, its rehearsal offline, its status, and words to it."""

from __future__ import annotations

import logging
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from epp.errors import ConfigError, EppError
from epp.logs import LogSettings, configure
from epp.ops.given import add_weight_arguments
from epp.policies.gorgo import GorgoHillclimb
from epp.server.process import SystemClock
from epp_lab.compare.plan import number_from
from epp_lab.sidecar.process import LockHeldError, Turn, lead_of, process_lock, require_lead
from epp_lab.sidecar.setup import add_interval
from epp_lab.tuner import hillclimb
from epp_lab.tuner.hillclimb import Hillclimb
from epp_lab.tuner.offline import BUDGET, ChildRehearsal, run_offline
from epp_lab.tuner.setup import read_setup
from epp_lab.tuner.state import OperatorAsked, OperatorRequest
from epp_lab.tuner.status import status_lines
from epp_lab.tuner.tuner import Tuner, ask, read_state

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from epp_lab.tuner.setup import Setup
    from epp_lab.tuner.state import What

log = logging.getLogger("epp_lab.tuner")
HILLCLIMB = "hillclimb"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the command."""
    parser.add_argument(
        "action",
        nargs="?",
        default="run",
        choices=("run", "status", "freeze", "thaw"),
        help="run (default): tune beside the picker until SIGTERM; status: phase, incumbent, candidate, "
        "evidence so far, next step; freeze: no search until thawed, a running trial ends; thaw: search",
    )
    add_weight_arguments(parser)
    parser.add_argument(
        "--offline", type=Path, metavar="DIR", help="rehearse on these records, print what would be set, stop"
    )
    parser.add_argument(
        "--budget",
        type=number_from(1),
        default=BUDGET,
        help="simulated measurements of a rehearsal (%(default)s)",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of an offline rehearsal (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print an offline rehearsal as JSON")
    parser.add_argument(
        "--search",
        choices=("guarded", HILLCLIMB),
        help="hillclimb: the GORGO paper's search, which tries candidates on all requests (usual for policy "
        "gorgo-hillclimb); guarded: one that rehearses and proves (usual for all others)",
    )
    parser.add_argument("--reason", default="", help="why, for the log and the status (freeze, thaw)")
    add_interval(parser)


def run(arguments: argparse.Namespace) -> int:
    """Do what was asked."""
    action: Literal["run", "status", "freeze", "thaw"] = arguments.action
    if arguments.offline is not None and action != "run":
        raise ConfigError("command line", "--offline", f"goes without {action!r}", "leave one out")
    if arguments.offline is not None:
        setup = read_setup(arguments, records=arguments.offline)
        return run_offline(
            setup,
            budget=arguments.budget,
            seed=arguments.seed,
            pins=setup.read_pins(),
            as_json=arguments.json,
        )
    setup = read_setup(arguments, looking=action != "run")
    usual = HILLCLIMB if setup.policy == GorgoHillclimb.name else "guarded"
    if (arguments.search or usual) == HILLCLIMB:
        return _hillclimb(setup, action, arguments)
    if action == "run":
        return _run(setup, every_s=arguments.every, budget=arguments.budget)
    if action != "status":
        return obey(setup, action, reason=arguments.reason)
    state = read_state(setup.paths)
    for line in status_lines(state, setup.paths, time.time()):
        print(line)
    if state is not None and state.policy != setup.policy:
        print(f"configured is policy {setup.policy}: a tuner that is started now begins anew with it")
    return 0


def obey(setup: Setup, what: What, *, reason: str, number: int = -1) -> int:
    """Do an operator's word to the memory of a tuner that does not run, or ask a running one.

    Raises:
        EppError: the memory is another policy's, or it cannot be written; another picker leads.
    """
    state = read_state(setup.paths)
    request = _word(setup, what, reason, number, policy=None if state is None else state.policy)
    if state is not None:
        # By the settings of the memory: an operator's word changes none, and need not be given them.
        setup = replace(setup, rules=replace(setup.rules, settings=state.settings))
    try:
        with process_lock(setup.paths.lock, "tuner"):
            return _do_now(setup, request)
    except LockHeldError:
        ask(setup.paths, request)
        print(f"asked the running tuner: {what}; `epp tune status` shows it within seconds")
        return 0


def _word(setup: Setup, what: What, reason: str, number: int = -1, *, policy: str | None) -> OperatorRequest:
    """Make an operator's request of a search whose memory is of a policy, None without a memory."""
    require_lead(setup.config, setup.records)
    if policy not in (None, setup.policy):  # a search begins anew with it, which would cost all of the memory
        raise ConfigError(
            "command line" if setup.config_file is None else str(setup.config_file),
            "policy.name",
            f"{setup.policy!r}, but the tuner's memory beside {setup.paths.weights} is of policy {policy!r}",
            f"give the configuration with {policy!r}; nothing was changed",
        )
    # An argument may be no UTF-8, and what is written is.
    return OperatorRequest(what, reason.encode(errors="replace").decode(), number)


def _do_now(setup: Setup, request: OperatorRequest) -> int:
    clock = SystemClock()
    tuner = Tuner(setup, rehearsal=None, clock=clock, report=_warn)
    tuner.load()
    for what in tuner.obey():
        print(f"done before it, asked of a tuner that has stopped: {what}")
    tuner.handle(OperatorAsked(clock.wall_s(), request))
    if not tuner.save():
        raise EppError("nothing was changed: the files cannot be written")
    print(f"done, no tuner is running: {tuner.state.phase}: {tuner.state.reason}")
    return 0


def _hillclimb(
    setup: Setup, action: Literal["run", "status", "freeze", "thaw"], arguments: argparse.Namespace
) -> int:
    """Run the published search, show it, or do an operator's word to it."""
    if action == "status":
        for line in hillclimb.status_lines(setup.paths, time.time()):
            print(line)
        return 0
    clock = SystemClock()
    if action == "run":

        def begin() -> Hillclimb:
            log.info("hill climbing of %s: records of %s", setup.policy, setup.records)
            return Hillclimb(setup, clock=clock, report=log.info, seed=arguments.seed)

        return _serve(setup, begin, every_s=arguments.every)
    memory = hillclimb.read_memory(setup.paths)
    request = _word(setup, action, arguments.reason, policy=None if memory is None else memory.policy)
    try:
        with process_lock(setup.paths.lock, "tuner"):
            search = Hillclimb(setup, clock=clock, report=print)
            search.obey()
            search.handle(request)
            if not search.save():
                raise EppError("nothing was changed: the files cannot be written")
    except LockHeldError:
        ask(setup.paths, request)
        print(f"asked the running search: {action}")
    return 0


def _run(setup: Setup, *, every_s: float, budget: int) -> int:
    clock = SystemClock()

    def begin() -> Tuner:
        rehearsal = ChildRehearsal(setup, budget=budget, report=log.info)
        tuner = Tuner(setup, rehearsal=rehearsal, clock=clock, report=log.info)
        tuner.open()
        log.info("tuning %s: records of %s, weights to %s", setup.policy, setup.records, setup.paths.weights)
        return tuner

    return _serve(setup, begin, every_s=every_s)


def _serve(setup: Setup, begin: Callable[[], Tuner | Hillclimb], *, every_s: float) -> int:
    """Run a search while its picker leads, until SIGTERM."""
    configure(LogSettings())
    with process_lock(setup.paths.lock, "tuner"):
        Turn(begin, partial(lead_of, setup.config, setup.records), log.info).run(every_s)
    log.info("stopped; the state is kept")
    return 0


def _warn(sentence: str) -> None:
    print(f"epp: {sentence}", file=sys.stderr)
