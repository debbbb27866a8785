"""A TCP proxy whose connections can be cut: a network that fails, in front of any server."""

from __future__ import annotations

import asyncio
import contextlib


class TcpProxy:
    """Forwards to one address.

    Args:
        target: port on loopback to forward to.
    """

    def __init__(self, target: int) -> None:
        self.target = target
        self.refusing = False
        self._flowing = asyncio.Event()
        self._flowing.set()
        self.port = 0
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        self.cut()
        await asyncio.sleep(0)

    def cut(self) -> int:
        """Break all connections, without a word."""
        writers = list(self._writers)
        for writer in writers:
            writer.transport.abort()
        return len(writers)

    def hold(self) -> None:
        """Let nothing through from now on, and tell nobody: a network that is gone."""
        self._flowing.clear()

    def heal(self) -> None:
        """Let everything through again."""
        self._flowing.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refusing:
            writer.transport.abort()
            return
        await self._flowing.wait()
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, far_writer}
        try:
            await asyncio.gather(self._pump(reader, far_writer), self._pump(far_reader, writer))
        finally:
            self._writers -= {writer, far_writer}
            for each in (writer, far_writer):
                each.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                await self._flowing.wait()
                writer.write(data)
                await writer.drain()
        writer.transport.abort()
