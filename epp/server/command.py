"""`epp serve`: read the configuration, run the picker until told to stop."""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import os
import signal
import sys
import threading
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import uvloop

from epp.config.load import salvage_config
from epp.errors import ConfigError, raise_all
from epp.feeds.files import replace_file, required_file
from epp.llmd.flags import FLAGS, read_flags
from epp.llmd.settings import log_settings, translate
from epp.logs import configure
from epp.policies.gorgo import GorgoHillclimb
from epp.rpc.accepting import allow_files, close_early
from epp.server.app import App
from epp.server.host import Host
from epp.server.process import MAX_WORKERS, SystemClock
from epp.threads import stop_signals

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from epp.config.schema import Config
    from epp.logs import LogSettings

log = logging.getLogger("epp")

#: Status of a process that ended because its event loop stood still.
STALLED = 70
#: Longest wait for the log's last entry.
_LAST_ENTRY_S = 1.0
#: Time between two full garbage collections, and the threshold that leaves them to the clock. One takes
#: 140 ms with 8,000 streams open, and a flood of streams would cause several a second. They find little:
#: streams and connections that are over are in no cycles.
_COLLECT_EVERY_S, _BY_TIME = 60.0, 1 << 30
#: Longest wait for the interpreter's lock. An answer to a probe waits for it six times while the event loop
#: is busy, which takes 30 ms with Python's own 5 ms.
_SWITCH_S = 0.001

#: Of a policy whose weights a sidecar moves.
_NO_SEARCH = (
    "policy gorgo-hillclimb serves gorgo by the weights in force: nothing moves them, because gorgo-epp-lab, "
    "whose `epp tune --search hillclimb` does, is not installed here (pip install gorgo-epp-lab)"
)

#: Keeps llm-d's flags apart from ours in a namespace.
_DEST = "llm-d "
#: Words that belong to no flag.
_WORDS = f"{_DEST}words"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the command: ours, and llm-d's."""
    parser.allow_abbrev = False
    parser.usage = "%(prog)s --config FILE [options]\n       %(prog)s [llm-d's flags]"
    parser.add_argument("--config", type=Path, metavar="FILE", help="configuration file, e.g. epp.yaml")
    parser.add_argument(
        "--ready-file", type=Path, help="written once the listeners are open: their addresses, as JSON"
    )
    parser.add_argument(
        "--workers", type=int, default=1, metavar="N", help="processes that share port and load (default: 1)"
    )
    parser.add_argument("--log-level", choices=("debug", "info", "warning", "error"), help="default: info")
    parser.add_argument(
        "--log-format", choices=("text", "json"), help="json: one object a line (default: text)"
    )
    group = parser.add_argument_group(
        "llm-d's flags", "instead of --config; docs/llm-d.md says what each means here"
    )
    for flag in FLAGS:
        names = ["-v", "--v"] if flag.name == "v" else [f"--{flag.name}"]
        shown = flag.help or flag.message
        default = "" if flag.default in (None, "", ()) else f" (default: {flag.default})"
        options: dict[str, Any] = {"dest": _DEST + flag.name, "metavar": "X", "help": f"{shown}{default}"}
        if flag.boolean:
            options |= {"nargs": "?", "const": "true"}
        elif flag.default == ():
            options |= {"action": "append"}
        group.add_argument(*names, **options)
    parser.add_argument(_WORDS, nargs="*", help=argparse.SUPPRESS)


@dataclass(frozen=True, slots=True)
class Setup:
    """What the command line asks for.

    Attributes:
        config: the picker's configuration.
        base: folder that its paths are relative to.
        source: where it comes from, for errors.
        log: form of the log.
        warnings: sentences to be logged once the log is set up.
        file: of the configuration, None for llm-d's flags.
    """

    config: Config
    base: Path
    source: str
    log: LogSettings
    warnings: tuple[str, ...] = ()
    file: Path | None = None


def read_setup(arguments: argparse.Namespace, environment: Mapping[str, str]) -> Setup:
    """Read ``--config``, or llm-d's flags.

    Raises:
        ConfigError: naming the file or flag, the key and the fix of each error.
    """
    named = vars(arguments)
    loose = [
        f"{word!r} belongs to no flag and is not read, as in llm-d; a boolean's value follows '='"
        for word in named[_WORDS]
    ]
    given = {flag.name: value for flag in FLAGS if (value := named.get(_DEST + flag.name)) is not None}
    flags = (
        read_flags(given, beside_config=arguments.config is not None) if given or arguments.config else None
    )
    if flags is None:
        fix = "--config epp.yaml, or llm-d's flags: --pool-name or --endpoint-selector at least"
        raise ConfigError("command line", "", "no configuration", fix)
    if arguments.config is not None:
        if loose:
            raise ConfigError("command line", "", loose[0], "leave it out")
        path = arguments.config
        text = required_file(path, "see deploy/epp.example.yaml")
        config, errors = salvage_config(text, str(path), environment)
        base = path.resolve().parent
        file = path if path.is_file() else None  # a pipe has no changes
        if errors:
            _raise_all(config, base, str(path), errors)
        setup = Setup(config, base, str(path), log_settings(flags), flags.warnings, file)
    else:
        file = flags["config-file"]
        text = required_file(Path(file), "--config-file") if file else flags["config-text"].encode()
        found = translate(flags, text, environment, file or "--config-text")
        setup = Setup(found.config, Path.cwd(), file or "command line", found.log, (*loose, *found.warnings))
    if arguments.log_format:
        setup = replace(setup, log=replace(setup.log, json=arguments.log_format == "json"))
    if arguments.log_level:
        setup = replace(setup, log=replace(setup.log, level=arguments.log_level.upper()))
    return setup


