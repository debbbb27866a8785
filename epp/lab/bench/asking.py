"""A client's request for a streamed answer, on a connection of its own: when it is sent, when tokens come.

Owns as little HTTP/1.1 as an answer of `epp.lab.bench.upstream` needs. The client shares the machine with
what it
measures, so a chunk that is not the first costs it one look at its end.
"""

from __future__ import annotations

import asyncio
import time
from typing import cast

from epp.config.address import split_address
from epp.errors import EppError
from epp.lab.bench.upstream import END, WORD

_ANSWER_S = 60.0
_OK, _END = b"HTTP/1.1 200 ", b"\r\n" + END


async def ask(address: str, body: bytes) -> float:
    """One request: milliseconds from its first byte out to the first token in, once the answer is complete.

    Raises:
        EppError: it was refused, broken off, or does not end.
        OSError: nobody listens there.
    """
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n"
        f"authorization: Bearer 0123456789abcdef\r\ncontent-length: {len(body)}\r\n\r\n"
    ).encode()
    loop = asyncio.get_running_loop()
    transport, asking = await loop.create_connection(lambda: _Asking(head + body), *split_address(address))
    try:
        async with asyncio.timeout(_ANSWER_S):
            return await asking.answered
    except TimeoutError:
        raise EppError("an answer through Envoy does not end") from None
    finally:
        transport.abort()


class _Asking(asyncio.Protocol):
    """Sends the request as soon as there is a connection.

    Attributes:
        answered: the time to the first token, in milliseconds, once the last byte is here.
    """

    def __init__(self, request: bytes) -> None:
        self._request = request
        self.answered: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._begun_s = self._ttft_ms = 0.0
        self._seen = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._begun_s = time.perf_counter()
        cast("asyncio.Transport", transport).write(self._request)  # uvloop's is none by name

    def data_received(self, data: bytes) -> None:
        if not self._ttft_ms:
            self._seen += data
            if not self._seen.startswith(_OK[: len(self._seen)]):
                self._fail(f"a request was answered {self._seen[:200]!r}")
            elif WORD in self._seen:
                self._ttft_ms = (time.perf_counter() - self._begun_s) * 1e3
        else:  # an end that comes in two pieces is put together
            self._seen = data if len(data) >= len(_END) else (self._seen + data)[-len(_END) :]
        if self._ttft_ms and self._seen.endswith(_END) and not self.answered.done():
            self.answered.set_result(self._ttft_ms)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(f"an answer broke off: {exc or 'the connection was closed'}")

    def _fail(self, words: str) -> None:
        if not self.answered.done():
            self.answered.set_exception(EppError(words))
