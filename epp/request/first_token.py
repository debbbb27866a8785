"""Receives Envoy's reports while answers still run.

``POST /first-token/<decision>``, ``/stored/<decision>/<id>`` of a response that the engine stores, and
``/failed/<decision>/<endpoint>/<status>/<what it says>`` of an answer that failed. An Envoy that may fall
back to other pickers sends the same paths as messages of `TOLD`, a gRPC method beside ext_proc.

Owns a listener of its own and the little HTTP/1.1 that Envoy speaks to it, because these calls come once a
request and a web framework costs ten times what it says. It listens on loopback, a Unix socket or with mTLS,
for Envoy alone: whoever reaches it could release the tokens of a decision whose id it knows.

Rules: every request is answered 204 and at once, whether or not anybody knows the decision; a request that is
no such call is answered 404; a connection that speaks no HTTP, sends a body or too long a head, or is silent
for long, is closed.
"""

from __future__ import annotations

import asyncio
import logging
import re
from typing import TYPE_CHECKING, cast
from urllib.parse import unquote_to_bytes

from epp.apis.failure import failure_in
from epp.config.listen import MAX_CONNECTIONS
from epp.logs import REPEATED
from epp.request.access_log import FULL_PAUSE_S, Attempt
from epp.rpc.accepting import watching
from epp.rpc.handlers import Unary

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from epp.request.access_log import Reports
    from epp.rpc.accepting import Acceptor, Watched
    from epp.rpc.http2.connection import Call
    from epp.rpc.http2.messages import Message

log = logging.getLogger(__name__)

#: As `epp.envoy.observe` has it.
TOLD = "/epp.Reports/Told"
MAX_HEAD_BYTES = 8192
MAX_ID_BYTES = 128

_NO_CONTENT = b"HTTP/1.1 204 No Content\r\n\r\n"
_NOT_FOUND = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"
_END_OF_HEAD = b"\r\n\r\n"
_REQUEST_LINE = re.compile(rb"([A-Z]+) ([!-~]+) HTTP/1\.1\r\n")
_FIRST_TOKEN = re.compile(rb"/first-token/(.{1,%d})" % MAX_ID_BYTES)
_STORED = re.compile(rb"/stored/([^/]{1,%d})/([^/]+)" % MAX_ID_BYTES)
_FAILED = re.compile(rb"/failed/([^/]{1,%d})/([^/]*)/(\d{3})/([^/]*)" % MAX_ID_BYTES)
_BODY = re.compile(rb"\r\n(?:transfer-encoding:|content-length:[ \t]*0*[1-9])", re.IGNORECASE)


class FirstTokenReceiver:
    """A listener for first tokens.

    Args:
        reports: takes each.
        max_connections: at once; those beyond are closed as they come.
        on_refused: called for each of those.

    Attributes:
        received: calls taken.
        malformed: requests that were no such call, and connections given up.
        failed: calls that their receiver raised on.
        address: where it listens.
    """

    def __init__(
        self,
        reports: Reports,
        *,
        max_connections: int = MAX_CONNECTIONS,
        on_refused: Callable[[], None] = lambda: None,
    ) -> None:
        self._reports = reports
        self._max_connections, self._on_refused = max_connections, on_refused
        self._acceptor: Acceptor[Watched] | None = None
        self.received = 0
        self.malformed = 0
        self.failed = 0
        self.address = ""

    def listen(self, where: str, tls: ssl.SSLContext | None = None) -> str:
        """Listen on ``host:port`` or ``unix:/path``; the same with the port that the system chose.

        TLS contexts ask for client certificates.

        Raises:
            OSError: the address cannot be bound.
            ValueError: it is not an address.
        """
        self._acceptor = watching(
            lambda: _Connection(self),
            most=self._max_connections,
            tls=tls,
            on_refused=self._on_refused,
        )
        self.address = self._acceptor.listen(where)
        return self.address

    async def stop(self) -> None:
        """Close the listener and its connections."""
        acceptor, self._acceptor = self._acceptor, None
        if acceptor is None:
            return
        acceptor.close()
        for connection in list(acceptor.open):
            connection.abort()
        await asyncio.sleep(0)  # they are closed in the loop's next turn

    def answer(self, head: bytes) -> bytes | None:
        """Answer a request's head; None gives up the connection."""
        line = _REQUEST_LINE.match(head)
        if line is None or _BODY.search(head):
            self.malformed += 1
            return None
        method, path = line.groups()
        return _NO_CONTENT if self.take(path if method == b"POST" else b"") else _NOT_FOUND

    def serve(self, call: Call) -> Unary:
        """Serve `TOLD`: its message is the path of a call, and its answer is empty."""

        def answer(_: Call, message: Message) -> bytes:
            self.take(bytes(message))
            return b""

        return Unary(call, answer)

    def take(self, path: bytes) -> bool:
        """Report what a path says; False where that is nothing."""
        call = _FIRST_TOKEN.fullmatch(path) or _STORED.fullmatch(path) or _FAILED.fullmatch(path)
        if call is None:
            self.malformed += 1
            return False
        try:
            self._report(call.re, [part.decode("ascii") for part in call.groups()])
        except Exception:
            self.failed += 1
            log.exception("a report was lost", extra=REPEATED)
        else:
            self.received += 1
        return True

    def _report(self, kind: re.Pattern[bytes], told: list[str]) -> None:
        if kind is _FIRST_TOKEN:
            self._reports.first_token(*told)
        elif kind is _STORED:
            self._reports.stored(*told)
        else:
            decision_id, served, status, words = told
            failure = failure_in(unquote_to_bytes(words), int(status))
            if failure is not None:
                pause = "" if failure.status == int(status) else FULL_PAUSE_S
                attempt = Attempt(decision_id, (), served, failure.status, pause, unserved=False)
                self._reports.attempted(attempt)


class _Connection(asyncio.Protocol):
    """One connection: heads are cut from the bytes as they come and answered in order."""

    def __init__(self, receiver: FirstTokenReceiver) -> None:
        self._receiver = receiver
        self._pending = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A stream's, by how the listener was made; uvloop's are of no such class.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        *heads, self._pending = (self._pending + data).split(_END_OF_HEAD)
        answers = []
        for head in heads:
            answer = self._receiver.answer(head + b"\r\n")
            if answer is None:
                self._transport.abort()
                return
            answers.append(answer)
        if len(self._pending) > MAX_HEAD_BYTES:
            self._receiver.malformed += 1
            self._transport.abort()
        elif answers:
            self._transport.write(b"".join(answers))
