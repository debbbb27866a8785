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

from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec.structs import replace

from epp.extproc import mutate
from epp.extproc.body_budget import BodyBudget, Share
from epp.extproc.modes import Assumption, BodyMode, Modes, UnknownModeError, detect
from epp.extproc.mutate import Change
from epp.extproc.request_modes import request_mode
from epp.extproc.request_side import BodyTooLargeError, NoRoomError, RequestPhase, RequestSide
from epp.extproc.response_modes import CHANGEABLE, RESPONSE_MODES
from epp.extproc.response_side import ResponsePhase, ResponseSide
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
)
from epp.extproc.violation import ViolationError
from epp.pb.ext_proc_pb2 import ProcessingResponse

if TYPE_CHECKING:
    from collections.abc import Callable

    from epp.pb.ext_proc_pb2 import ProcessingRequest

Output = ProcessingResponse | Event | Marker

#: Response body modes in which leaving saves something; with NONE an open stream costs nothing, and its end
#: is the end of the exchange. STREAMED keeps a piece in Envoy until it is acknowledged, so nothing is lost
#: however late the end is noticed. FULL_DUPLEX_STREAMED keeps nothing: a piece sent to us before Envoy saw
#: the end is gone, so there the end must come with the pick, in one message (docs/transport.md).
_LEAVES_EARLY = {BodyMode.STREAMED, BodyMode.FULL_DUPLEX_STREAMED}


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """What one stream may hold.

    Attributes:
        max_body_bytes: largest request body that is read; longer ones get a 413.
    """

    max_body_bytes: int = 32 * 1024 * 1024


def plain_too_large(_request: HttpRequest, limit_bytes: int) -> Refusal:
    """A 413 in the error format that most inference APIs share."""
    message = f"request body is larger than {limit_bytes} bytes"
    body = f'{{"error":{{"message":"{message}","type":"invalid_request_error","param":null,"code":413}}}}'
    return Refusal(413, body.encode(), details="epp_body_too_large")


