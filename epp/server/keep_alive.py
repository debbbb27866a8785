"""One HTTP/1.1 connection that is kept open and asked again and again: what probes and scrapes need of HTTP.

Owns the connection and the framing of answers. A general client costs several times what an engine's metrics
cost to read, and a picker asks hundreds of engines every second: so bytes are framed as they arrive, without
a stream and its buffers between, and a request waits for one future. Rules: one request at a time; bodies are
bounded; a connection that the other side has closed meanwhile is opened again, once, unseen by the caller but
for `opened`; whatever else goes wrong closes it and raises. No compression is asked for.
"""

from __future__ import annotations

import asyncio
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from epp.config.address import split_address

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping

_MAX_HEAD_BYTES = 64 * 1024
_MAX_LINE_BYTES = 4096
#: What of a head says how its body is framed.
_FRAMING = re.compile(rb"\r\n(content-length|transfer-encoding|connection):[ \t]*([^\r\n]*)", re.IGNORECASE)
#: Who served, as a relay tells it.
_SERVED = re.compile(rb"\r\nx-gateway-destination-endpoint-served:[ \t]*([^\r\n]*)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer.

    Attributes:
        status: as told.
        body: all of it.
        served: behind a relay the endpoint that served, else ``""``.
        took_s: from when the request was written to when the answer's last bytes were read, whatever this
            process did before it looked at them.
    """

    status: int
    body: bytes
    served: str = ""
    took_s: float = 0.0


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
        self._connection: _Connection | None = None
        self._asked: tuple[str, Mapping[str, str]] = "", {}
        self._request = b""
        self.opened = 0

    async def get(self, path: str, headers: Mapping[str, str], timeout_s: float) -> Answer:
        """Ask for a page.

        Raises:
            OSError: the server cannot be reached, or breaks off.
            TimeoutError: it takes too long.
            ValueError: its answer is no HTTP, or too long.
        """
        if self._asked != (path, headers):
            fields = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            self._asked = path, dict(headers)
            self._request = f"GET {path} HTTP/1.1\r\nhost: {self._address}\r\n{fields}\r\n".encode()
        request = self._request
        until_s = asyncio.get_running_loop().time() + timeout_s
        try:
            if self._connection is not None:
                try:
                    return await self._ask(self._connection, request, until_s)
                except ConnectionError:
                    self.close()
            async with asyncio.timeout_at(until_s):
                self._connection = await self._open()
            return await self._ask(self._connection, request, until_s)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close it; the next request opens another."""
        if self._connection is not None:
            self._connection.abort()
        self._connection = None

    async def _open(self) -> _Connection:
        host, port = split_address(self._address)
        name = self._server_name or host if self._tls else None
        self.opened += 1
        try:
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: _Connection(self._max_body_bytes), host, port, ssl=self._tls, server_hostname=name
            )
        except OSError as error:
            raise type(error)(error.errno, f"Cannot connect to {self._address}: {error}") from error
        return connection

    async def _ask(self, connection: _Connection, request: bytes, until_s: float) -> Answer:
        answer = await connection.ask(request, until_s)
        if connection.over:
            self.close()
        return answer


