"""Probes of a picker while others hold the places of its listener for HTTP, and what these hold them with."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time

from epp_lab.bench.processes import picker, pool_of

#: What holds a place: a head or a body that does not come, and an answer that is not read.
HOLDS = {
    "slow heads": b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n",
    "slow bodies": b"POST /decisions/a/feedback HTTP/1.1\r\nhost: localhost\r\n"
    b"content-type: application/json\r\ncontent-length: 100\r\n\r\n{",
    "readers": b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n" * 20,
}
#: Until a lost place is taken again, and until all are taken.
_AGAIN_S, _SETTLED_S = 0.2, 5.0
_PATHS = ("/livez", "/readyz")


class _Silent(asyncio.Protocol):
    """A client that reads nothing."""

    def __init__(self) -> None:
        self.lost = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.pause_reading()

    def connection_lost(self, _: Exception | None) -> None:
        self.lost.set()


async def _hold(address: str, sent: bytes) -> None:
    """Hold a place for ever; one that is lost is taken again."""
    host, _, port = address.rpartition(":")
    while True:
        with contextlib.suppress(OSError):
            connecting = asyncio.get_running_loop().create_connection(_Silent, host, int(port))
            transport, silent = await connecting
            try:
                transport.write(sent)
                await silent.lost.wait()
            finally:
                transport.abort()
        await asyncio.sleep(_AGAIN_S)


async def _probe(address: str, path: str) -> float:
    """Ask on a connection of its own, as kubelet does; how long it took in ms.

    Raises:
        OSError: it is not answered.
    """
    began_s = time.monotonic()
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n".encode())
        if not (await reader.readline()).startswith(b"HTTP/1.1 200"):
            raise OSError(f"{path} is not answered with 200")
    finally:
        writer.transport.abort()
    return (time.monotonic() - began_s) * 1e3


async def probed(held: bytes, connections: int, probes: int = 100) -> list[float]:
    """Hold places and probe; how long each probe took in ms.

    Raises:
        OSError: one was not answered.
    """
    async with picker(pool_of(3)) as server:
        holders = [asyncio.ensure_future(_hold(server.http, held)) for _ in range(connections)]
        try:
            await asyncio.sleep(_SETTLED_S)
            return [await _probe(server.http, _PATHS[number % 2]) for number in range(probes)]
        finally:
            for holder in holders:
                holder.cancel()
            await asyncio.gather(*holders, return_exceptions=True)


def slowest_ms(connections: int) -> dict[str, float]:
    """Return how long the slowest probe took, by what holds the places; infinity where one was not answered."""
    found = {}
    for name, held in HOLDS.items():
        try:
            found[name] = max(asyncio.run(probed(held, connections)))
        except OSError:
            found[name] = math.inf
    return found