class Stream:
    """One exchange.

    Args:
        limits: what it may hold.
        assume: body modes of a proxy that does not declare its own.
        too_large: (the request without its body, the limit in bytes) -> the 413, so that the shell can word
            it as the request's API does.
        pick_at: from a request's headers to what its pick waits for; asked only where a body is to come.
        tell_served: say in a response header who served, for the conformance suite.
        bodies: what all streams may hold together; this one has its own otherwise.

    Attributes:
        bodies: as given.
    """

    def __init__(
        self,
        limits: StreamLimits | None = None,
        assume: Assumption | None = None,
        too_large: Callable[[HttpRequest, int], Refusal] = plain_too_large,
        *,
        pick_at: Callable[[HttpRequest], PickAt] = lambda _: PickAt.BODY,
        tell_served: bool = False,
        bodies: Share | None = None,
    ) -> None:
        self._tell_served = tell_served
        self._limits, self._assume = limits or StreamLimits(), assume or Assumption()
        self._too_large, self._pick_at = too_large, pick_at
        self.bodies = BodyBudget().share() if bodies is None else bodies
        self._modes: Modes | None = None
        self._request: RequestSide | None = None
        self._response: ResponseSide | None = None
        self._ended = False  # ExchangeEnded was said
        self._mute = False  # nothing goes out any more

    @property
    def modes(self) -> Modes | None:
        """The body modes, None before the first message."""
        return self._modes

    @property
    def released(self) -> bool:
        """Whether the body was left with Envoy, which may then end the stream at once."""
        return self._request is not None and self._request.released

    def receive(self, message: ProcessingRequest) -> list[Output]:
        """Take a message; what comes of it, in the order it is due."""
        return self._spoken(self._receive(message))

    def _receive(self, message: ProcessingRequest) -> list[Output]:
        if self._mute:
            return []
        try:
            outputs = self._take(message)
        except BodyTooLargeError:
            assert self._request is not None  # noqa: S101  # it raised
            return self._refuse(self._too_large(self._request.without_body(), self._limits.max_body_bytes))
        except NoRoomError:
            assert self._request is not None  # noqa: S101  # it raised
            return self._refuse(self.bodies.refusal(self._request.without_body()))
        except ViolationError as violation:
            return self._close(
                Cause.PROTOCOL_ERROR, violation.detail, Abort(violation.status, violation.detail)
            )
        if self._response is not None and self._response.phase is ResponsePhase.OVER:
            outputs += self._end(Cause.COMPLETED)
        return outputs

    def picked(self, pick: Pick) -> list[Output]:
        """Answer `PickNeeded` with a destination."""
        observe = pick.observe_response
        if self._response is not None:
            self._response.decision_id = pick.decision_id
        if self._request is not None and self._request.early and pick.body is not None:
            pick = replace(pick, body=None)  # what has not come cannot be replaced
        if self._response is not None and pick.response_headers:
            self._response.add_headers = pick.response_headers
            if observe is Observe.LEAVE:
                observe = Observe.CARRY  # headers come with the response
        if self._response is not None and self._modes is not None and self._modes.response in CHANGEABLE:
            self._response.rewrite = pick.rewrite_response
            if pick.rewrite_response is not None and observe is Observe.LEAVE:
                observe = Observe.CARRY  # what is not seen cannot be changed
        return self._spoken(self._answer(mutate.change_of(pick), observe))

    def pass_through(self, observe_response: Observe = Observe.READ) -> list[Output]:
        """Answer `PickNeeded` by letting the request go on as it came, without a destination."""
        return self._spoken(self._answer(Change(), observe_response))

    def refused(self, refusal: Refusal) -> list[Output]:
        """Answer `PickNeeded` by answering the client; nothing but the end of the stream matters after it."""
        return self._spoken(self._refuse(refusal)) if self._deciding() else []

    def no_room(self) -> list[Output]:
        """What comes next finds no room, and its sender may take any time: the stream ends."""
        request, response = self._request, self._response
        if request is None or response is None or self._ended or response.phase is not ResponsePhase.WAITING:
            self._mute = True  # there is no client to tell, or it has an answer
            return [Abort("RESOURCE_EXHAUSTED", "there is no room for what comes")]
        return [*self._spoken(self._refuse(self.bodies.refusal(request.without_body()))), Finish()]

    def closed(self, cut: bool) -> list[Event]:
        """The gRPC stream is over.

        Args:
            cut: it was reset (the client left, or Envoy died) rather than closed.
        """
        self._mute = True
        if self._broke_off():
            return self._end(Cause.CUT_OFF)
        return self._end(Cause.CLIENT_GONE if cut else Cause.STREAM_END)

    def _broke_off(self) -> bool:
        """Whether the response has begun in a mode that would have shown its end."""
        shown = self._modes is not None and self._modes.response in CHANGEABLE
        return shown and self._response is not None and self._response.phase is ResponsePhase.OPEN

    def _take(self, message: ProcessingRequest) -> list[Output]:
        request, response = self._sides(message)
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
        """The two halves; the first message decides how they speak."""
        if self._request is not None and self._response is not None:
            return self._request, self._response
        try:
            modes = detect(message, self._assume)
        except UnknownModeError as error:
            raise ViolationError(f"unknown body mode: {error}", "UNIMPLEMENTED") from None
        mode, response_mode = request_mode(modes), RESPONSE_MODES.get(modes.response)
        if mode is None:
            raise ViolationError(f"request_body_mode {modes.request.name} is not supported", "UNIMPLEMENTED")
        if response_mode is None:
            raise ViolationError(
                f"response_body_mode {modes.response.name} is not supported", "UNIMPLEMENTED"
            )
        self._modes = modes
        self._request = RequestSide(modes, mode, self._limits.max_body_bytes, self._pick_at, self.bodies)
        self._response = ResponseSide(response_mode, tell_served=self._tell_served)
        return self._request, self._response

    def _deciding(self) -> bool:
        return not self._ended and self._request is not None and self._request.phase is RequestPhase.DECIDING

    def _answer(self, change: Change, observe: Observe) -> list[Output]:
        if not self._deciding() or self._request is None or self._response is None or self._modes is None:
            return []
        self._response.read = observe is Observe.READ
        if observe is not Observe.LEAVE or not self._may_leave(self._modes, self._request, self._response):
            return [*self._request.answer(change)]
        return [*self._request.answer(change, at_once=True), *self._close(Cause.UNOBSERVED, "", Finish())]

    @staticmethod
    def _may_leave(modes: Modes, request: RequestSide, response: ResponseSide) -> bool:
        # A response that has begun before its request was whole is in flight already.
        begun = response.phase is not ResponsePhase.WAITING
        return modes.response in _LEAVES_EARLY and request.may_leave and not begun and not modes.observing

    def _spoken(self, outputs: list[Output]) -> list[Output]:
        """Without the replies, where nobody listens."""
        if self._modes is None or not self._modes.observing:
            return outputs
        return [output for output in outputs if not isinstance(output, ProcessingResponse)]

    def _refuse(self, refusal: Refusal) -> list[Output]:
        self._mute = True
        return [mutate.immediate(refusal), *self._end(Cause.REFUSED, refusal.details)]

    def _end(self, cause: Cause, detail: str = "") -> list[Event]:
        if self._ended:
            return []
        self._ended = True
        if self._request is not None:
            self._request.let_go()
        return [ExchangeEnded(cause, detail)]

    def _close(self, cause: Cause, detail: str, marker: Marker) -> list[Output]:
        self._mute = True
        return [*self._end(cause, detail), marker]
