"""An engine that takes no time: an HTTP server that streams so many tokens, each in a chunk of its own.

Owns as little HTTP/1.1 as Envoy speaks to it. The first token comes at once, the others after a pause each,
so that what is seen of a first token is the way to here and back.
"""

from __future__ import annotations

import asyncio
import re
from typing import Self, cast

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_TOKEN = b'data: {"choices": [{"index": 0, "delta": {"content": " word"}}], "usage": null}\n\n'
_LAST = (
    b'data: {"choices": [], "usage": {"prompt_tokens": 18000, "completion_tokens": 128,'
    b' "total_tokens": 18128, "prompt_tokens_details": {"cached_tokens": 16200}}}\n\ndata: [DONE]\n\n'
)
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked", re.IGNORECASE)
PAUSE_S = 0.004
END = b"0\r\n\r\n"
#: In every token.
WORD = b"word"


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class Upstream:
    """The server, as an async context manager.

    Attributes:
        tokens: of each answer, to be changed at any time.
        address: where it listens.
    """

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self.address = ""
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        """Listen."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), "127.0.0.1", 0, backlog=1024)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop."""
        if self._server is not None:
            self._server.close()


class _Connection(asyncio.Protocol):
    def __init__(self, upstream: Upstream) -> None:
        self._upstream, self._seen = upstream, bytearray()
        self._wanted, self._chunked = 0, False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by name

    def data_received(self, data: bytes) -> None:
        self._seen += data
        if not self._wanted:
            end = self._seen.find(b"\r\n\r\n")
            if end < 0:
                return
            length = _LENGTH.search(self._seen, 0, end + 2)
            self._chunked = _CHUNKED.search(self._seen, 0, end + 2) is not None
            self._wanted = end + 4 + (int(length[1]) if length else 0)
        if len(self._seen) >= self._wanted and (not self._chunked or self._seen.endswith(END)):
            self._seen, self._wanted = bytearray(), 0
            self._write(_HEAD + _chunk(_TOKEN))
            self._later(self._upstream.tokens - 1)

    def _later(self, left: int) -> None:
        asyncio.get_running_loop().call_later(PAUSE_S, self._next, left)

    def _next(self, left: int) -> None:
        if self._transport.is_closing():
            return
        if left > 0:
            self._write(_chunk(_TOKEN))
            self._later(left - 1)
        else:
            self._write(_chunk(_LAST) + END)

    def _write(self, data: bytes) -> None:
        self._transport.write(data)