class _Connection(asyncio.Protocol):
    """The connection's bytes: one request out, one answer in, again and again.

    Attributes:
        over: whether nothing can be asked here any more.
    """

    def __init__(self, max_body_bytes: int) -> None:
        self._max_body_bytes = max_body_bytes
        self._loop = asyncio.get_running_loop()
        self._waiting: asyncio.Future[Answer] | None = None
        self._until_s = self._limit_s = 0.0
        self._limit: asyncio.TimerHandle | None = None
        # Not the loop's time, which uvloop tells in whole milliseconds.
        self._asked_s = self._came_s = 0.0
        self._seen: bytes | bytearray = b""
        self._head: _Head | None = None
        self.over = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep it."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by name

    def ask(self, request: bytes, until_s: float) -> asyncio.Future[Answer]:
        """Send a request; the answer, or why there is none."""
        waiting: asyncio.Future[Answer] = self._loop.create_future()
        if self.over:
            waiting.set_exception(ConnectionError("the connection broke off"))
            return waiting
        self._waiting, self._until_s = waiting, until_s
        if self._limit is not None and self._limit_s > until_s:
            self._limit.cancel()
            self._limit = None
        if self._limit is None:
            self._watch()
        self._asked_s = time.monotonic()
        self._transport.write(request)
        return waiting

    def _watch(self) -> None:
        self._limit_s = self._until_s
        self._limit = self._loop.call_at(self._limit_s, self._check_limit)

    def _check_limit(self) -> None:
        """One timer stands for the requests of a while: most are answered when it comes."""
        self._limit = None
        if self._waiting is None or self._waiting.done():
            return
        if self._limit_s < self._until_s:
            self._watch()
        else:
            self._fail(TimeoutError())

    def abort(self) -> None:
        """Close it at once."""
        self.over = True
        if self._limit is not None:
            self._limit.cancel()
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """A piece of the answer."""
        self._came_s = time.monotonic()
        if self._waiting is None or self._waiting.done():
            self.abort()  # nobody asked
            return
        if not self._seen:
            self._seen = data
        else:  # one that came in pieces is put together once
            if not isinstance(self._seen, bytearray):
                self._seen = bytearray(self._seen)
            self._seen += data
        try:
            answer = self._answer(ended=False)
        except ValueError as error:
            self._fail(error)
        else:
            if answer is not None:
                self._head, self._seen = None, b""  # pages are long, and kept for no one
                self._waiting.set_result(answer)

    def connection_lost(self, exc: Exception | None) -> None:
        """The other side has gone: the end of an answer that has no other."""
        self.over, self._came_s = True, time.monotonic()
        if self._waiting is None or self._waiting.done():
            return
        try:
            answer = self._answer(ended=exc is None)
        except ValueError as error:
            self._fail(error)
            return
        if answer is not None:
            self._waiting.set_result(answer)
        else:
            self._fail(exc if isinstance(exc, OSError) else ConnectionError("the connection broke off"))

    def _fail(self, error: Exception) -> None:
        self.over = True
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(error)

    def _answer(self, *, ended: bool) -> Answer | None:
        """The answer, None while it is not complete.

        Raises:
            ValueError: it is none, or too long.
        """
        seen = self._seen
        if self._head is None:
            end = seen.find(b"\r\n\r\n")
            if end > _MAX_HEAD_BYTES or (end < 0 and len(seen) > _MAX_HEAD_BYTES):
                raise ValueError("the head of the answer is too long")
            if end < 0:
                return None
            self._head = _Head.read(bytes(seen[:end]), end + 4)
        head = self._head
        body = self._body(head, ended=ended)
        if body is None:
            return None
        if head.closes:
            self.over = True
        return Answer(head.status, body, head.served, self._came_s - self._asked_s)

    def _body(self, head: _Head, *, ended: bool) -> bytes | None:
        seen, begins = self._seen, head.ends
        if head.status in (204, 304):
            return b""
        if head.chunked:
            return self._chunks(head)
        if head.length is None:
            self._check(len(seen) - begins)
            head.closes = True
            return bytes(seen[begins:]) if ended else None
        self._check(head.length)
        ends = begins + head.length
        return bytes(seen[begins:ends]) if len(seen) >= ends else None

    def _chunks(self, head: _Head) -> bytes | None:
        """The body out of its chunks; those that are whole are taken only once."""
        seen = self._seen
        while not head.trailers:
            line = _line(seen, head.ends)
            if line is None:
                return None
            size = int(line.partition(b";")[0], 16)
            begins = head.ends + len(line) + 2
            if size == 0:
                head.ends, head.trailers = begins, True
                break
            self._check(head.size + size if size > 0 else -1)
            if len(seen) < begins + size + 2:
                return None
            head.pieces.append(bytes(seen[begins : begins + size]))
            head.ends, head.size = begins + size + 2, head.size + size
        while (line := _line(seen, head.ends)) is not None:
            head.ends += len(line) + 2
            if not line:
                return b"".join(head.pieces)
        return None

    def _check(self, size: int) -> None:
        if not 0 <= size <= self._max_body_bytes:
            raise ValueError(f"more than {self._max_body_bytes} bytes of metrics")


@dataclass(slots=True)
class _Head:
    """What an answer's head says, and how far its body has been read.

    Attributes:
        status: as told.
        ends: bytes read: the head, then chunks.
        length: of the body, None when not told.
        chunked: whether it comes in chunks.
        closes: whether the connection ends with the answer.
        pieces: chunks so far.
        served: the endpoint that served, where a relay tells it.
        size: bytes of them.
        trailers: whether the last chunk has come.
    """

    status: int
    ends: int
    length: int | None
    chunked: bool
    closes: bool
    pieces: list[bytes]
    served: str = ""
    size: int = 0
    trailers: bool = False

    @classmethod
    def read(cls, head: bytes, ends: int) -> _Head:
        """From the bytes before the empty line.

        Raises:
            ValueError: this is no answer, or not one to what was asked.
        """
        first = head.partition(b"\r\n")[0]
        words = first.split(b" ", 2)
        if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit():
            raise ValueError(f"no HTTP/1.1 answer: {first[:60].decode('latin-1')!r}")
        status = int(words[1])
        if 100 <= status < 200:
            raise ValueError(f"status {status} was not asked for")
        framing = {name.lower(): value.strip() for name, value in _FRAMING.findall(head)}
        served = _SERVED.search(head)
        told = framing.get(b"content-length")
        if told is not None and not told.isdigit():
            raise ValueError(f"content-length {told.decode('latin-1')!r}")
        return cls(
            status=status,
            ends=ends,
            length=None if told is None else int(told),
            chunked=b"chunked" in framing.get(b"transfer-encoding", b"").lower(),
            closes=framing.get(b"connection", b"").lower() == b"close" or words[0] == b"HTTP/1.0",
            pieces=[],
            served=served[1].strip().decode("latin-1") if served else "",
        )


def _line(seen: bytes | bytearray, at: int) -> bytes | None:
    """The line at a place, without its end; None while it has not come.

    Raises:
        ValueError: it is too long.
    """
    end = seen.find(b"\r\n", at, at + _MAX_LINE_BYTES)
    if end < 0 and len(seen) - at >= _MAX_LINE_BYTES:
        raise ValueError("a line of the answer is too long")
    return None if end < 0 else bytes(seen[at:end])
