"""Envoy's end of an ext_proc stream, by its own rules: what it sends when, which replies it takes, what goes on.

Written after `processor_state.cc` and `ext_proc.cc` of Envoy 1.40, and independent of the machine under test:
it knows which parts it has sent and which of them wait for a reply. A reply that Envoy would call spurious, or
bytes that Envoy would lose, raise `SpuriousError`; a peer that waits for a reply which does not come has
`waiting` left at the end.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from epp.extproc.modes import BodyMode
from epp.pb.ext_proc_pb2 import CommonResponse, ProcessingRequest, ProcessingResponse
from tests.kit import conversation
from tests.kit.conversation import DUPLEX, with_modes

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Parts that are released together with the stream: Envoy keeps a copy of what waits, but not in full duplex.
BUFFER_BYTES = 32 * 1024


class SpuriousError(AssertionError):
    """Envoy would refuse this, or lose something."""


@dataclass(frozen=True)
class Shape:
    """A request or a response: headers, body in pieces (none: no body), trailers."""

    pieces: tuple[bytes, ...] = ()
    trailers: bool = False

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces)


@dataclass
class Side:
    """One direction: what is to be sent, what waits for a reply, what has gone on.

    Attributes:
        name: ``request`` or ``response``.
        mode: its body mode; a reply to the headers may end it.
        shape: what passes.
        ahead: whether body does not wait for the reply to the headers.
    """

    name: str
    mode: BodyMode
    shape: Shape
    ahead: bool = False
    waiting: deque[tuple[str, bytes, bool]] = field(default_factory=deque)
    passed: bytearray = field(default_factory=bytearray)
    set_headers: dict[str, bytes] = field(default_factory=dict)
    ended: bool = False
    headers_sent: bool = False
    headers_passed: bool = False
    done_sending: bool = False
    trailers_sent: bool = False
    sent_pieces: int = 0
    rest: bytes = b""

    def due(self, observing: bool) -> ProcessingRequest | None:
        """The next message, None when there is none or a reply must come first."""
        if not self.headers_sent:
            self.headers_sent = True
            self.done_sending = not self.shape.pieces and not self.shape.trailers
            return self._sent("headers", b"", self.done_sending, observing)
        free = observing or self.mode is DUPLEX or (self.ahead and self.mode is BodyMode.STREAMED)
        if self.done_sending or (self.waiting and not free and self.waiting[0][0] == "headers"):
            return None
        if self.mode is BodyMode.NONE:
            self.passed += b"".join(self.shape.pieces[self.sent_pieces :])
            self.sent_pieces, self.done_sending = len(self.shape.pieces), True
            return None
        if self.sent_pieces < len(self.shape.pieces):
            return self._body(observing)
        if self.shape.trailers and not self.trailers_sent and (free or not self.waiting):
            self.trailers_sent = self.done_sending = True
            return self._sent("trailers", b"", False, observing)
        self.done_sending = self.done_sending or not self.shape.trailers
        return None

    def _body(self, observing: bool) -> ProcessingRequest | None:
        unanswered = sum(len(data) for part, data, _ in self.waiting if part == "body")
        if unanswered > BUFFER_BYTES and self.mode is not DUPLEX:
            return None  # the watermark: nothing more is read
        last_comes = not self.shape.trailers
        if self.mode in (BodyMode.BUFFERED, BodyMode.BUFFERED_PARTIAL) and not observing:
            data, rest = self.shape.body, b""
            if self.mode is BodyMode.BUFFERED_PARTIAL:
                data, rest = data[:BUFFER_BYTES], data[BUFFER_BYTES:]
            self.sent_pieces, self.rest = len(self.shape.pieces), rest
            return self._sent("body", data, last_comes and not rest, observing)
        data = self.shape.pieces[self.sent_pieces]
        self.sent_pieces += 1
        return self._sent("body", data, last_comes and self.sent_pieces == len(self.shape.pieces), observing)

    def _sent(self, part: str, data: bytes, end: bool, observing: bool) -> ProcessingRequest:
        if observing:
            self.passed += data
        else:
            self.waiting.append((part, data, end))
        parts: dict[str, dict[str, Any]] = {"headers": {"end": end}, "body": {"data": data, "end": end}}
        fields = parts.get(part, {})
        message: ProcessingRequest = getattr(conversation, f"{self.name}_{part}")(**fields)
        return message

    def take(self, part: str, reply: ProcessingResponse, *, overrides: bool) -> None:
        """Obey a reply."""
        if part == "headers":
            return self._take_headers(reply, overrides=overrides)
        if self.mode is DUPLEX:
            return self._take_duplex(part, reply)
        if not self.waiting or self.waiting[0][0] != part:
            raise SpuriousError(f"a reply to {self.name} {part}, waiting are {list(self.waiting)[:3]}")
        _, data, _ = self.waiting.popleft()
        if part == "trailers":
            return None
        common = getattr(reply, f"{self.name}_body").response
        if common.status == CommonResponse.CONTINUE_AND_REPLACE:
            raise SpuriousError("CONTINUE_AND_REPLACE is for headers")
        mutation = common.body_mutation
        match mutation.WhichOneof("mutation"):
            case "body":
                data = mutation.body
            case "clear_body":
                data = b""
            case "streamed_response":
                raise SpuriousError("streamed_response outside of full duplex")
        if self.mode in (BodyMode.BUFFERED, BodyMode.BUFFERED_PARTIAL):
            self._headers_change(common)
        elif common.HasField("header_mutation"):
            raise SpuriousError("header changes on a streamed body are not obeyed")
        length = self.set_headers.get("content-length")
        if length is not None and self.mode is BodyMode.BUFFERED and int(length) != len(data):
            raise SpuriousError(f"content-length {length!r} for {len(data)} bytes")
        self.passed += data + self.rest
        self.rest = b""
        return None

    def _take_headers(self, reply: ProcessingResponse, *, overrides: bool) -> None:
        if not self.waiting or self.waiting[0][0] != "headers":
            raise SpuriousError(f"a reply to {self.name} headers that nobody waits for")
        self.waiting.popleft()
        self.headers_passed = True
        common = getattr(reply, f"{self.name}_headers").response
        self._headers_change(common)
        if overrides and reply.HasField("mode_override") and self.mode is not DUPLEX and not self.ahead:
            self.mode = BodyMode(getattr(reply.mode_override, f"{self.name}_body_mode"))
        if common.status != CommonResponse.CONTINUE_AND_REPLACE:
            if common.HasField("body_mutation"):
                raise SpuriousError("a body on the headers' reply without CONTINUE_AND_REPLACE")
            return
        in_flight = [data for part, data, _ in self.waiting if part == "body"]
        replaced = common.HasField("body_mutation")
        if in_flight and not replaced:
            raise SpuriousError("the pieces in flight are lost")
        self.waiting.clear()
        self.mode, self.done_sending = BodyMode.NONE, True
        self.passed += common.body_mutation.body if replaced else self.shape.body
        self.ended = True

    def _take_duplex(self, part: str, reply: ProcessingResponse) -> None:
        if not self.headers_passed:
            raise SpuriousError(f"{part} before the headers' reply")
        if self.ended:
            raise SpuriousError(f"{part} after the end of the stream")
        if part == "trailers":
            if not self.trailers_sent:
                raise SpuriousError("a reply to trailers that were not sent")
            self.waiting.clear()
            self.ended = True
            return
        common = getattr(reply, f"{self.name}_body").response
        if common.body_mutation.WhichOneof("mutation") != "streamed_response":
            raise SpuriousError("in full duplex bodies go back as streamed_response")
        piece = common.body_mutation.streamed_response
        self.passed += piece.body
        if piece.end_of_stream:
            if not self.waiting or not self.waiting[-1][2]:
                raise SpuriousError("an end of stream that was not sent")
            self.waiting.clear()
            self.ended = True

    def _headers_change(self, common: CommonResponse) -> None:
        for option in common.header_mutation.set_headers:
            self.set_headers[option.header.key] = option.header.raw_value

    def released(self) -> None:
        """The stream has ended in order: what Envoy has kept goes on; in full duplex it keeps nothing."""
        lost = [data for part, data, _ in self.waiting if part == "body" and data]
        if self.mode is DUPLEX and lost and not self.ended:
            raise SpuriousError(f"{len(lost)} pieces of the {self.name} are lost")
        self.passed += b"".join(data for part, data, _ in self.waiting if part == "body") + self.rest
        self.waiting.clear()
        if not self.ended and not self.done_sending:
            self.passed += b"".join(self.shape.pieces[self.sent_pieces :])
        self.done_sending = self.ended = True


class Peer:
    """Both directions of one exchange.

    Args:
        request: what the client sends.
        response: what the upstream answers.
        modes: request and response body mode.
        ahead: request bodies do not wait for the reply to the headers.
        overrides: whether `mode_override` is obeyed.
        observing: observability mode.
    """

    def __init__(
        self,
        request: Shape,
        response: Shape,
        modes: tuple[BodyMode, BodyMode],
        *,
        ahead: bool = False,
        overrides: bool = True,
        observing: bool = False,
    ) -> None:
        self.request = Side("request", modes[0], request, ahead)
        self.response = Side("response", modes[1], response)
        self._modes, self._overrides, self.observing = modes, overrides, observing
        self._first = True
        #: Whether the client has its answer from us.
        self.refused = False
        self.finished = False

    def due(self, side: Side) -> ProcessingRequest | None:
        """The next message of a side, as it goes on the wire."""
        if self.refused or self.finished:
            return None
        message = side.due(self.observing)
        if message is None:
            return None
        message.observability_mode = self.observing
        if self._first:
            self._first = False
            with_modes(message, *self._modes)
            message.protocol_config.send_body_without_waiting_for_header_response = self.request.ahead
        return message

    def take(self, replies: Sequence[ProcessingResponse]) -> None:
        """Obey replies."""
        for reply in replies:
            if self.observing:
                raise SpuriousError("nobody listens")
            if self.refused or self.finished:
                raise SpuriousError("a reply after the last one")
            part = reply.WhichOneof("response")
            if part is None:
                raise SpuriousError("an empty reply")
            if part == "immediate_response":
                self.refused = True
                continue
            name, _, which = part.partition("_")
            getattr(self, name).take(which, reply, overrides=self._overrides)

    def finish(self) -> None:
        """The other end has closed in order."""
        self.finished = True
        self.request.released()
        if self.response.headers_sent:
            self.response.released()
