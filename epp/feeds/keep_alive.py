"""What probes and scrapes need of HTTP: a connection that is kept open, and credentials.

A general client costs several times what an engine's metrics cost to read, and a picker asks hundreds of
engines every second. Rules: one request at a time; bodies are bounded; a connection that the other side has
closed meanwhile is opened again, once, unseen by the caller but for `opened`; whatever else goes wrong closes
it and raises. No compression is asked for.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from httptools import HttpParserError, HttpResponseParser

from epp.config.address import split_address
from epp.extproc.messages import SERVED_KEY
from epp.feeds.files import POLL_S, read_file
from epp.threads import in_daemon_thread

if TYPE_CHECKING:
    from collections.abc import Mapping

_MAX_HEAD_BYTES = 64 * 1024
#: Longest body that is read.
MAX_BODY_BYTES = 8 * 1024 * 1024
#: Who served, as a relay says it.
_SERVED = SERVED_KEY.encode()
#: Longest time that the first probe waits for its token.
_FIRST_READ_S = 1.0


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer.

    Attributes:
        status: of it.
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

    Attributes:
        opened: connections opened so far.
    """

    def __init__(self, address: str, *, tls: ssl.SSLContext | None, server_name: str | None) -> None:
        self._address, self._tls, self._server_name = address, tls, server_name
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
        try:
            async with asyncio.timeout(timeout_s):
                if self._connection is not None:
                    try:
                        return await self._ask(self._connection)
                    except ConnectionError:
                        self.close()
                self._connection = await self._open()
                return await self._ask(self._connection)
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
                _Connection, host, port, ssl=self._tls, server_hostname=name
            )
        except OSError as error:
            raise type(error)(error.errno, f"Cannot connect to {self._address}: {error}") from error
        return connection

    async def _ask(self, connection: _Connection) -> Answer:
        answer = await connection.ask(self._request)
        if connection.over:
            self.close()
        return answer


class _Connection(asyncio.Protocol):
    """The connection's bytes: one request out, one answer in, again and again.

    Methods ``on_*`` are called by the parser; what they raise leaves it as the cause of an `HttpParserError`.

    Attributes:
        over: whether nothing can be asked here any more.
    """

    def __init__(self) -> None:
        self._waiting: asyncio.Future[Answer] | None = None
        self._parser = HttpResponseParser(self)
        # Not the loop's time, which uvloop has in whole milliseconds.
        self._asked_s = self._came_s = 0.0
        self._pieces: list[bytes] = []
        self._head_bytes = self._body_bytes = 0
        self._in_head, self._has_length, self._served = True, False, ""
        self.over = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep it."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by name

    def ask(self, request: bytes) -> asyncio.Future[Answer]:
        """Send a request; the answer, or why there is none."""
        self._waiting = asyncio.get_running_loop().create_future()
        self._pieces, self._head_bytes, self._body_bytes = [], 0, 0
        self._in_head, self._has_length, self._served = True, False, ""
        if self.over:
            self._fail(ConnectionError("the connection broke off"))
        else:
            self._asked_s = time.monotonic()
            self._transport.write(request)
        return self._waiting

    def abort(self) -> None:
        """Close it at once."""
        self.over = True
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Take a piece of the answer."""
        self._came_s = time.monotonic()
        if self._waiting is None or self._waiting.done():
            self.abort()  # nobody asked
            return
        self._head_bytes += len(data) if self._in_head else 0
        try:
            self._parser.feed_data(data)
        except HttpParserError as error:
            self._fail(ValueError(f"no HTTP/1.1 answer: {error.__context__ or error}"))
        if self._in_head and self._head_bytes > _MAX_HEAD_BYTES:
            self._fail(ValueError("the head of the answer is too long"))

    def on_message_begin(self) -> None:
        """An answer begins; nothing more is asked where it is one that nobody asked for."""
        self.over = self.over or self._waiting is None or self._waiting.done()

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or a trailer."""
        name = name.lower()
        if name == b"content-length":
            self._has_length = True
            self._check(int(value))
        elif name == b"transfer-encoding":
            self._has_length = True
        elif name == _SERVED:
            self._served = value.strip().decode("latin-1")

    def on_headers_complete(self) -> None:
        """The body begins."""
        self._in_head = False
        if self._parser.get_status_code() < 200:
            raise ValueError("an interim answer was not asked for")

    def on_body(self, piece: bytes) -> None:
        """A piece of the body."""
        self._body_bytes += len(piece)
        self._check(self._body_bytes)
        self._pieces.append(piece)

    def on_message_complete(self) -> None:
        """All of the answer has come."""
        if not self._parser.should_keep_alive():
            self.over = True
        if self._waiting is not None and not self._waiting.done():
            status, took_s = self._parser.get_status_code(), self._came_s - self._asked_s
            self._waiting.set_result(Answer(status, b"".join(self._pieces), self._served, took_s))
        self._pieces = []  # pages are long, and kept for no one

    def connection_lost(self, exc: Exception | None) -> None:
        """End an answer that has no other end; else it has broken off."""
        self.over, self._came_s = True, time.monotonic()
        if exc is None and not (self._in_head or self._has_length):
            self.on_message_complete()
        self._fail(exc if isinstance(exc, OSError) else ConnectionError("the connection broke off"))

    def _fail(self, error: Exception) -> None:
        self.over = True
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(error)

    def _check(self, size: int) -> None:
        if size > MAX_BODY_BYTES:
            raise ValueError(f"more than {MAX_BODY_BYTES} bytes of metrics")


def client_tls(ca_file: str, cert_file: str, key_file: str, *, insecure: bool = False) -> ssl.SSLContext:
    """Make what a connection is opened with; reads files, so it may block.

    Args:
        ca_file: who signs certificates of the other side, the system's CAs when empty.
        cert_file: certificate to show, none when empty.
        key_file: its private key.
        insecure: whether the other side may show any certificate.

    Raises:
        ValueError: a file cannot be used; names it, which the errors of the ssl module do not.
    """
    named = f"ca_file {ca_file}"
    try:
        for file in filter(None, (ca_file, cert_file, key_file)):
            read_file(Path(file))  # refuses a FIFO, which the ssl module would wait for
        context = ssl.create_default_context(cafile=ca_file or None)
        if insecure:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if cert_file:
            named = f"cert_file {cert_file} with key_file {key_file}"
            context.load_cert_chain(cert_file, key_file)
    except OSError as error:
        raise ValueError(f"{named}: {error.strerror or error}") from error
    return context


class TokenFile:
    """A bearer token in a file that may be replaced: mounted secrets rotate."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._headers: dict[str, str] = {}
        self._problem = f"{path} has not been read yet"
        self._read = asyncio.Event()

    def headers(self) -> dict[str, str]:
        """Authorization header for the token last read.

        Raises:
            OSError: the file cannot be read.
        """
        if self._problem:
            raise OSError(self._problem)
        return self._headers

    async def first_read(self) -> None:
        """Wait until the file has been read, but not for long: a file system may hang."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._read.wait(), _FIRST_READ_S)

    async def follow(self, poll_s: float = POLL_S) -> None:
        """Read the file for ever."""
        while True:
            try:
                content = await in_daemon_thread(read_file, self._path)
                self._problem = "" if content is not None else f"{self._path} does not exist"
                self._headers = {"authorization": f"Bearer {(content or b'').decode().strip()}"}
            except (OSError, UnicodeDecodeError) as error:  # whose words may quote the file
                why = error.strerror or error if isinstance(error, OSError) else "it is no text"
                self._problem = f"{self._path} cannot be read: {why}"
            self._read.set()
            await asyncio.sleep(poll_s)
