"""Which body modes a stream speaks, and how a request is answered in each.

Envoy >= 1.34 declares both modes in `protocol_config` of the first message; what it declares holds. Older
proxies declare nothing, and the modes cannot be read off in time: in BUFFERED mode Envoy holds the body back
until the headers are answered, in FULL_DUPLEX_STREAMED mode the answer to the headers must wait for the body.
So FULL_DUPLEX_STREAMED both ways is assumed, which is what the endpoint picker protocol asks of gateways.

One stateless object a mode, from `request_mode`. Which reply Envoy obeys in which mode (comments of
`external_processor.proto`; read in and tried with Envoy 1.40):

* BUFFERED: Envoy sends the body, in one message, only after the headers were answered, and holds the headers
  until the body is answered too; header mutations and the route cache are honoured on the body's reply. So
  headers are answered empty at once, and the body's reply carries everything: two messages each way.
* BUFFERED_PARTIAL: the same, but a body longer than Envoy's buffer is cut off there and the rest goes on
  without us. Nothing tells a cut body from one that trailers follow.
* NONE: there is no body; the reply to the headers carries everything.
* STREAMED: the body comes in pieces, each to be answered, after the headers were answered; and with that
  answer the request is on its way. So a pick cannot wait for the body, and none of it is of use.
* STREAMED, bodies ahead: pieces come without waiting for the reply to the headers, and Envoy keeps each until
  it is answered, up to a limit that it does not tell, where it stops reading. A pick may wait for the end or
  for `HELD_BYTES`; then headers, and one reply a piece.
* FULL_DUPLEX_STREAMED: body and trailers come as they arrive; nothing is answered before the request is
  whole, then headers (with everything), the body as `streamed_response` pieces, and trailers, in this order.

A pick that does not wait for the body is the reply to the headers. Where that also `releases` the request,
it says CONTINUE_AND_REPLACE without a body, after which Envoy leaves the body alone and sends none of it,
whatever it is configured to allow; and it says the same as a `mode_override`, which where allowed keeps the
stream open to the end of the request. What comes of the body all the same is passed by `forward`.

Each mode can also answer in one message, `at_once`, for a stream that ends with its answer: before Envoy has
read that message to its end it passes nothing on, so no response can come before it. In full duplex that
takes the status CONTINUE_AND_REPLACE, with which the reply to the headers brings the body along; trailers
follow as they came.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from msgspec import Struct, structs

from epp.extproc import messages
from epp.extproc.types import ViolationError
from epp.pb.ext_proc_pb2 import CommonResponse, ProcessingResponse
from epp.pb.processing_mode_pb2 import ProcessingMode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epp.extproc.request_side import RequestSide
    from epp.extproc.types import Pick
    from epp.pb.ext_proc_pb2 import HttpBody, ProcessingRequest

#: What may lie unanswered of a body that comes ahead: the lowest buffer limit that gateways are known to set.
#: Envoy stops reading above its own, and would then wait for us as we for it.
HELD_BYTES = 32 * 1024


class BodyMode(IntEnum):
    """`ProcessingMode.BodySendMode`, numbers as on the wire."""

    NONE = 0
    STREAMED = 1
    BUFFERED = 2
    BUFFERED_PARTIAL = 3
    FULL_DUPLEX_STREAMED = 4
    GRPC = 5


class Modes(Struct, frozen=True):
    """The body modes of one stream.

    Attributes:
        request: how request bodies come.
        response: how response bodies come, if they do.
        ahead: whether streamed request bodies come without waiting for the answer to the headers
            (``send_body_without_waiting_for_header_response``).
        observing: whether nobody waits for answers or obeys them (``observability_mode``).
    """

    request: BodyMode
    response: BodyMode
    ahead: bool = False
    observing: bool = False


def detect(first: ProcessingRequest) -> Modes:
    """Read the modes of a stream from its first message.

    Raises:
        ViolationError: a declared mode is newer than this code.
    """
    observing = first.observability_mode
    if not first.HasField("protocol_config"):
        return Modes(BodyMode.FULL_DUPLEX_STREAMED, BodyMode.FULL_DUPLEX_STREAMED, observing=observing)
    declared = first.protocol_config
    try:
        return Modes(
            BodyMode(declared.request_body_mode),
            BodyMode(declared.response_body_mode),
            # Whoever waits for no answer does not wait for that to the headers either.
            ahead=declared.send_body_without_waiting_for_header_response or observing,
            observing=observing,
        )
    except ValueError as error:
        raise ViolationError(f"unknown body mode: {error}", "UNIMPLEMENTED") from None


class RequestMode(Struct, frozen=True):
    """What differs between request body modes; by itself one whose reply to the headers is all.

    Attributes:
        waits: whether a pick can wait for the body.
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

    def answer(self, _request: RequestSide, pick: Pick, _body: bytes | None) -> list[ProcessingResponse]:
        """Build the replies that carry a pick, in order, without that to trailers.

        Args:
            _request: what has come of the request.
            pick: where it goes.
            _body: what replaces its body, None to leave it.
        """
        return [headers_reply(pick, None)]

    def at_once(self, request: RequestSide, pick: Pick, body: bytes | None) -> list[ProcessingResponse]:
        """Build a single reply, after which the stream must end; only where the mode is `single`."""
        return self.answer(request, pick, body)

    def forward(self, _message: HttpBody) -> list[ProcessingResponse]:
        """Build the replies to a body message that was not waited for."""
        return [messages.EMPTY_REQUEST_BODY]