def run(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM, SIGINT or SIGHUP, then drain; a second signal ends the drain."""
    setup = read_setup(arguments, os.environ)
    configure(setup.log)
    for warning in setup.warnings:
        log.warning(warning)
    if setup.config.policy.name == GorgoHillclimb.name and not entry_points(group="epp.commands"):
        log.warning(_NO_SEARCH)
    allow_files()
    config, host, ready_file = setup.config, Host(), arguments.ready_file
    if not 1 <= arguments.workers <= MAX_WORKERS:
        problem, fix = f"is {arguments.workers}", f"a number from 1 to {MAX_WORKERS}: one for each core"
        raise ConfigError("command line", "--workers", problem, fix)
    if arguments.workers > 1:
        from epp.server.siblings import Siblings  # noqa: PLC0415  # only where it is asked for
        from epp.server.workers import Workers  # noqa: PLC0415  # likewise

        on_ready = (lambda _: None) if ready_file is None else partial(_write_ready, ready_file)
        workers = Workers(config, arguments.workers, setup.source, on_ready)
        worker = workers.run()
        if isinstance(worker, int):
            return worker
        config, host, ready_file = workers.config, Siblings(worker), None
    # Tokenizers may take half a minute to come from the hub, and nothing else ends process 1 of a container.
    before = signal.signal(signal.SIGTERM, _leave)
    try:
        app = App(config, setup.base, setup.source, SystemClock(), host)
        if setup.file is not None:
            app.follow(setup.file)
        sys.setswitchinterval(_SWITCH_S)
        gc.set_threshold(*gc.get_threshold()[:2], _BY_TIME)
        uvloop.run(serve(app, ready_file, host.one_signal_s))
    except ConfigError as error:
        _raise_all(setup.config, setup.base, setup.source, error.errors)
    finally:
        signal.signal(signal.SIGTERM, before)
    return 0


def _raise_all(config: Config, base: Path, source: str, found: Sequence[ConfigError]) -> None:
    """Raise these errors, and all that a start would come to after them."""
    from epp.server.check import all_errors  # noqa: PLC0415  # only once a start has failed

    raise_all(all_errors(config, base, source, found, os.environ))


def _leave(number: int, _frame: object) -> NoReturn:
    """Stop before anything is served; the status is that of a process that the signal ended."""
    log.info("stopped while starting")
    raise SystemExit(128 + number)


def _end_stalled(stalled_s: float, stack: str) -> NoReturn:
    """Log the stack of the event loop's thread and end the process; the loop can do neither."""
    # By a thread of its own: what the loop waits for may be the log, a pipe that nobody reads.
    words = "the event loop has stood still for %.1f s, so the process ends; its thread is at\n%s"
    entry = threading.Thread(target=log.critical, args=(words, stalled_s, stack), daemon=True)
    entry.start()
    entry.join(_LAST_ENTRY_S)
    os._exit(STALLED)


async def serve(app: App, ready_file: Path | None = None, one_signal_s: float = 0.0) -> None:
    """Run an application until a signal asks it to stop.

    Args:
        app: the application.
        ready_file: gets ``{"grpc": "host:port", "http": ..., "first_token": ..., "health": ...}``, once
            they are open.
        one_signal_s: signals within so long are one.

    Raises:
        ConfigError: a listener's address cannot be used, or the ready file not be written.
    """
    stop, hurry = asyncio.Event(), asyncio.Event()

    loop, first_s = asyncio.get_running_loop(), 0.0

    def on_signal() -> None:
        nonlocal first_s
        if not stop.is_set():
            first_s = loop.time()
            stop.set()
        elif loop.time() - first_s >= one_signal_s:
            hurry.set()

    for number in stop_signals():
        loop.add_signal_handler(number, on_signal)
    try:
        await app.start(_end_stalled)
        close_early()  # its listeners have them
        # What the start has made stays, and no collection walks it again: a full one took 30 ms of waiting.
        _collect(loop)
        gc.freeze()
        if ready_file is not None:
            _write_ready(ready_file, app.addresses)
    except ConfigError:
        await app.stop(0.0)
        raise
    await stop.wait()
    log.info("draining; a second signal stops at once")
    draining = asyncio.ensure_future(app.stop())
    hurried = asyncio.ensure_future(hurry.wait())
    await asyncio.wait((draining, hurried), return_when=asyncio.FIRST_COMPLETED)
    if draining.done():
        hurried.cancel()
        await draining  # raises what it has raised
        return
    draining.cancel()
    await asyncio.gather(draining, return_exceptions=True)
    await app.stop(0.0)


def _collect(loop: asyncio.AbstractEventLoop) -> None:
    """Collect all garbage, now and every so often."""
    gc.collect()
    loop.call_later(_COLLECT_EVERY_S, _collect, loop)


def _write_ready(file: Path, addresses: Mapping[str, str]) -> None:
    try:
        replace_file(file, json.dumps(addresses).encode())
    except OSError as error:
        why = f"{file} cannot be written: {error.strerror}"
        raise ConfigError(
            "command line", "--ready-file", why, "name a file in a folder that is there"
        ) from error
