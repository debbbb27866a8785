"""How a request is answered in each request body mode: what goes out at once, and what carries the answer.

One stateless object a mode, in `REQUEST_MODES`; adding a mode adds an object. Knows nothing of phases or of
the response. Which reply Envoy obeys in which mode (comments of `external_processor.proto`):

* BUFFERED: Envoy sends the body, in one message, only after the headers were answered, and holds the headers
  until the body is answered too; header mutations and the route cache are honoured on the body's reply. So
  headers are answered empty at once, and the body's reply carries everything: two messages each way.
* FULL_DUPLEX_STREAMED: body and trailers come as they arrive; nothing is answered before the request is
  whole, then headers (with everything), the body as `streamed_response` pieces, and trailers, in this order.

Each mode can also answer in one message, `at_once`, for a stream that ends with its answer: before Envoy has
read that message to its end it passes nothing on, so no response can come before it. In full duplex that
takes the status CONTINUE_AND_REPLACE, with which the reply to the headers brings the body along; trailers
follow as they came.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from epp.extproc import mutate
from epp.extproc.modes import BodyMode
from epp.pb.ext_proc_pb2 import CommonResponse, ProcessingResponse

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epp.extproc.mutate import Change


@dataclass(frozen=True, slots=True)
class Received:
    """What has come of a request by the time it is answered.

    Attributes:
        headers_only: its headers ended the stream.
        body: the joined body.
        body_seen: at least one body message came.
        trailers: trailers ended it.
    """

    headers_only: bool
    body: bytes
    body_seen: bool
    trailers: bool


class RequestMode(Protocol):
    """What differs between request body modes."""

    #: Whether one body message is the whole body, whatever it says of the end of the stream.
    whole_in_one: bool
    #: Replies to headers that a body or trailers follow, due before these come.
    at_headers: tuple[ProcessingResponse, ...]

    def answer(self, received: Received, change: Change) -> list[ProcessingResponse]:
        """The replies that carry a change, in order, once the request is whole."""

    def at_once(self, received: Received, change: Change) -> list[ProcessingResponse]:
        """The same in a single reply, after which the stream must end."""


class Buffered:
    """BUFFERED: lockstep, the answer rides on the last part's reply."""

    whole_in_one = True
    at_headers: tuple[ProcessingResponse, ...] = (mutate.EMPTY_REQUEST_HEADERS,)

    def answer(self, received: Received, change: Change) -> list[ProcessingResponse]:
        """One reply: to the headers if there was nothing else, to the body, or to the bare trailers.

        A trailers reply can carry no change to headers; metadata alone selects then.
        """
        if received.headers_only:
            return [headers_reply(change)]
        if not received.body_seen:
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

    def at_once(self, received: Received, change: Change) -> list[ProcessingResponse]:
        """The answer is one reply already."""
        return self.answer(received, change)


class FullDuplex:
    """FULL_DUPLEX_STREAMED: headers, body pieces, trailers, all after the request is whole."""

    whole_in_one = False
    at_headers: tuple[ProcessingResponse, ...] = ()

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
        if received.headers_only or not received.body_seen:
            return [headers_reply(change)]
        reply = ProcessingResponse(dynamic_metadata=change.metadata)
        response = reply.request_headers.response
        if change.common is not None:
            response.CopyFrom(change.common)
        response.status = CommonResponse.CONTINUE_AND_REPLACE
        response.body_mutation.body = received.body if change.body is None else change.body
        return [reply]


def headers_reply(change: Change) -> ProcessingResponse:
    """The reply to request headers that carries a change."""
    if change.common is None:
        return mutate.EMPTY_REQUEST_HEADERS
    reply = ProcessingResponse(dynamic_metadata=change.metadata)
    reply.request_headers.response.CopyFrom(change.common)
    return reply


REQUEST_MODES: Mapping[BodyMode, RequestMode] = {
    BodyMode.BUFFERED: Buffered(),
    BodyMode.FULL_DUPLEX_STREAMED: FullDuplex(),
}
