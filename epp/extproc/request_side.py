"""The request half of an exchange: collects what a decision waits for, asks, carries the answer back.

Owns the request's headers, metadata and body until it is answered, and keeps method and path alone from then
on. Headers and metadata count as they lie in memory once they wait for a body. Knows nothing of the response
nor of how streams end. A decision waits for the whole body, or `early` for none of it: where the
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

A body that may not be held for long (`RequestMode.held_bytes`) is dropped when that much has come; the
decision is early from then on. A body message before the end was told, yet after what must have been the
whole, is a violation. Body after the end is ignored: Envoy >= 1.35 may deliver the last piece of a body of 1
MB or more twice in full duplex (envoyproxy/envoy 46237).

One stateless object a mode, from `request_mode`. Which reply Envoy obeys in which mode (comments of
`external_processor.proto`; read in and tried with Envoy 1.40):

* BUFFERED: Envoy sends the body, in one message, only after the headers were answered, and holds the headers
  until the body is answered too; header mutations and the route cache are honoured on the body's reply. So
  headers are answered empty at once, and the body's reply carries everything: two messages each way.
* BUFFERED_PARTIAL: the same, but a body longer than Envoy's buffer is cut off there and the rest goes on
  without us. Nothing tells a cut body from one that trailers follow.
* NONE: there is no body; the reply to the headers carries everything.
* STREAMED: the body comes in pieces, each to be answered, after the headers were answered; and with that
  answer the request is on its way. So a decision cannot wait for the body, and none of it is of use.
* STREAMED, bodies ahead: pieces come without waiting for the reply to the headers, and Envoy keeps each until
  it is answered, up to a limit that it does not tell, where it stops reading. A decision may wait for the end
  or for `HELD_BYTES`; then headers, and one reply a piece.
* FULL_DUPLEX_STREAMED: body and trailers come as they arrive; nothing is answered before the request is
  whole, then headers (with everything), the body as `streamed_response` pieces, and trailers, in this order.

A decision that does not wait for the body is the reply to the headers. Where that also `releases` the
request, it says CONTINUE_AND_REPLACE without a body, after which Envoy leaves the body alone and sends none
of it, whatever it is configured to allow; and it says the same as a `mode_override`, which where allowed
keeps the stream open to the end of the request. What comes of the body all the same is passed by `forward`.

Each mode can also answer in one message, `at_once`, for a stream that ends with its answer: before Envoy has
read that message to its end it passes nothing on, so no response can come before it. In full duplex that
takes the status CONTINUE_AND_REPLACE, with which the reply to the headers brings the body along; trailers
follow as they came.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from msgspec import Struct, structs

from epp.extproc import messages
from epp.extproc.messages import SUBSET_NAMESPACE, header_values, metadata_values, plain_bytes
from epp.extproc.modes import BodyMode
from epp.extproc.types import DecideAt, HttpRequest, ViolationError
from epp.pb.ext_proc_pb2 import CommonResponse, ProcessingResponse
from epp.pb.processing_mode_pb2 import ProcessingMode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from epp.extproc.body_budget import Share
    from epp.extproc.modes import Modes
    from epp.extproc.types import Destination
    from epp.pb.core_pb2 import Metadata
    from epp.pb.ext_proc_pb2 import HttpBody, HttpHeaders


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


#: What may lie unanswered of a body that comes ahead: the lowest buffer limit that gateways are known to set.
#: Envoy stops reading above its own, and would then wait for us as we for it.
HELD_BYTES = 32 * 1024


class RequestMode(Struct, frozen=True):
    """What differs between request body modes; by itself one whose reply to the headers is all.

    Attributes:
        waits: whether a decision can wait for the body.
        whole_in_one: whether one body message is all that comes, whatever it says of the end of the stream.
        may_cut: whether that message may be less than the body.
        held_bytes: most bytes that may lie unanswered, None for any.
        releases: whether the reply to the headers can keep the body from us.
        echoes: whether only what we send back goes on, so a body passed by pieces keeps us to the end.
        single: whether the whole answer is, or can be, one reply.
        at_headers: replies to headers that a body or trailers follow, due before these come.
    """

    waits: bool = True
    whole_in_one: bool = False
    may_cut: bool = False
    held_bytes: int | None = None
    releases: bool = False
    echoes: bool = False
    single: bool = True
    at_headers: tuple[ProcessingResponse, ...] = ()

    def answer(
        self, _request: RequestSide, pick: Destination, _body: bytes | None
    ) -> list[ProcessingResponse]:
        """Build the replies that carry a decision, in order, without that to trailers.

        Args:
            _request: what has come of the request.
            pick: where it goes.
            _body: what replaces its body, None to leave it.
        """
        return [headers_reply(pick, None)]

    def at_once(
        self, request: RequestSide, pick: Destination, body: bytes | None
    ) -> list[ProcessingResponse]:
        """Build a single reply, after which the stream must end; only where the mode is `single`."""
        return self.answer(request, pick, body)

    def forward(self, _message: HttpBody) -> list[ProcessingResponse]:
        """Build the replies to a body message that was not waited for."""
        return [messages.EMPTY_REQUEST_BODY]


class StreamedAhead(RequestMode, frozen=True):
    """STREAMED, bodies ahead: the reply to the headers carries the answer, one reply a piece follows."""

    def answer(self, request: RequestSide, pick: Destination, body: bytes | None) -> list[ProcessingResponse]:
        """Answer headers and pieces; another body goes on in the place of the last piece."""
        replies, pieces = [headers_reply(pick, body)], request.body_messages
        if body is None or not pieces:
            return replies + [messages.EMPTY_REQUEST_BODY] * pieces
        last = ProcessingResponse()
        last.request_body.response.body_mutation.body = body
        return [*replies, *[messages.CLEARED_REQUEST_BODY] * (pieces - 1), last]


class Buffered(RequestMode, frozen=True):
    """BUFFERED: lockstep, the answer rides on the last part's reply."""

    def answer(self, request: RequestSide, pick: Destination, body: bytes | None) -> list[ProcessingResponse]:
        """Build one reply: to the headers if there was nothing else, to the body, or to the bare trailers.

        A trailers reply can carry no change to headers; metadata alone selects then.
        """
        if request.headers_only:
            return [headers_reply(pick, None)]
        reply = ProcessingResponse()
        messages.set_metadata(reply, pick)
        if not request.body_messages:
            reply.request_trailers.SetInParent()
            return [reply]
        response = reply.request_body.response
        messages.set_destination(response, pick, body)
        if body is not None:
            response.body_mutation.body = body
        return [reply]


