"""One ext_proc stream as a state machine: messages in; replies, events and markers out.

Owns how the stream ends and which half of the exchange a message belongs to; the halves own their phases
(tables in `request_side` and `response_side`). Knows no gRPC, no socket, no clock, no prompt, no endpoint.
The shell sends the `ProcessingResponse`s of a list in order, takes the events, and obeys the marker, if there
is one, last. Rules:

* Whatever comes, nothing is raised at the shell. A message that the protocol does not allow gives
  `ExchangeEnded(PROTOCOL_ERROR)` and `Abort`.
* `ExchangeEnded` comes exactly once, at the latest from `closed`:

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
  pick is asked for, the answer to it says nothing; if it ends before, none is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from epp.extproc import messages
from epp.extproc.body_budget import BodyBudget, Share
from epp.extproc.modes import BodyMode, Modes, detect
from epp.extproc.request_side import BodyTooLargeError, NoRoomError, RequestPhase, RequestSide
from epp.extproc.response_side import CHANGEABLE, ResponsePhase, ResponseSide
from epp.extproc.types import (
    Abort,
    Cause,
    Event,
    ExchangeEnded,
    Finish,
    HttpRequest,
    Marker,
    Observe,
    Pick,
    PickAt,
    Refusal,
    ViolationError,
    plain_refusal,
)
from epp.pb.ext_proc_pb2 import ProcessingResponse

if TYPE_CHECKING:
    from collections.abc import Callable

    from epp.pb.ext_proc_pb2 import ProcessingRequest

Output = ProcessingResponse | Event | Marker

#: Response body modes in which leaving saves something; with NONE an open stream costs nothing, and its end
#: is the end of the exchange. STREAMED keeps a piece in Envoy until it is acknowledged, so nothing is lost
#: however late the end is noticed. FULL_DUPLEX_STREAMED keeps nothing: a piece sent to us before Envoy saw
#: the end is gone, so there the end must come with the pick, in one message (docs/transport.md).
_ENDS_EARLY = {BodyMode.STREAMED, BodyMode.FULL_DUPLEX_STREAMED}


#: Largest request body that is read unless configured.
MAX_BODY_BYTES = 32 * 1024 * 1024


class Stream:
    """One exchange.

    Args:
        max_body_bytes: largest request body that is read; longer ones get a 413.
        refuse: from a request without its body and a status, 413 for its length or 503 for want of room, to
            what its client gets, so that the shell can word it as the request's API does.
        pick_at: from a request's headers to what its pick waits for; asked only where a body is to come.
        tell_served: say in a response header who served, for the conformance suite.
        bodies: what all streams may hold together; this one has its own otherwise.

    Attributes:
        bodies: as given.
        modes: the body modes, None before the first message.
    """

    def __init__(
        self,
        max_body_bytes: int = MAX_BODY_BYTES,
        refuse: Callable[[HttpRequest, int], Refusal] = plain_refusal,
        *,
        pick_at: Callable[[HttpRequest], PickAt] = lambda _: PickAt.BODY,
        tell_served: bool = False,
        bodies: Share | None = None,
    ) -> None:
        self._tell_served, self._max_body_bytes = tell_served, max_body_bytes
        self._refusal_of, self._pick_at = refuse, pick_at
        self.bodies = BodyBudget().share() if bodies is None else bodies
        self.modes: Modes | None = None
        self._request: RequestSide | None = None
        self._response: ResponseSide | None = None
        self._ended = False  # ExchangeEnded was said
        self._mute = False  # nothing goes out any more

    @property
    def released(self) -> bool:
        """Whether the body was left with Envoy, which may then end the stream at once."""
        return self._request is not None and self._request.released

    def receive(self, message: ProcessingRequest) -> list[Output]:
        """Take a message; what comes of it, in the order it is due."""
        if self._mute:
            return []
        try:
            request, response = self._request, self._response
            if request is None or response is None:
                request, response = self._sides(message)
        except ViolationError as violation:
            return self._violated(violation)
        return self._audible(self._receive(message, request, response))

    def _receive(
        self, message: ProcessingRequest, request: RequestSide, response: ResponseSide
    ) -> list[Output]:
        try:
            outputs = self._take(message, request, response)
        except BodyTooLargeError:
            return self._refuse(self._refusal_of(request.without_body(), 413))
        except NoRoomError:
            return self._refuse(self._refusal_of(request.without_body(), 503))
        except ViolationError as violation:
            return self._violated(violation)
        if response.phase is ResponsePhase.OVER:
            outputs += self._end(Cause.COMPLETED)
        return outputs

    def picked(self, pick: Pick) -> list[Output]:
        """Answer an `HttpRequest` with a destination."""
        request, response, modes = self._request, self._response, self.modes
        if request is None or response is None or modes is None or not self._deciding(request):
            return []
        response.decision_id, response.add_headers = pick.decision_id, pick.response_headers
        if modes.response in CHANGEABLE:
            response.rewrite = pick.rewrite_response
        response.read = pick.observe_response is Observe.READ
        ends = (
            pick.observe_response is Observe.END_STREAM_AFTER_PICK
            and modes.response in _ENDS_EARLY
            and request.may_end_stream
            # Headers come with the response, and what is not seen cannot be changed.
            and not (pick.response_headers or response.rewrite)
            # A response that has begun before its request was whole is in flight already.
            and response.phase is ResponsePhase.WAITING
            and not modes.observing
        )
        outputs: list[Output] = [*request.answer(pick, at_once=ends)]
        if ends:
            outputs += self._close(Cause.UNOBSERVED, "", Finish())
        return self._audible(outputs)

    def refused(self, refusal: Refusal) -> list[Output]:
        """Answer an `HttpRequest` by answering the client; only the end of the stream matters after it."""
        if self._request is None or not self._deciding(self._request):
            return []
        return self._audible(self._refuse(refusal))

    def no_room(self) -> list[Output]:
        """End the stream: what comes next finds no room, and its sender may take any time."""
        request, response = self._request, self._response
        if request is None or response is None or self._ended or response.phase is not ResponsePhase.WAITING:
            self._mute = True  # there is no client to answer, or it has an answer
            return [Abort("RESOURCE_EXHAUSTED", "there is no room for what comes")]
        return [*self._audible(self._refuse(self._refusal_of(request.without_body(), 503))), Finish()]

    def closed(self, cut: bool) -> list[Event]:
        """End the exchange with its gRPC stream.

        Args:
            cut: it was reset (the client left, or Envoy died) rather than closed.
        """
        self._mute = True
        if self._broke_off():
            return self._end(Cause.CUT_OFF)
        return self._end(Cause.CLIENT_GONE if cut else Cause.STREAM_END)

    def _broke_off(self) -> bool:
        """Whether the response has begun in a mode that would have shown its end."""
        shown = self.modes is not None and self.modes.response in CHANGEABLE
        return shown and self._response is not None and self._response.phase is ResponsePhase.OPEN

    def _take(self, message: ProcessingRequest, request: RequestSide, response: ResponseSide) -> list[Output]:
        part = message.WhichOneof("request")
        if part is None:
            raise ViolationError("a message without a part that is known here", "UNIMPLEMENTED")
        if part != "request_headers" and request.phase is RequestPhase.HEADERS:
            raise ViolationError(f"{part} before request_headers")
        if self._ended and part.startswith("request"):
            # The client has its answer; a pick for what is left of the request would reserve for nothing.
            return []
        metadata = message.metadata_context if message.HasField("metadata_context") else None
        if metadata is not None and part.startswith("request"):
            request.on_metadata(metadata)
        outputs: list[Output] = []
        match part:
            case "request_headers":
                outputs += request.on_headers(message.request_headers)
            case "request_body":
                outputs += request.on_body(message.request_body)
            case "request_trailers":
                outputs += request.on_trailers()
            case "response_headers":
                outputs += response.on_headers(message.response_headers, metadata)
            case "response_body":
                outputs += response.on_body(message.response_body)
            case "response_trailers":
                outputs += response.on_trailers()
        return outputs

    def _sides(self, message: ProcessingRequest) -> tuple[RequestSide, ResponseSide]:
        """Make the two halves; the first message decides how they speak."""
        modes = detect(message)
        response = ResponseSide(modes.response, tell_served=self._tell_served)
        request = RequestSide(modes, self._max_body_bytes, self._pick_at, self.bodies)
        self.modes, self._request, self._response = modes, request, response
        return request, response

    def _deciding(self, request: RequestSide) -> bool:
        return not self._ended and request.phase is RequestPhase.DECIDING

    def _audible(self, outputs: list[Output]) -> list[Output]:
        """Leave out the replies where nobody waits for them."""
        if self.modes is None or not self.modes.observing:
            return outputs
        return [output for output in outputs if not isinstance(output, ProcessingResponse)]

    def _violated(self, violation: ViolationError) -> list[Output]:
        return self._close(Cause.PROTOCOL_ERROR, violation.detail, Abort(violation.status, violation.detail))

    def _refuse(self, refusal: Refusal) -> list[Output]:
        self._mute = True
        return [messages.immediate(refusal), *self._end(Cause.REFUSED, refusal.details)]

    def _end(self, cause: Cause, detail: str = "") -> list[Event]:
        if self._ended:
            return []
        self._ended = True
        if self._request is not None and self._request.phase is not RequestPhase.ANSWERED:
            self._request.release()
        return [ExchangeEnded(cause, detail)]

    def _close(self, cause: Cause, detail: str, marker: Marker) -> list[Output]:
        self._mute = True
        return [*self._end(cause, detail), marker]
