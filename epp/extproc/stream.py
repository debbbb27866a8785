"""One ext_proc stream as a state machine: messages in; replies, events and markers out.

Owns how the stream ends, which half of the exchange a message belongs to, and how far the response has come;
the request's half is `request_side`. Knows no gRPC, no socket, no clock, no prompt, no endpoint.
The shell sends the `ProcessingResponse`s of a list in order, takes the events, and obeys the marker, if there
is one, last. Rules:

* Whatever comes, nothing is raised at the shell. A message that the protocol does not allow gives
  `Cause.PROTOCOL_ERROR` and `Abort`.
* A `Cause` comes exactly once, at the latest from `closed`:

  | what happened                                    | cause          | the stream then              |
  |--------------------------------------------------|----------------|------------------------------|
  | response end of stream or trailers               | COMPLETED      | answers response trailers    |
  | `refused`, or the body over its limit            | REFUSED        | is mute                      |
  | answered, to be left, response shown in pieces   | UNOBSERVED     | `Finish`, mute               |
  | a message out of order, a mode not spoken        | PROTOCOL_ERROR | `Abort`, mute                |
  | `no_room` before there is a response             | REFUSED        | `Finish`, mute               |
  | `closed` within a body that is shown whole       | CUT_OFF        | is mute                      |
  | `closed(cut=False)` before any of these          | STREAM_END     | is mute                      |
  | `closed(cut=True)` before any of these           | CLIENT_GONE    | is mute                      |

* In observability mode Envoy waits for no reply and obeys none: everything goes on as always, but no reply
  comes out, and a stream is never left.
* The halves run side by side: Envoy may answer a request itself before we have. If the exchange ends while a
  decision is asked for, the answer to it says nothing; if it ends before, none is asked for.
* The response goes through these phases:

  | phase   | headers               | body                      | trailers            |
  |---------|-----------------------|---------------------------|---------------------|
  | WAITING | ResponseStarted, OPEN | ResponseData, reply, OPEN | reply, OVER         |
  | OPEN    | violation             | ResponseData, reply, OPEN | reply, OVER         |
  | OVER    | violation             | ignored                   | empty reply, once   |

  End of stream in headers or body leads to OVER: COMPLETED. Body before headers is allowed: a proxy may be
  configured not to send response headers. A response that nobody reads gives no ResponseData. Trailers may
  follow a body that told its end (lockstep modes tell it when the buffer is whole); body after the end is a
  piece delivered twice, as in `request_side`.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from epp.extproc import messages
from epp.extproc.body_budget import BodyBudget, Share
from epp.extproc.modes import BodyMode, Modes, detect
from epp.extproc.request_side import HeldTooMuchError, RequestPhase, RequestSide
from epp.extproc.types import (
    Abort,
    Cause,
    DecideAt,
    Destination,
    Event,
    Finish,
    HttpRequest,
    LocalReply,
    Marker,
    Observe,
    ResponseData,
    ResponseStarted,
    ViolationError,
    plain_refusal,
)
from epp.pb.ext_proc_pb2 import ProcessingResponse

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from epp.extproc.types import BodyRewriter
    from epp.pb.core_pb2 import Metadata
    from epp.pb.ext_proc_pb2 import HttpBody, HttpHeaders, ProcessingRequest

Output = ProcessingResponse | Event | Marker

#: Response body modes in which leaving saves something; with NONE an open stream costs nothing, and its end
#: is the end of the exchange. STREAMED keeps a piece in Envoy until it is acknowledged, so nothing is lost
#: however late the end is noticed. FULL_DUPLEX_STREAMED keeps nothing: a piece sent to us before Envoy saw
#: the end is gone, so there the end must come with the decision, in one message (docs/transport.md).
_ENDS_EARLY = {BodyMode.STREAMED, BodyMode.FULL_DUPLEX_STREAMED}


#: Largest request body that is read unless configured.
MAX_BODY_BYTES = 32 * 1024 * 1024
#: Modes that show a body whole, so that it can be changed.
CHANGEABLE = frozenset({BodyMode.STREAMED, BodyMode.BUFFERED, BodyMode.FULL_DUPLEX_STREAMED})


class ResponsePhase(Enum):
    """How far the response has come."""

    WAITING = "waiting"
    OPEN = "open"
    OVER = "over"


class ResponseSide:
    """The response half of an exchange; holds none of it.

    Args:
        mode: how its body messages come; a proxy that shows none (NONE) sends none to answer.

    Raises:
        ViolationError: the response body mode is not spoken.
    """

    def __init__(self, mode: BodyMode) -> None:
        if mode is BodyMode.GRPC:
            raise ViolationError(f"response_body_mode {mode.name} is not supported", "UNIMPLEMENTED")
        self._echoes = mode is BodyMode.FULL_DUPLEX_STREAMED
        #: Whether `ResponseData` is told; headers and the end always are.
        self.read = True
        #: From the response's headers to what changes its body; see `Destination.rewrite_response`.
        self.rewrite: Callable[[Mapping[str, str]], BodyRewriter | None] | None = None
        #: Response headers to set; see `Destination.response_headers`.
        self.add_headers: Mapping[str, str] = {}
        #: See `Destination.served_headers`.
        self.served_headers: Callable[[Mapping[str, Mapping[str, object]]], Mapping[str, str]] | None = None
        #: Of the decision; the proxy may have set its header on the response already.
        self.decision_id = ""
        self._rewriter: BodyRewriter | None = None
        self.phase = ResponsePhase.WAITING
        self._trailers_seen = False

    def on_headers(
        self, message: HttpHeaders, metadata: Metadata | None, address: str = ""
    ) -> list[ProcessingResponse | ResponseStarted]:
        """Take the response headers, with the metadata and the upstream's address that came along."""
        if self.phase is not ResponsePhase.WAITING:
            raise ViolationError(f"response_headers in phase {self.phase.value}")
        self.phase = ResponsePhase.OVER if message.end_of_stream else ResponsePhase.OPEN
        headers = messages.header_values(message.headers)
        status = headers.get(":status", "")
        told = {} if metadata is None else messages.metadata_values(metadata, messages.LB_NAMESPACE)
        started = ResponseStarted(
            status=int(status) if status.isascii() and status.isdecimal() and len(status) == 3 else 0,
            headers=headers,
            served=messages.served_endpoint(told) or address,
        )
        remove = self._forged(headers)
        if self.rewrite is not None and not message.end_of_stream:
            self._rewriter = self.rewrite(headers)
        if self._rewriter is not None:
            remove.append("content-length")  # a body that changes has another length than its headers say
        add = self.add_headers
        if self.served_headers is not None:
            add = {**add, **self.served_headers(told)}
        if add or remove:
            if started.served and messages.ENDPOINT_HEADER in add:
                add = {**add, messages.ENDPOINT_HEADER: started.served}
            return [messages.response_headers(add, remove), started]
        return [messages.EMPTY_RESPONSE_HEADERS, started]

    def _forged(self, headers: Mapping[str, str]) -> list[str]:
        """List the reserved headers that neither the picker nor the proxy has set."""
        return [
            name
            for name, value in headers.items()
            if name.startswith(messages.RESERVED_PREFIXES)
            and name not in self.add_headers
            and not (name == messages.DECISION_HEADER and value == self.decision_id)
        ]

    def on_body(self, message: HttpBody) -> list[ProcessingResponse | ResponseData]:
        """Take a piece of the response body."""
        if self.phase is ResponsePhase.OVER:
            return []
        self.phase = ResponsePhase.OVER if message.end_of_stream else ResponsePhase.OPEN
        changed = None if self._rewriter is None else self._rewriter.feed(message.body)
        outputs: list[ProcessingResponse | ResponseData] = [*self._body_replies(message, changed)]
        if self.read:
            outputs.append(ResponseData(message.body))  # the bytes go on before they are read
        return outputs

    def _body_replies(self, message: HttpBody, changed: bytes | None) -> list[ProcessingResponse]:
        if self._echoes:  # in full duplex only what the reply carries reaches the client
            data = message.body if changed is None else changed
            return messages.streamed_body("response_body", data, ends_stream=message.end_of_stream)
        if changed is None:
            return [messages.EMPTY_RESPONSE_BODY]
        reply = ProcessingResponse()
        mutation = reply.response_body.response.body_mutation
        if changed:
            mutation.body = changed
        else:
            mutation.clear_body = True
        return [reply]

    def on_trailers(self) -> list[ProcessingResponse]:
        """Take the response trailers."""
        if self._trailers_seen:
            raise ViolationError("response_trailers a second time")
        self._trailers_seen = True
        self.phase = ResponsePhase.OVER
        return [messages.EMPTY_RESPONSE_TRAILERS]


