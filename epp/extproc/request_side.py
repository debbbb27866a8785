"""The request half of an exchange: collects what a pick waits for, asks, carries the answer back.

Owns the request's headers, metadata and body until it is answered, and keeps method and path alone from then
on. Headers and metadata count as they lie in memory once they wait for a body. Knows nothing of the response
nor of how streams end. A pick waits for the whole body, or `early` for none of it: where the
mode shows none in time, or where `pick_at` says so.

| phase    | headers                    | body                               | trailers             |
|----------|----------------------------|------------------------------------|----------------------|
| HEADERS  | end, or early:             | violation                          | violation            |
|          | HttpRequest, DECIDING       |                                    |                      |
|          | else: mode's reply, BODY   |                                    |                      |
| BODY     | violation                  | all there is: HttpRequest, DECIDING | HttpRequest, DECIDING |
|          |                            | else: kept, BODY                   |                      |
|          |                            | over a limit: HeldTooMuchError     |                      |
| DECIDING | violation                  | after the end: ignored             | early: kept          |
|          |                            | early: kept                        | else: violation      |
| ANSWERED | violation                  | after the end: ignored             | empty reply, once    |
|          |                            | early: forwarded                   |                      |

A body that may not be held for long (`RequestMode.held_bytes`) is dropped when that much has come; the pick
is early from then on. A body message before the end was told, yet after what must have been the whole, is a
violation. Body after the end is ignored: Envoy >= 1.35 may deliver the last piece of a body of 1 MB or more
twice in full duplex (envoyproxy/envoy 46237).
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from epp.extproc import messages
from epp.extproc.messages import SUBSET_NAMESPACE, header_values, metadata_values, plain_bytes
from epp.extproc.modes import BodyMode, early_reply, request_mode
from epp.extproc.types import HttpRequest, PickAt, ViolationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from epp.extproc.body_budget import Share
    from epp.extproc.modes import Modes
    from epp.extproc.types import Pick
    from epp.pb.core_pb2 import Metadata
    from epp.pb.ext_proc_pb2 import HttpBody, HttpHeaders, ProcessingResponse


#: Pieces up to this are joined as they come.
_SHORT_BYTES = 512
#: What is kept of an answered request's path: more than any API's.
_KEPT_PATH_CHARS = 200


class RequestPhase(Enum):
    """How far the request has come."""

    HEADERS = "headers"
    BODY = "body"
    DECIDING = "deciding"
    ANSWERED = "answered"


class HeldTooMuchError(Exception):
    """A limit was passed; what was read of the body is gone.

    Args:
        status: 413 for the length of the body, 503 for what all requests hold together.
    """

    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__(status)


class RequestSide:
    """One request.

    Args:
        modes: the stream's body modes.
        max_body_bytes: largest body that is kept.
        pick_at: from a request's headers to what its pick waits for.
        bodies: what this body is held out of.

    Attributes:
        phase: how far it has come.
        early: whether the pick did not wait for the body.
        headers_only: whether its headers ended the stream.
        body: the joined body.
        body_messages: messages that brought it.
        trailers: whether trailers ended it.

    Raises:
        ViolationError: the request body mode is not spoken.
    """

    def __init__(
        self,
        modes: Modes,
        max_body_bytes: int,
        pick_at: Callable[[HttpRequest], PickAt],
        bodies: Share,
    ) -> None:
        self._modes, self._mode, self._max_body_bytes = modes, request_mode(modes), max_body_bytes
        self._held_bytes = None if modes.observing else self._mode.held_bytes
        self._pick_at = pick_at
        self.phase = RequestPhase.HEADERS
        self.early = self.trailers = False
        self.headers_only, self.body, self.body_messages = True, b"", 0
        self._upgrade = self._body_ended = False
        self._headers: dict[str, str] = {}
        self._metadata: dict[str, dict[str, object]] = {}
        self._chunks: list[bytes | bytearray] = []
        self._body_bytes = 0
        self._bodies, self._taken_bytes, self._metadata_bytes = bodies, 0, 0
        #: What came of an early request while its pick was made.
        self._late: list[HttpBody] = []

    def on_metadata(self, metadata: Metadata) -> None:
        """Keep the subset hint of a request message; later fields replace earlier ones of the same name.

        A field that only an earlier message had stays: a hint that came with the headers holds, even where
        the body's metadata does not repeat it.

        Raises:
            HeldTooMuchError: with it all requests are over their limit.
        """
        for namespace, fields in metadata_values(metadata, SUBSET_NAMESPACE).items():
            self._metadata.setdefault(namespace, {}).update(fields)
            if self.phase is RequestPhase.BODY:
                self._take_metadata()

    def on_headers(self, message: HttpHeaders) -> list[ProcessingResponse | HttpRequest]:
        """Take the request headers.

        Raises:
            HeldTooMuchError: with them all requests are over their limit.
        """
        if self.phase is not RequestPhase.HEADERS:
            raise ViolationError("request_headers a second time")
        self._headers = header_values(message.headers)
        if message.end_of_stream:
            self._body_ended = True
            return [self._ask()]
        self.headers_only = False
        at = self._pick_at(self.describe())
        self._upgrade = at is PickAt.UPGRADE
        # Only what came whole can be left in full duplex: what nobody needs is waited for there.
        wanted = at is PickAt.BODY or (at is PickAt.EITHER and self._mode.echoes)
        if not (wanted and self._mode.waits):
            self.early = True
            return [self._ask(whole=False)]
        self.phase = RequestPhase.BODY
        self._take_beside(plain_bytes(self._headers))
        if self._metadata:
            self._take_metadata()
        return list(self._mode.at_headers)

    def on_body(self, message: HttpBody) -> list[ProcessingResponse | HttpRequest]:
        """Take a piece of the request body.

        Raises:
            HeldTooMuchError: with it the body is over its limit, or all bodies over theirs.
        """
        if self._body_ended:
            return []
        if self.early:
            return self._on_late(message)
        if self.phase is not RequestPhase.BODY:
            raise ViolationError("a request body piece after what had to be the whole body")
        self._keep(message, last=message.end_of_stream or self._mode.whole_in_one)
        self._append(message.body)
        self._body_ended = message.end_of_stream
        if message.end_of_stream or self._mode.whole_in_one:
            body = self._take_body()
            return [self._ask(body, whole=message.end_of_stream or not self._mode.may_cut)]
        if self._held_bytes is not None and self._body_bytes > self._held_bytes:
            self.early = True
            self._chunks.clear()
            return [self._ask(whole=False)]
        return []

    def on_trailers(self) -> list[ProcessingResponse | HttpRequest]:
        """Take request trailers, the end of a request that its body did not end."""
        if self.trailers or self.headers_only or (self.phase is RequestPhase.DECIDING and not self.early):
            raise ViolationError(f"request_trailers in phase {self.phase.value}")
        self._body_ended = self.trailers = True
        if self.phase is RequestPhase.ANSWERED:
            return [messages.EMPTY_REQUEST_TRAILERS]
        return [] if self.early else [self._ask(self._take_body())]

    def answer(self, pick: Pick, *, at_once: bool = False) -> list[ProcessingResponse]:
        """Build the replies that carry a pick, in a single one if asked; only in phase DECIDING."""
        mode = self._mode
        if not self.early:
            replies = (mode.at_once if at_once else mode.answer)(self, pick, pick.body)
        elif self.body_messages:  # some of it had come: answered as what it is
            replies = mode.answer(self, pick, None)
        else:
            replies = [early_reply(mode, self._modes, pick)]
        for message in self._late:
            replies += mode.forward(message)
        if self.trailers and (self.early or not (at_once or mode.whole_in_one)):
            replies.append(messages.EMPTY_REQUEST_TRAILERS)
        self.phase = RequestPhase.ANSWERED
        self.release()
        return replies

    def release(self) -> None:
        """Drop body, headers and metadata, which nothing reads any more; the exchange may last for minutes.

        Method and path stay, in whose API's words a later refusal is written.
        """
        self._drop_body()
        method, path = self._headers.get(":method", ""), self._headers.get(":path", "")[:_KEPT_PATH_CHARS]
        self._headers, self._metadata = {":method": method, ":path": path}, {}
        taken_bytes, self._taken_bytes = self._taken_bytes, 0
        self._bodies.release(taken_bytes)

    def _drop_body(self) -> None:
        self.body = b""
        self._chunks.clear()
        self._late.clear()

    @property
    def may_end_stream(self) -> bool:
        """Whether the answer is one reply, after which nothing of the request need come back from us."""
        if self.early and self._mode.echoes:
            return self._upgrade and not self._late
        return self._mode.single

    @property
    def released(self) -> bool:
        """Whether the body was left with Envoy."""
        return self.early and self._mode.releases and self.phase is RequestPhase.ANSWERED

    def _on_late(self, message: HttpBody) -> list[ProcessingResponse | HttpRequest]:
        if self._modes.request is BodyMode.NONE:
            raise ViolationError("a request body in mode NONE")
        if self.phase is RequestPhase.DECIDING:
            self._keep(message, last=message.end_of_stream)
            self._late.append(message)
            replies = []
        else:
            replies = self._mode.forward(message)
        self._body_ended = message.end_of_stream
        return [*replies]

    def _append(self, piece: bytes) -> None:
        """Keep a piece. Short ones are joined: objects would take many times what is counted."""
        self.body_messages += 1
        chunks = self._chunks
        if not chunks or len(piece) > _SHORT_BYTES:
            chunks.append(piece)
            return
        last = chunks[-1]
        if isinstance(last, bytearray):
            last += piece
        else:
            chunks.append(bytearray(piece))

    def _keep(self, message: HttpBody, *, last: bool) -> None:
        size = len(message.body)
        self._body_bytes += size
        if self._body_bytes > self._max_body_bytes:
            self._drop_body()
            raise HeldTooMuchError(413)
        if not self._bodies.take(size, last=last):
            self._drop_body()
            raise HeldTooMuchError(503)
        self._taken_bytes += size

    def _take_metadata(self) -> None:
        """Take what the metadata has grown by."""
        size = plain_bytes(self._metadata)
        if size > self._metadata_bytes:
            self._take_beside(size - self._metadata_bytes)
            self._metadata_bytes = size

    def _take_beside(self, size: int) -> None:
        """Take what waits beside a body."""
        if not self._bodies.reserve(size):
            self._drop_body()
            raise HeldTooMuchError(503)
        self._taken_bytes += size

    def describe(self, body: bytes | None = None, *, whole: bool = False) -> HttpRequest:
        """Describe the request, by its headers alone where no body is given."""
        headers, metadata = self._headers, self._metadata
        if metadata:  # its fields may still change
            metadata = {namespace: dict(fields) for namespace, fields in metadata.items()}
        method, path = headers.get(":method", ""), headers.get(":path", "")
        return HttpRequest(method, path, headers, body, metadata, whole)

    def _take_body(self) -> bytes:
        self.body = bytes(self._chunks[0]) if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks.clear()
        return self.body

    def _ask(self, body: bytes | None = None, *, whole: bool = True) -> HttpRequest:
        self.phase = RequestPhase.DECIDING
        return self.describe(body, whole=whole)
