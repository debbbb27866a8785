"""How a request is answered in each request body mode: what goes out at once, and what carries the answer.

One stateless object a mode, from `request_mode`; adding a mode adds an object. Knows nothing of phases or of
the response. Which reply Envoy obeys in which mode (comments of `external_processor.proto`; read in and
tried with Envoy 1.40):

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

from typing import TYPE_CHECKING

from msgspec import Struct

from epp.extproc import mutate
from epp.extproc.modes import BodyMode
from epp.pb.ext_proc_pb2 import CommonResponse, ProcessingResponse
from epp.pb.processing_mode_pb2 import ProcessingMode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epp.extproc.modes import Modes
    from epp.extproc.mutate import Change
    from epp.pb.ext_proc_pb2 import HttpBody

#: What may lie unanswered of a body that comes ahead: the lowest buffer limit that gateways are known to set.
#: Envoy stops reading above its own, and would then wait for us as we for it.
HELD_BYTES = 32 * 1024


class Received(Struct, frozen=True):
    """What has come of a request by the time it is answered.

    Attributes:
        headers_only: its headers ended the stream.
        body: the joined body.
        body_messages: messages that brought it.
        trailers: trailers ended it.
    """

    headers_only: bool
    body: bytes = b""
    body_messages: int = 0
    trailers: bool = False


class RequestMode:
    """What differs between request body modes."""

    #: Whether a pick can wait for the body.
    waits: bool = True
    #: Whether one body message is all that comes, whatever it says of the end of the stream.
    whole_in_one: bool = False
    #: Whether that message may be less than the body.
    may_cut: bool = False
    #: Most bytes that may lie unanswered, None for any.
    held_bytes: int | None = None
    #: Whether the reply to the headers can keep the body from us.
    releases: bool = False
    #: Whether only what we send back goes on, so that a body passed piece by piece keeps us to the end.
    echoes: bool = False
    #: Whether the whole answer is, or can be, one reply.
    single: bool = True
    #: Replies to headers that a body or trailers follow, due before these come.
    at_headers: tuple[ProcessingResponse, ...] = ()

    def answer(self, received: Received, change: Change) -> list[ProcessingResponse]:
        """The replies that carry a change, in order, once all that is waited for is here."""
        raise NotImplementedError

    def at_once(self, received: Received, change: Change) -> list[ProcessingResponse]:
        """The same in a single reply, after which the stream must end; only where the mode is `single`."""
        return self.answer(received, change)

    def forward(self, _message: HttpBody) -> list[ProcessingResponse]:
        """The replies to a body message that was not waited for."""
        return [mutate.EMPTY_REQUEST_BODY]


class NoBody(RequestMode):
    """NONE: the reply to the headers is all."""

    waits = False

    def answer(self, _received: Received, change: Change) -> list[ProcessingResponse]:
        """One reply."""
        return [headers_reply(change)]


class Streamed(NoBody):
    """STREAMED: as NONE, and the body is released."""

    releases = True


class StreamedAhead(RequestMode):
    """STREAMED, bodies ahead: the reply to the headers carries the answer, one reply a piece follows."""

    held_bytes = HELD_BYTES
    single = False

    def answer(self, received: Received, change: Change) -> list[ProcessingResponse]:
        """Headers, the pieces, trailers; another body goes on in the place of the last piece."""
        replies = [headers_reply(change)]
        if change.body is None:
            replies += [mutate.EMPTY_REQUEST_BODY] * received.body_messages
        elif received.body_messages:
            replies += [mutate.CLEARED_REQUEST_BODY] * (received.body_messages - 1)
            last = ProcessingResponse()
            last.request_body.response.body_mutation.body = change.body
            replies.append(last)
        if received.trailers:
            replies.append(mutate.EMPTY_REQUEST_TRAILERS)
        return replies


class Buffered(RequestMode):
    """BUFFERED: lockstep, the answer rides on the last part's reply."""

    whole_in_one = True
    releases = True
    at_headers = (mutate.EMPTY_REQUEST_HEADERS,)

    def answer(self, received: Received, change: Change) -> list[ProcessingResponse]:
        """One reply: to the headers if there was nothing else, to the body, or to the bare trailers.

        A trailers reply can carry no change to headers; metadata alone selects then.
        """
        if received.headers_only:
            return [headers_reply(change)]
        if not received.body_messages:
            if change.metadata is None:
                return [mutate.EMPTY_REQUEST_TRAILERS]
            reply = ProcessingResponse(dynamic_metadata=change.metadata)
            reply.request_trailers.SetInParent()
            return [reply]
        if change.common is None:
            return [mutate.EMPTY_REQUEST_BODY]
        reply = ProcessingResponse(dynamic_metadata=change.metadata)
        reply.request_body.response.CopyFrom(change.common)
        if change.body is not None:
            reply.request_body.response.body_mutation.body = change.body
        return [reply]


