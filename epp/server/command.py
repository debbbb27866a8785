"""`epp serve`: read the configuration, run the picker until told to stop."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop

from epp.config.load import parse_config
from epp.errors import ConfigError
from epp.server.app import App
from epp.server.files import read_file, replace_file

if TYPE_CHECKING:
    import argparse

log = logging.getLogger("epp")


class SystemClock:
    """The machine's clocks."""

    def mono_s(self) -> float:
        """Monotonic seconds."""
        return time.monotonic()

    def wall_s(self) -> float:
        """Unix time."""
        return time.time()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    parser.add_argument("--config", required=True, type=Path, help="configuration file, e.g. epp.yaml")
    parser.add_argument(
        "--ready-file", type=Path, help="written once the listeners are open: their addresses, as JSON"
    )
    parser.add_argument("--log-level", default="info", choices=("debug", "info", "warning", "error"))


def load_app(path: Path) -> App:
    """The application for a configuration file.

    Raises:
        ConfigError: naming the file, the key and the fix.
    """
    try:
        text = read_file(path)
    except OSError as error:
        raise ConfigError(str(path), "", str(error)) from error
    if text is None:
        raise ConfigError(str(path), "", "the file does not exist", "see deploy/epp.example.yaml")
    return App(parse_config(text, str(path)), path.resolve().parent, str(path), SystemClock())


def run(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT, then drain; a second signal ends the drain."""
    logging.basicConfig(
        level=arguments.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    app = load_app(arguments.config)
    uvloop.run(serve(app, arguments.ready_file))
    return 0


async def serve(app: App, ready_file: Path | None = None) -> None:
    """Run an application until a signal asks it to stop.

    Args:
        app: the application.
        ready_file: gets ``{"grpc": "host:port", "http": ..., "first_token": ...}`` once they are open.

    Raises:
        ConfigError: a listener's address cannot be used.
    """
    stop, hurry = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (hurry if stop.is_set() else stop).set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    try:
        await app.start()
    except OSError as error:
        await app.stop(0.0)
        raise ConfigError("listen", "", str(error), "is another picker running?") from error
    if ready_file is not None:
        addresses = {
            "grpc": app.grpc_address,
            "http": app.http_address,
            "first_token": app.first_token_address,
        }
        replace_file(ready_file, json.dumps(addresses).encode())
    await stop.wait()
    log.info("draining; a second signal stops at once")
    draining = asyncio.ensure_future(app.stop())
    hurried = asyncio.ensure_future(hurry.wait())
    await asyncio.wait((draining, hurried), return_when=asyncio.FIRST_COMPLETED)
    if not draining.done():
        draining.cancel()
        await asyncio.gather(draining, return_exceptions=True)
        await app.stop(0.0)
    hurried.cancel()
