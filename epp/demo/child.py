"""Child processes of the demo: started with a log file, awaited, stopped in order, never left behind."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Self

from epp.envoy.launch import stop, tied_to_parent
from epp.errors import EppError

if TYPE_CHECKING:
    from pathlib import Path

_STOP_S = 5.0
_LOG_TAIL_BYTES = 2000
EPP = (sys.executable, "-m", "epp")
"""The program of the `epp` commands."""


class Child:
    """One `epp` command, or another program, as a child process: an async context manager.

    Args:
        name: names the log file.
        arguments: the command's words and flags.
        folder: where its log goes.
        program: what is run with the arguments, by its whole path; `epp` when empty.
    """

    def __init__(self, name: str, arguments: list[str], folder: Path, program: tuple[str, ...] = ()) -> None:
        self._name, self._arguments = name, arguments
        self._program = program or EPP
        self._log_file = folder / f"{name}.log"
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        """Process id; only while it runs."""
        if self._process is None:
            raise RuntimeError(f"{self._name} is not running")
        return self._process.pid

    async def __aenter__(self) -> Self:
        """Start it; it may not be ready yet."""
        with self._log_file.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *tied_to_parent(*self._program, *self._arguments),
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
        if self._process is None:
            raise RuntimeError(f"{self._name} is not running")
        return await self._process.wait()

    def check(self) -> None:
        """Raise when it has ended.

        Raises:
            EppError: with the end of its log.
        """
        if self._process is None or self._process.returncode is not None:
            tail = self.log()[-_LOG_TAIL_BYTES:]
            raise EppError(f"{self._name} ended early\n{tail}")

    def log(self) -> str:
        """What it has printed so far."""
        return self._log_file.read_text(errors="replace")
