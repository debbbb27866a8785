"""One HTTP/1.1 connection that is kept open and asked again and again: what probes and scrapes need of HTTP.

Owns the connection and the framing of answers. A general client costs several times what an engine's metrics
cost to read, and a picker asks hundreds of engines every second. Rules: one request at a time; bodies are
bounded; a connection that the other side has closed meanwhile is opened again, once, unseen by the caller but
for `opened`; whatever else goes wrong closes it and raises.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from epp.config.address import split_address

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping

_MAX_HEAD_BYTES = 64 * 1024
_MAX_LINE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Answer:
    """Status and body."""

    status: int
    body: bytes


class KeepAlive:
    """A connection to one server.

    Args:
        address: ``host:port``.
        tls: for HTTPS, None for plaintext.
        server_name: SNI and certificate name, None for the host itself.
        max_body_bytes: longest body that is read.

    Attributes:
        opened: connections opened so far.
    """

    def __init__(
        self, address: str, *, tls: ssl.SSLContext | None, server_name: str | None, max_body_bytes: int
    ) -> None:
        self._address, self._tls, self._server_name = address, tls, server_name
        self._max_body_bytes = max_body_bytes
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self.opened = 0

    async def get(self, path: str, headers: Mapping[str, str], timeout_s: float) -> Answer:
        """Ask for a page.

        Raises:
            OSError: the server cannot be reached, or breaks off.
            TimeoutError: it takes too long.
            ValueError: its answer is no HTTP, or too long.
        """
        fields = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        request = f"GET {path} HTTP/1.1\r\nhost: {self._address}\r\n{fields}\r\n".encode()
        try:
            async with asyncio.timeout(timeout_s):
                kept = self._writer is not None
                try:
                    return await self._ask(request)
                except ConnectionError:
                    if not kept:
                        raise
                self.close()
                return await self._ask(request)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close it; the next request opens another."""
        if self._writer is not None:
            self._writer.transport.abort()
        self._reader = self._writer = None

    async def _ask(self, request: bytes) -> Answer:
        try:
            return await self._exchange(request)
        except asyncio.IncompleteReadError as error:
            raise ConnectionError("the connection broke off") from error

    async def _exchange(self, request: bytes) -> Answer:
        if self._reader is None or self._writer is None:
            host, port = split_address(self._address)
            name = self._server_name or host if self._tls else None
            self.opened += 1
            try:
                self._reader, self._writer = await asyncio.open_connection(
                    host, port, limit=_MAX_HEAD_BYTES, ssl=self._tls, server_hostname=name
                )
            except OSError as error:
                raise type(error)(error.errno, f"Cannot connect to {self._address}: {error}") from error
        reader = self._reader
        self._writer.write(request)
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            raise ValueError("the head of the answer is too long") from None
        status, fields = _head(head)
        if 100 <= status < 200:
            raise ValueError(f"status {status} was not asked for")
        body = b""
        if status not in (204, 304):
            body = await self._body(reader, fields)
        if fields.get("connection", "").lower() == "close" or head.startswith(b"HTTP/1.0"):
            self.close()
        return Answer(status, body)

    async def _body(self, reader: asyncio.StreamReader, fields: Mapping[str, str]) -> bytes:
        if "chunked" in fields.get("transfer-encoding", "").lower():
            return await self._chunks(reader)
        length = fields.get("content-length")
        if length is None:
            body = await reader.read(self._max_body_bytes + 1)
            while more := await reader.read(self._max_body_bytes + 1):
                body += more
                self._check(len(body))
            self.close()
            return body
        if not (length.isascii() and length.isdigit()):
            raise ValueError(f"content-length {length!r}")
        self._check(int(length))
        return await reader.readexactly(int(length))

    async def _chunks(self, reader: asyncio.StreamReader) -> bytes:
        pieces: list[bytes] = []
        size = 0
        while count := int((await _line(reader)).partition(b";")[0], 16):
            size += count
            self._check(size if count > 0 else -1)
            pieces.append((await reader.readexactly(count + 2))[:-2])
        while await _line(reader):  # trailers
            pass
        return b"".join(pieces)

    def _check(self, size: int) -> None:
        if not 0 <= size <= self._max_body_bytes:
            raise ValueError(f"more than {self._max_body_bytes} bytes of metrics")


async def _line(reader: asyncio.StreamReader) -> bytes:
    try:
        line = await reader.readuntil(b"\r\n")
    except asyncio.LimitOverrunError:
        raise ValueError("a line of the answer is too long") from None
    if len(line) > _MAX_LINE_BYTES:
        raise ValueError("a line of the answer is too long")
    return line[:-2]


def _head(head: bytes) -> tuple[int, dict[str, str]]:
    first, *lines = head.decode("latin-1").split("\r\n")
    words = first.split(" ", 2)
    if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdigit():
        raise ValueError(f"no HTTP/1.1 answer: {first[:60]!r}")
    fields = {}
    for line in lines:
        name, _, value = line.partition(":")
        fields[name.lower()] = value.strip()
    return int(words[1]), fields