class BufferedPartial(Buffered):
    """BUFFERED_PARTIAL: as BUFFERED, of a body that may have been cut."""

    may_cut = True


class FullDuplex(RequestMode):
    """FULL_DUPLEX_STREAMED: headers, body pieces, trailers, all after the request is whole."""

    echoes = True

    def answer(self, received: Received, change: Change) -> list[ProcessingResponse]:
        """Headers, then the body (the replacement if there is one), then trailers if there were any."""
        replies = [headers_reply(change)]
        if received.headers_only:
            return replies
        body = received.body if change.body is None else change.body
        # Before trailers an empty body needs no piece: there is no end of stream to carry.
        if body or not received.trailers:
            replies += mutate.streamed_request_body(body, ends_stream=not received.trailers)
        if received.trailers:
            replies.append(mutate.EMPTY_REQUEST_TRAILERS)
        return replies

    def at_once(self, received: Received, change: Change) -> list[ProcessingResponse]:
        """The headers' reply, which replaces the body by itself or by what it is changed to."""
        if received.headers_only or not received.body_messages:
            return [headers_reply(change)]
        reply = _replacing(change)
        reply.request_headers.response.body_mutation.body = (
            received.body if change.body is None else change.body
        )
        return [reply]

    def forward(self, message: HttpBody) -> list[ProcessingResponse]:
        """All bytes back at once."""
        return mutate.streamed_request_body(message.body, ends_stream=message.end_of_stream)


def headers_reply(change: Change) -> ProcessingResponse:
    """The reply to request headers that carries a change."""
    if change.common is None:
        return mutate.EMPTY_REQUEST_HEADERS
    reply = ProcessingResponse(dynamic_metadata=change.metadata)
    reply.request_headers.response.CopyFrom(change.common)
    return reply


def early_reply(mode: RequestMode, modes: Modes, change: Change) -> ProcessingResponse:
    """The reply to the headers of a request whose body is not waited for."""
    if not mode.releases:
        return headers_reply(change)
    reply = _replacing(change)
    if modes.response is not BodyMode.FULL_DUPLEX_STREAMED:  # where Envoy would ignore it
        reply.mode_override.CopyFrom(_OVERRIDES[modes.response])
    return reply


def request_mode(modes: Modes) -> RequestMode | None:
    """How a stream's requests are answered, None for a mode that is not spoken."""
    if modes.observing and modes.request is not BodyMode.NONE:
        return _AHEAD  # whoever waits for no reply sends all of it, in whatever pieces
    if modes.request is BodyMode.STREAMED and modes.ahead:
        return _AHEAD
    return _REQUEST_MODES.get(modes.request)


def _replacing(change: Change) -> ProcessingResponse:
    reply = ProcessingResponse(dynamic_metadata=change.metadata)
    response = reply.request_headers.response
    if change.common is not None:
        response.CopyFrom(change.common)
    response.status = CommonResponse.CONTINUE_AND_REPLACE
    return reply


def _override(response: BodyMode) -> ProcessingMode:
    """No request body; of the response what was shown.

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
_AHEAD = StreamedAhead()
_REQUEST_MODES: Mapping[BodyMode, RequestMode] = {
    BodyMode.NONE: NoBody(),
    BodyMode.STREAMED: Streamed(),
    BodyMode.BUFFERED: Buffered(),
    BodyMode.BUFFERED_PARTIAL: BufferedPartial(),
    BodyMode.FULL_DUPLEX_STREAMED: FullDuplex(),
}
