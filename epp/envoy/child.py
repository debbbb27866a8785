"""Child processes: started with a log file, awaited, stopped in order, never left behind."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Self

from epp.envoy.launch import ending, stop, tied_to_parent
from epp.errors import EppError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_STOP_S, _POLL_S = 5.0, 0.05
_LOG_TAIL_BYTES = 2000
EPP = (sys.executable, "-P", "-m", "epp")
"""The program of the `epp` commands: the one installed, also in a folder that has another."""


class Child:
    """One `epp` command, or another program, as a child process: an async context manager.

    Args:
        name: names the log file.
        arguments: the command's words and flags.
        folder: where its log goes.
        program: what is run with the arguments, by its whole path.
    """

    def __init__(self, name: str, arguments: list[str], folder: Path, program: tuple[str, ...] = EPP) -> None:
        self._name, self._command = name, (*program, *arguments)
        self._log_file = folder / f"{name}.log"
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        """Process id; only while it runs."""
        return self._running().pid

    async def __aenter__(self) -> Self:
        """Start it; it may not be ready yet."""
        with self._log_file.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *tied_to_parent(*self._command),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Ctrl-C in the terminal is for the parent, which stops its children in order.
                start_new_session=True,
            )
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop it."""
        process, self._process = self._process, None
        await stop(process, _STOP_S)

    def kill(self) -> None:
        """End it as a crash would."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    async def wait(self) -> int:
        """Wait until it ends by itself; its status."""
        return await self._running().wait()

    async def until(self, ready: Callable[[], object]) -> None:
        """Wait until something holds, such as a file that it writes once it serves.

        Raises:
            EppError: it ended before that.
        """
        while not ready():
            self.check()
            await asyncio.sleep(_POLL_S)

    def check(self) -> None:
        """Raise when it has ended.

        Raises:
            EppError: with the end of its log.
        """
        if how := ending(self._process):
            raise EppError(f"{self._name} ended early: {how}\n{self.log()[-_LOG_TAIL_BYTES:]}".rstrip())

    def log(self) -> str:
        """Read what it has printed so far."""
        return self._log_file.read_text(errors="replace")

    def _running(self) -> asyncio.subprocess.Process:
        if self._process is None:
            raise RuntimeError(f"{self._name} is not running")
        return self._process
