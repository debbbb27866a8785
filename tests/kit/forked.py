"""`epp` commands as processes forked from one that has imported them: a start costs no second of imports.

A child process in all that tests see: a pid of its own, a session of its own, signals, an exit status, a log.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
from multiprocessing import forkserver, get_context
from typing import TYPE_CHECKING, Self

from epp.cli import main
from epp.errors import EppError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

_STOP_S, _LOOK_S = 5.0, 0.02
_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
_SERVER = get_context("forkserver")
# pytest is what runs the parent, and would be imported by each child.
_SERVER.set_forkserver_preload(["pytest", "epp.server.command", "epp.server.app", __name__])


def _run(words: list[str], log: Path, environment: Mapping[str, str]) -> None:
    # End with the server, and the server with the tests: each child has been given what keeps it alive.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.close(forkserver._forkserver._forkserver_alive_fd)  # type: ignore[attr-defined]
    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    with log.open("wb") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    sys.exit(main(words))


class Forked:
    """Stands in for `epp.envoy.child.Child`.

    Args:
        name: names the log file.
        words: of the `epp` command.
        folder: where its log goes.
    """

    def __init__(self, name: str, words: list[str], folder: Path) -> None:
        self._name, self._words, self._log_file = name, words, folder / f"{name}.log"
        self._process = _SERVER.Process(daemon=True)

    @property
    def pid(self) -> int:
        """Process id."""
        assert self._process.pid is not None, "it is not running"
        return self._process.pid

    async def __aenter__(self) -> Self:
        """Start it; it may not be ready yet."""
        environment = dict(os.environ)
        self._process = _SERVER.Process(
            target=_run, args=(self._words, self._log_file, environment), daemon=True
        )
        self._process.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop it, by force where it does not end in time."""
        if self._process.pid is None or self._process.exitcode is not None:
            return
        self._process.terminate()
        try:
            async with asyncio.timeout(_STOP_S):
                await self.wait()
        except BaseException as error:
            self._process.kill()
            await self.wait()
            if not isinstance(error, TimeoutError):
                raise

    def kill(self) -> None:
        """End it as a crash would."""
        if self._process.pid is not None and self._process.exitcode is None:
            self._process.kill()

    async def wait(self) -> int:
        """Wait until it ends; its status."""
        while (status := self._process.exitcode) is None:
            await asyncio.sleep(_LOOK_S)
        return status

    async def until(self, ready: Callable[[], object]) -> None:
        """Wait until something holds.

        Raises:
            EppError: it ended before that.
        """
        while not ready():
            status = self._process.exitcode
            if status is not None:
                how = f"status {status}" if status >= 0 else f"killed by {signal.Signals(-status).name}"
                raise EppError(f"{self._name} ended early: {how}\n{self.log()[-2000:]}".rstrip())
            await asyncio.sleep(_LOOK_S)

    def log(self) -> str:
        """What it has printed so far."""
        return self._log_file.read_text(errors="replace")