class Stream:
    """One exchange.

    Args:
        max_body_bytes: largest request body that is read; longer ones get a 413.
        refuse: from a request without its body and a status, 413 for its length or 503 for want of room, to
            what its client gets, so that the shell can word it as the request's API does.
        pick_at: from a request's headers to what its decision waits for; asked only where a body is to come.
        bodies: what all streams may hold together; this one has its own otherwise.

    Attributes:
        bodies: as given.
        modes: the body modes, None before the first message.
    """

    def __init__(
        self,
        max_body_bytes: int = MAX_BODY_BYTES,
        refuse: Callable[[HttpRequest, int], LocalReply] = plain_refusal,
        *,
        pick_at: Callable[[HttpRequest], DecideAt] = lambda _: DecideAt.BODY,
        bodies: Share | None = None,
    ) -> None:
        self._max_body_bytes = max_body_bytes
        self._refusal_of, self._pick_at = refuse, pick_at
        self.bodies = BodyBudget().share() if bodies is None else bodies
        self.modes: Modes | None = None
        self._sides: tuple[RequestSide, ResponseSide] | None = None
        self._ended = False  # a `Cause` was said
        self._mute = False  # nothing goes out any more

    @property
    def released(self) -> bool:
        """Whether the body was left with Envoy, which may then end the stream at once."""
        return self._sides is not None and self._sides[0].released

    def receive(self, message: ProcessingRequest) -> list[Output]:
        """Take a message; what comes of it, in the order it is due."""
        if self._mute:
            return []
        try:
            request, response = self._sides or self._begin(message)
            outputs = self._take(message, request, response)
        except HeldTooMuchError as error:
            outputs = self._refuse(self._refusal_of(request.describe(), error.status))
        except ViolationError as violation:
            self._mute = True
            return [*self._end(Cause.PROTOCOL_ERROR), Abort(violation.status, violation.detail)]
        else:
            if response.phase is ResponsePhase.OVER:
                outputs += self._end(Cause.COMPLETED)
        return self._audible(outputs)

    def decided(self, pick: Destination) -> list[Output]:
        """Answer an `HttpRequest` with a destination."""
        if self._sides is None or self.modes is None or not self._deciding(self._sides[0]):
            return []
        (request, response), modes = self._sides, self.modes
        response.decision_id, response.add_headers = pick.decision_id, pick.response_headers
        response.served_headers = pick.served_headers
        if modes.response in CHANGEABLE:
            response.rewrite = pick.rewrite_response
        response.read = pick.observe_response is Observe.READ
        ends = (
            pick.observe_response is Observe.END_STREAM_AFTER_PICK
            and modes.response in _ENDS_EARLY
            and request.may_end_stream
            # Headers come with the response, and what is not seen cannot be changed.
            and not (pick.response_headers or pick.served_headers or response.rewrite)
            # A response that has begun before its request was whole is in flight already.
            and response.phase is ResponsePhase.WAITING
            and not modes.observing
        )
        outputs: list[Output] = [*request.answer(pick, at_once=ends)]
        if ends:
            self._mute = True
            outputs += [*self._end(Cause.UNOBSERVED), Finish()]
        return self._audible(outputs)

    def refused(self, refusal: LocalReply) -> list[Output]:
        """Answer an `HttpRequest` by answering the client; only the end of the stream matters after it."""
        if self._sides is None or not self._deciding(self._sides[0]):
            return []
        return self._audible(self._refuse(refusal))

    def no_room(self) -> list[Output]:
        """End the stream: what comes next finds no room, and its sender may take any time."""
        if self._sides is None or self._ended or self._sides[1].phase is not ResponsePhase.WAITING:
            self._mute = True  # there is no client to answer, or it has an answer
            return [Abort("RESOURCE_EXHAUSTED", "there is no room for what comes")]
        refusal = self._refusal_of(self._sides[0].describe(), 503)
        return [*self._audible(self._refuse(refusal)), Finish()]

    def closed(self, cut: bool) -> list[Cause]:
        """End the exchange with its gRPC stream.

        Args:
            cut: it was reset (the client left, or Envoy died) rather than closed.
        """
        self._mute = True
        shown = self.modes is not None and self.modes.response in CHANGEABLE  # to the response's end
        if shown and self._sides is not None and self._sides[1].phase is ResponsePhase.OPEN:
            return self._end(Cause.CUT_OFF)
        return self._end(Cause.CLIENT_GONE if cut else Cause.STREAM_END)

    def _take(self, message: ProcessingRequest, request: RequestSide, response: ResponseSide) -> list[Output]:
        part = message.WhichOneof("request")
        if part is None:
            raise ViolationError("a message without a part that is known here", "UNIMPLEMENTED")
        if part != "request_headers" and request.phase is RequestPhase.HEADERS:
            raise ViolationError(f"{part} before request_headers")
        metadata = message.metadata_context if message.HasField("metadata_context") else None
        if part.startswith("request"):
            if self._ended:
                # The client has its answer; a decision for what is left of the request would reserve for
                # nothing.
                return []
            if metadata is not None:
                request.on_metadata(metadata)
        match part:
            case "request_headers":
                return [*request.on_headers(message.request_headers)]
            case "request_body":
                return [*request.on_body(message.request_body)]
            case "request_trailers":
                return [*request.on_trailers()]
            case "response_headers":
                address = messages.upstream_address(message)
                return [*response.on_headers(message.response_headers, metadata, address)]
            case "response_body":
                return [*response.on_body(message.response_body)]
            case _:
                return [*response.on_trailers()]

    def _begin(self, message: ProcessingRequest) -> tuple[RequestSide, ResponseSide]:
        """Make the two halves; the first message decides how they speak."""
        modes = detect(message)
        response = ResponseSide(modes.response)
        request = RequestSide(modes, self._max_body_bytes, self._pick_at, self.bodies)
        self.modes, self._sides = modes, (request, response)
        return self._sides

    def _deciding(self, request: RequestSide) -> bool:
        return not self._ended and request.phase is RequestPhase.DECIDING

    def _audible(self, outputs: list[Output]) -> list[Output]:
        """Leave out the replies where nobody waits for them."""
        if self.modes is None or not self.modes.observing:
            return outputs
        return [output for output in outputs if not isinstance(output, ProcessingResponse)]

    def _refuse(self, refusal: LocalReply) -> list[Output]:
        self._mute = True
        return [messages.immediate(refusal), *self._end(Cause.REFUSED)]

    def _end(self, cause: Cause) -> list[Cause]:
        if self._ended:
            return []
        self._ended = True
        if self._sides is not None and self._sides[0].phase is not RequestPhase.ANSWERED:
            self._sides[0].release()
        return [cause]
