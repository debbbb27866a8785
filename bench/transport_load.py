"""Load of the transport bench: a small HTTP/1.1 client.

The client keeps ``concurrency`` connections busy, one request at a time on each, and checks every answer. It
knows the answers' fixed body, so it needs no HTTP parser and leaves the machine to what is measured.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

ANSWER_BODY = b"picked"
_OK = b"HTTP/1.1 200"
# A burst slower than this has hung.
_BURST_TIMEOUT_S, _SLOWEST_REQUESTS_PER_S = 60.0, 20.0
_END = b"\r\n\r\n" + ANSWER_BODY


class LoadError(RuntimeError):
    """An answer that is not the expected one, or a connection lost."""


@dataclass(frozen=True, slots=True)
class Load:
    """What one burst of requests took: wall seconds and each request's latency in milliseconds."""

    wall_s: float
    latencies_ms: list[float]


def request_bytes(size_bytes: int) -> bytes:
    """A chat completion over HTTP/1.1 with a body of exactly ``size_bytes`` bytes."""
    head, tail = b'{"model":"m","messages":[{"role":"user","content":"', b'"}]}'
    words = b"the quick brown fox jumps over the lazy dog "
    text = (words * (size_bytes // len(words) + 1))[: size_bytes - len(head) - len(tail)]
    body = head + text + tail
    lines = (
        "POST /v1/chat/completions HTTP/1.1",
        "host: bench",
        "content-type: application/json",
        "accept: text/event-stream",
        "user-agent: bench",
        "authorization: Bearer 0123456789abcdef",
        f"content-length: {len(body)}",
    )
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


class _Connection(asyncio.Protocol):
    """One connection that sends the next request when the answer to the last is complete.

    Attributes:
        finished: it has nothing left to do; losing it is no failure.
    """

    def __init__(self, burst: _Burst) -> None:
        self._burst = burst
        self._received = b""
        self._sent_s = 0.0
        self._transport: asyncio.Transport | None = None
        self.finished = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101  # narrows the type that asyncio states
        self._transport = transport
        self._next()

    def data_received(self, data: bytes) -> None:
        self._received += data
        if len(self._received) >= len(_OK) and not self._received.startswith(_OK):
            self._burst.fail(f"unexpected answer: {self._received[:600]!r}")
            return
        if not self._received.endswith(_END):
            return
        if self._burst.expected not in self._received:
            self._burst.fail(f"unexpected answer: {self._received[:600]!r}")
            return
        self._burst.latencies_ms.append((time.perf_counter() - self._sent_s) * 1e3)
        self._next()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.finished:
            self._burst.fail(f"connection lost: {exc}, received {self._received[:600]!r}")

    def _next(self) -> None:
        assert self._transport is not None  # noqa: S101  # set by connection_made
        self._received = b""
        if self._burst.left == 0:
            self.finished = True
            self._burst.closed()
            return
        self._burst.left -= 1
        self._sent_s = time.perf_counter()
        self._transport.write(self._burst.request)


class _Burst:
    """Counts one burst's requests across its connections."""

    def __init__(self, request: bytes, expected: bytes, requests: int, connections: int) -> None:
        self.request = request
        self.expected = expected
        self.left = requests
        self.latencies_ms: list[float] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._open = connections

    def fail(self, why: str) -> None:
        if not self.done.done():
            self.done.set_exception(LoadError(why))

    def closed(self) -> None:
        self._open -= 1
        if self._open == 0 and not self.done.done():
            self.done.set_result(None)


async def send(port: int, request: bytes, expected: bytes, *, requests: int, concurrency: int) -> Load:
    """Sends ``requests`` copies of ``request`` to a loopback port, ``concurrency`` at a time.

    Raises:
        LoadError: an answer that is not 200 with ``expected`` in it, or a connection that was lost.
        TimeoutError: the burst has hung.
    """
    loop = asyncio.get_running_loop()
    connections = min(concurrency, requests)
    burst = _Burst(request, expected, requests, connections)
    started_s = time.perf_counter()
    opened = await asyncio.gather(
        *(loop.create_connection(lambda: _Connection(burst), "127.0.0.1", port) for _ in range(connections))
    )
    try:
        async with asyncio.timeout(_BURST_TIMEOUT_S + requests / _SLOWEST_REQUESTS_PER_S):
            await burst.done
        wall_s = time.perf_counter() - started_s
    finally:
        for transport, connection in opened:
            connection.finished = True
            transport.abort()
        await asyncio.sleep(0)  # sockets close one turn of the loop after abort()
    return Load(wall_s=wall_s, latencies_ms=burst.latencies_ms)
