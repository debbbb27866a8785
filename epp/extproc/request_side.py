"""The request half of an exchange: collects it, asks for a pick when it is whole, carries the answer back.

Owns the request's headers, metadata and body until it is answered (then it lets the body go). Knows nothing
of the response nor of how streams end.

| phase    | headers                    | body                               | trailers             |
|----------|----------------------------|------------------------------------|----------------------|
| HEADERS  | end: PickNeeded, DECIDING  | violation                          | violation            |
|          | else: mode's reply, BODY   |                                    |                      |
| BODY     | violation                  | whole: PickNeeded, DECIDING        | PickNeeded, DECIDING |
|          |                            | else: kept, BODY                   |                      |
|          |                            | over the limit: BodyTooLargeError  |                      |
| DECIDING | violation                  | after the end: ignored             | violation            |
| ANSWERED | violation                  | after the end: ignored             | empty reply, once    |

A body message before the end was told, yet after what must have been the whole, is a violation. Body after
the end is ignored: Envoy >= 1.35 may deliver the last piece of a body of 1 MB or more twice in full duplex
(envoyproxy/envoy 46237).
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from epp.extproc import mutate
from epp.extproc.headers import header_values, metadata_values
from epp.extproc.modes import contradiction
from epp.extproc.request_modes import Received
from epp.extproc.types import HttpRequest, PickNeeded
from epp.extproc.violation import ViolationError

if TYPE_CHECKING:
    from epp.extproc.modes import Modes
    from epp.extproc.mutate import Change
    from epp.extproc.request_modes import RequestMode
    from epp.pb.core_pb2 import Metadata
    from epp.pb.ext_proc_pb2 import HttpBody, HttpHeaders, ProcessingResponse


class RequestPhase(Enum):
    """How far the request has come."""

    HEADERS = "headers"
    BODY = "body"
    DECIDING = "deciding"
    ANSWERED = "answered"


class BodyTooLargeError(Exception):
    """The body passed its limit; what was read of it is gone."""


class RequestSide:
    """One request.

    Args:
        modes: the stream's body modes.
        mode: how its request body mode is answered.
        max_body_bytes: largest body that is kept.
    """

    def __init__(self, modes: Modes, mode: RequestMode, max_body_bytes: int) -> None:
        self._modes, self._mode, self._max_body_bytes = modes, mode, max_body_bytes
        self.phase = RequestPhase.HEADERS
        self._headers: dict[str, str] = {}
        self._metadata: dict[str, dict[str, object]] = {}
        self._chunks: list[bytes] = []
        self._body_bytes = 0
        self._received = Received(headers_only=True, body=b"", body_seen=False, trailers=False)
        self._body_ended = self._trailers_seen = False

    def on_metadata(self, metadata: Metadata) -> None:
        """Keep the metadata of a request message; later fields replace earlier ones of the same name.

        A field that only an earlier message had stays: a subset hint that came with the headers holds, even
        where the body's metadata does not repeat it.
        """
        for namespace, fields in metadata_values(metadata).items():
            self._metadata.setdefault(namespace, {}).update(fields)

    def on_headers(self, message: HttpHeaders) -> list[ProcessingResponse | PickNeeded]:
        """Request headers."""
        if self.phase is not RequestPhase.HEADERS:
            raise ViolationError("request_headers a second time")
        self._headers = header_values(message.headers)
        if message.end_of_stream:
            self._body_ended = True
            return [self._ask(body=None, trailers=False)]
        self.phase = RequestPhase.BODY
        return list(self._mode.at_headers)

    def on_body(self, message: HttpBody) -> list[ProcessingResponse | PickNeeded]:
        """A piece of the request body.

        Raises:
            BodyTooLargeError: with it the body is over its limit.
        """
        if self._body_ended:
            return []
        if self.phase is not RequestPhase.BODY:
            detail = "a request body piece after what had to be the whole body"
            hint = "" if self._modes.declared else f" in the assumed mode {self._modes.request.name}"
            raise ViolationError(detail + hint)
        self._body_bytes += len(message.body)
        if self._body_bytes > self._max_body_bytes:
            self._chunks.clear()
            raise BodyTooLargeError
        self._chunks.append(message.body)
        self._body_ended = message.end_of_stream
        if self._mode.whole_in_one and not message.end_of_stream:
            wrong = contradiction(self._modes, self._headers, self._body_bytes)
            if wrong:
                raise ViolationError(wrong)
        if message.end_of_stream or self._mode.whole_in_one:
            return [self._ask(body=self._take_body(), trailers=False)]
        return []

    def on_trailers(self) -> list[ProcessingResponse | PickNeeded]:
        """Request trailers: the end of a request that its body did not end."""
        if (
            self.phase is RequestPhase.ANSWERED
            and not self._trailers_seen
            and not self._received.headers_only
        ):
            self._trailers_seen = True
            return [mutate.EMPTY_REQUEST_TRAILERS]
        if self.phase is not RequestPhase.BODY:
            raise ViolationError(f"request_trailers in phase {self.phase.value}")
        self._body_ended = self._trailers_seen = True
        return [self._ask(body=self._take_body(), trailers=True)]

    def answer(self, change: Change, *, at_once: bool = False) -> list[ProcessingResponse]:
        """The replies that carry a change, in a single one if asked; only in phase DECIDING."""
        carry = self._mode.at_once if at_once else self._mode.answer
        replies = carry(self._received, change)
        self.phase = RequestPhase.ANSWERED
        # The exchange may last for minutes; its body is not needed for them.
        self._received = Received(
            headers_only=self._received.headers_only, body=b"", body_seen=False, trailers=False
        )
        return replies

    def without_body(self) -> HttpRequest:
        """The request as its headers tell it."""
        return self._request(None)

    def _request(self, body: bytes | None) -> HttpRequest:
        headers = self._headers
        return HttpRequest(
            headers.get(":method", ""), headers.get(":path", ""), headers, body, dict(self._metadata)
        )

    def _take_body(self) -> bytes:
        body = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        self._received = Received(headers_only=False, body=body, body_seen=bool(self._chunks), trailers=False)
        self._chunks.clear()
        return body

    def _ask(self, *, body: bytes | None, trailers: bool) -> PickNeeded:
        if trailers:
            kept = self._received
            self._received = Received(
                headers_only=False, body=kept.body, body_seen=kept.body_seen, trailers=True
            )
        self.phase = RequestPhase.DECIDING
        return PickNeeded(self._request(body))