class FullDuplex(RequestMode, frozen=True):
    """FULL_DUPLEX_STREAMED: headers, body pieces, trailers, all after the request is whole."""

    def answer(self, request: RequestSide, pick: Destination, body: bytes | None) -> list[ProcessingResponse]:
        """Answer the headers, then send the body or its replacement."""
        replies = [headers_reply(pick, body)]
        if request.headers_only:
            return replies
        data = request.body if body is None else body
        # Before trailers an empty body needs no piece: there is no end of stream to carry.
        if data or not request.trailers:
            replies += messages.streamed_body("request_body", data, ends_stream=not request.trailers)
        return replies

    def at_once(
        self, request: RequestSide, pick: Destination, body: bytes | None
    ) -> list[ProcessingResponse]:
        """Build the headers' reply, which replaces the body by itself or by what it is changed to."""
        if request.headers_only or not request.body_messages:
            return [headers_reply(pick, body)]
        reply = headers_reply(pick, body, CommonResponse.CONTINUE_AND_REPLACE)
        reply.request_headers.response.body_mutation.body = request.body if body is None else body
        return [reply]

    def forward(self, message: HttpBody) -> list[ProcessingResponse]:
        """Send all bytes back at once."""
        return messages.streamed_body("request_body", message.body, ends_stream=message.end_of_stream)


def headers_reply(
    pick: Destination, body: bytes | None, status: CommonResponse.ResponseStatus = CommonResponse.CONTINUE
) -> ProcessingResponse:
    """Build the reply to request headers that carries a decision."""
    reply = ProcessingResponse()
    response = reply.request_headers.response
    response.status = status
    messages.set_destination(response, pick, body)
    messages.set_metadata(reply, pick)
    return reply