class StreamedAhead(RequestMode, frozen=True):
    """STREAMED, bodies ahead: the reply to the headers carries the answer, one reply a piece follows."""

    def answer(self, request: RequestSide, pick: Pick, body: bytes | None) -> list[ProcessingResponse]:
        """Answer headers and pieces; another body goes on in the place of the last piece."""
        replies, pieces = [headers_reply(pick, body)], request.body_messages
        if body is None or not pieces:
            return replies + [messages.EMPTY_REQUEST_BODY] * pieces
        last = ProcessingResponse()
        last.request_body.response.body_mutation.body = body
        return [*replies, *[messages.CLEARED_REQUEST_BODY] * (pieces - 1), last]


class Buffered(RequestMode, frozen=True):
    """BUFFERED: lockstep, the answer rides on the last part's reply."""

    def answer(self, request: RequestSide, pick: Pick, body: bytes | None) -> list[ProcessingResponse]:
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
        messages.set_pick(response, pick, body)
        if body is not None:
            response.body_mutation.body = body
        return [reply]


class FullDuplex(RequestMode, frozen=True):
    """FULL_DUPLEX_STREAMED: headers, body pieces, trailers, all after the request is whole."""

    def answer(self, request: RequestSide, pick: Pick, body: bytes | None) -> list[ProcessingResponse]:
        """Answer the headers, then send the body or its replacement."""
        replies = [headers_reply(pick, body)]
        if request.headers_only:
            return replies
        data = request.body if body is None else body
        # Before trailers an empty body needs no piece: there is no end of stream to carry.
        if data or not request.trailers:
            replies += messages.streamed_body("request_body", data, ends_stream=not request.trailers)
        return replies

    def at_once(self, request: RequestSide, pick: Pick, body: bytes | None) -> list[ProcessingResponse]:
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
    pick: Pick, body: bytes | None, status: CommonResponse.ResponseStatus = CommonResponse.CONTINUE
) -> ProcessingResponse:
    """Build the reply to request headers that carries a pick."""
    reply = ProcessingResponse()
    response = reply.request_headers.response
    response.status = status
    messages.set_pick(response, pick, body)
    messages.set_metadata(reply, pick)
    return reply


def early_reply(mode: RequestMode, modes: Modes, pick: Pick) -> ProcessingResponse:
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