def early_reply(mode: RequestMode, modes: Modes, pick: Destination) -> ProcessingResponse:
    """Build the reply to the headers of a request whose body is not waited for."""
    if not mode.releases:
        return headers_reply(pick, None)
    reply = headers_reply(pick, None, CommonResponse.CONTINUE_AND_REPLACE)
    if modes.response is not BodyMode.FULL_DUPLEX_STREAMED:  # where Envoy would ignore it
        reply.mode_override.CopyFrom(_OVERRIDES[modes.response])
    return reply


def request_mode(modes: Modes) -> RequestMode:
    """Choose how a stream's requests are answered.

    Raises:
        ViolationError: the mode is not spoken.
    """
    if modes.observing and modes.request is not BodyMode.NONE:
        return _AHEAD  # whoever waits for no reply sends all of it, in whatever pieces
    if modes.request is BodyMode.STREAMED and modes.ahead:
        return _AHEAD
    mode = _REQUEST_MODES.get(modes.request)
    if mode is None:
        raise ViolationError(f"request_body_mode {modes.request.name} is not supported", "UNIMPLEMENTED")
    return mode


def _override(response: BodyMode) -> ProcessingMode:
    """Build an override that shows no request body, and of the response what was shown.

    An override replaces all modes, and of headers we are not told which are shown: it is taken that those of
    responses are where bodies are. Trailers of responses are asked for, because Envoy ends a stream at once
    that has nothing more to show, and the end of the stream is how the end of the request is known.
    """
    shown = ProcessingMode.SKIP if response is BodyMode.NONE else ProcessingMode.SEND
    return ProcessingMode(
        request_header_mode=ProcessingMode.SEND,
        request_body_mode=ProcessingMode.NONE,
        request_trailer_mode=ProcessingMode.SKIP,
        response_header_mode=shown,
        response_body_mode=int(response),  # type: ignore[arg-type]  # open enum
        response_trailer_mode=ProcessingMode.SEND,
    )


_OVERRIDES = {mode: _override(mode) for mode in BodyMode}


_AHEAD = StreamedAhead(held_bytes=HELD_BYTES, single=False)


_BUFFERED = Buffered(whole_in_one=True, releases=True, at_headers=(messages.EMPTY_REQUEST_HEADERS,))


_REQUEST_MODES: Mapping[BodyMode, RequestMode] = {
    BodyMode.NONE: RequestMode(waits=False),
    BodyMode.STREAMED: RequestMode(waits=False, releases=True),
    BodyMode.BUFFERED: _BUFFERED,
    BodyMode.BUFFERED_PARTIAL: structs.replace(_BUFFERED, may_cut=True),
    BodyMode.FULL_DUPLEX_STREAMED: FullDuplex(echoes=True),
}


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
        pick_at: from a request's headers to what its decision waits for.
        bodies: what this body is held out of.

    Attributes:
        phase: how far it has come.
        early: whether the decision did not wait for the body.
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
        pick_at: Callable[[HttpRequest], DecideAt],
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
        #: What came of an early request while its decision was made.
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
        self._upgrade = at is DecideAt.UPGRADE
        # Only what came whole can be left in full duplex: what nobody needs is waited for there.
        wanted = at is DecideAt.BODY or (at is DecideAt.EITHER and self._mode.echoes)
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

    def answer(self, pick: Destination, *, at_once: bool = False) -> list[ProcessingResponse]:
        """Build the replies that carry a decision, in a single one if asked; only in phase DECIDING."""
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
        full_duplex = self._modes.request is BodyMode.FULL_DUPLEX_STREAMED
        return HttpRequest(method, path, headers, body, metadata, whole, full_duplex)

    def _take_body(self) -> bytes:
        self.body = bytes(self._chunks[0]) if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks.clear()
        return self.body

    def _ask(self, body: bytes | None = None, *, whole: bool = True) -> HttpRequest:
        self.phase = RequestPhase.DECIDING
        return self.describe(body, whole=whole)
