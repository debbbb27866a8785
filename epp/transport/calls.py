"""gRPC calls on an HTTP/2 connection: streams become calls, bytes become messages, statuses become trailers.

Owns what a call has told the other side so far. Rules:

* A call that cannot be served is answered here, and the layer above never hears of it: an unknown path,
  another content type, another method than POST, an encoding that is not known.
* A call's events end with `CallCancelled`, exactly once, unless the layer above called `Call.finish`. If the
  stream then goes while some of what was said still waits to be sent, it comes after all.
* The last message and the status are one write: they stand side by side in the output.
* What is said about a call that is over is dropped.
* What has come of a message is held out of a `Room` that calls share. A call that finds none there hears
  `NoRoom`, and nothing after it but `CallCancelled`: the layer above ends it, in its own words. So is what
  waits to be read: a call that finds no room for a message is over as soon as it sends it.
* An open stream takes `STREAM_BYTES` of the room, whatever comes on it. One that is alone on its connection
  takes none, so that a health check on a connection of its own is answered however full the room is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from epp.transport import status as statuses
from epp.transport.connection import Connection
from epp.transport.events import (
    ConnectionFailed,
    DataReceived,
    RequestReceived,
    StreamDrained,
    StreamEnded,
    StreamReset,
)
from epp.transport.frames import ErrorCode
from epp.transport.headers import encode
from epp.transport.messages import UNBOUNDED, MessageError, MessageReader, NoRoomError, prefix
from epp.transport.sending import UNCOUNTED_BYTES
from epp.transport.status import Status

if TYPE_CHECKING:
    from collections.abc import Callable, Container

    from epp.transport.events import Event
    from epp.transport.headers import RequestHead
    from epp.transport.limits import Limits
    from epp.transport.messages import BodilessLimit, Message, Room
    from epp.transport.stream import Stream

#: Seconds of a unit of ``grpc-timeout``.
_UNITS_S = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
#: What an open stream takes with all that belongs to it here and above: its objects, a decision, a short
#: answer that waits. Measured: 2 KB opened, 6 KB picked.
STREAM_BYTES = 7 * 1024 + UNCOUNTED_BYTES
_GRPC = b"application/grpc"
#: What may follow it: nothing, a subtype, parameters.
_FURTHER = (b"", b"+", b";")
_PLAIN = (b"content-type", b"text/plain")
#: What one slice may bring: 256 KiB hold more only where messages are shorter than 32 bytes. Cutting so many
#: takes 8 ms.
_MAX_EVENTS = 8192


class Call:
    """One call.

    Args:
        calls: of whose connection it is.
        stream: that carries it.
        path: ``/package.Service/Method``.
        reader: of its messages.
        timeout_s: that the other side gives it, None for any time.

    Attributes:
        over: whether it has ended, in either way.
        owner: whose it is, for the layer above.
        error: why its messages could not be read, None while they could.
    """

    __slots__ = ("_begun", "_calls", "_stream", "error", "over", "owner", "path", "reader", "timeout_s")

    def __init__(
        self, calls: Calls, stream: Stream, path: bytes, reader: MessageReader, timeout_s: float | None
    ) -> None:
        self._calls, self._stream, self.reader = calls, stream, reader
        self.path, self.timeout_s = path, timeout_s
        self._begun = self.over = False
        self.owner: Any = None
        self.error: MessageError | None = None

    @property
    def blocked(self) -> bool:
        """Whether something that was sent waits for room; `CallDrained` says when it no longer does."""
        return bool(self._stream.waiting)

    def send(self, message: bytes) -> None:
        """Send a message. One that is too long, or must wait and finds no room, ends the call instead."""
        if self.over or self._too_long(message):
            return
        self._begin()
        connection = self._calls.connection
        if not connection.send_data(self._stream, message, prefix=prefix(len(message))):
            connection.reset(self._stream, ErrorCode.ENHANCE_YOUR_CALM)
            self._calls.end(self)

    def finish(self, status: Status, words: str = "", *, last: bytes | None = None) -> bool:
        """End the call, with a last message where there is one.

        Returns:
            False where that one is too long, or must wait and finds no room: the call has ended with that
            instead. What is said about a call that is over is dropped, and no failure.
        """
        if self.over:
            return True
        if last is not None:
            self.send(last)
            if self.over:
                return False
        self._calls.end(self)
        block = statuses.trailers if self._begun else statuses.trailers_only
        self._calls.connection.send_headers(self._stream, block(status, words), end=True)
        return True

    def hold(self) -> None:
        """Messages are not taken for now: the other side may send what its window allows."""
        self._calls.connection.hold(self._stream)

    def release(self) -> None:
        """They are taken again."""
        self._calls.connection.release(self._stream)

    @property
    def room(self) -> Room:
        """What its connection holds messages out of; who keeps some for later takes their bytes there."""
        return self._calls.room

    def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            self._calls.connection.send_headers(self._stream, statuses.HEAD_BLOCK)

    def _too_long(self, message: bytes) -> bool:
        longest = self._calls.max_send_bytes
        if len(message) <= longest:
            return False
        words = f"Sent message larger than max ({len(message)} vs. {longest})"
        self.finish(Status.RESOURCE_EXHAUSTED, words)
        return True


@dataclass(slots=True)
class CallStarted:
    """A call for a path that is served."""

    call: Call


@dataclass(slots=True)
class MessageReceived:
    """A message, good until the next bytes are received."""

    call: Call
    message: Message


@dataclass(slots=True)
class CallEnded:
    """No message will come any more; the call is still to be finished."""

    call: Call


@dataclass(slots=True)
class CallDrained:
    """Nothing that was sent waits any more."""

    call: Call


@dataclass(slots=True)
class NoRoom:
    """What comes finds no room: no message will come any more; the call is still to be finished."""

    call: Call


@dataclass(slots=True)
class CallCancelled:
    """The call is over, and not by us, or not as we said: the last of it was not sent."""

    call: Call


CallEvent = CallStarted | MessageReceived | CallEnded | CallDrained | CallCancelled | NoRoom


class Calls:
    """The calls of one connection.

    Args:
        paths: that are served.
        max_receive_bytes: longest message taken.
        max_send_bytes: longest message sent.
        limits: of the connection.
        room: what messages are held out of that nobody has taken yet.
        bodiless: limit of messages without a body, None for none of its own.

    Attributes:
        connection: below.
        failed: why the connection was ended, ``""`` while it was not.
    """

    def __init__(
        self,
        paths: Container[bytes],
        *,
        max_receive_bytes: int,
        max_send_bytes: int,
        limits: Limits | None = None,
        room: Room = UNBOUNDED,
        bodiless: BodilessLimit | None = None,
    ) -> None:
        self._paths, self._max_receive_bytes, self._bodiless = paths, max_receive_bytes, bodiless
        self.room = room
        self.max_send_bytes = max_send_bytes
        self.connection = Connection(limits, room)
        self.failed = ""
        #: Calls that have neither been finished nor cancelled.
        self.open: dict[Call, None] = {}
        #: Told of each call that is no longer open, whoever ended it and wherever.
        self.on_over: Callable[[Call], None] | None = None
        #: What streams are told at their end that speak no gRPC.
        self._refused: dict[Stream, tuple[bytes, bytes]] = {}

    def receive(self, data: bytes, now_s: float) -> list[CallEvent]:
        """Take what has come; what comes of it, in order."""
        return self._translate(self.connection.receive(data, now_s))

    def uncork(self) -> list[CallEvent]:
        """The socket takes data again."""
        return self._translate(self.connection.uncork())

    def lost(self) -> list[CallEvent]:
        """The socket is gone, and every call with it."""
        return self._cancel_all(self.connection.lost())

    def end(self, call: Call) -> None:
        """A call is over; what it is told at its end is its own affair."""
        call.over = True
        if call.reader.taken_bytes:
            call.reader.let_go()
        del self.open[call]
        if self.on_over is not None:
            self.on_over(call)

    def _translate(self, events: list[Event]) -> list[CallEvent]:
        told: list[CallEvent] = []
        for event in events:
            if isinstance(event, DataReceived):
                call = event.stream.owner
                if call is not None and not call.over:
                    self._data(call, event, told)
            elif isinstance(event, RequestReceived):
                self._request(event, told)
            elif isinstance(event, StreamEnded):
                self._ended(event.stream, told)
            elif isinstance(event, StreamReset):
                self._refused.pop(event.stream, None)
                self._cancel(event.stream, told)
            elif isinstance(event, StreamDrained):
                call = event.stream.owner
                if call is not None and not call.over:
                    told.append(CallDrained(call))
            elif isinstance(event, ConnectionFailed):
                self.failed = event.detail
                told += self._cancel_all(event.streams)
        return told

    def _request(self, event: RequestReceived, told: list[CallEvent]) -> None:
        """A stream becomes a call, or is answered here."""
        stream, head = event.stream, event.head
        has_room = self._takes_room(stream)
        kind = head.fields.get(b"content-type", b"")
        if head.method != b"POST":
            self._refused[stream] = b"405", b"only POST is served here\n"
            return
        if not kind.startswith(_GRPC) or kind[len(_GRPC) : len(_GRPC) + 1] not in _FURTHER:
            self._refused[stream] = b"415", b"only application/grpc is served here\n"
            return
        try:
            _check_encoding(head)
            reader = MessageReader(self._max_receive_bytes, self.room, self._bodiless)
            call = Call(self, stream, head.path, reader, _timeout_s(head))
            if head.path not in self._paths:
                raise MessageError(Status.UNIMPLEMENTED, "Method not found!")  # noqa: TRY301  # one answer to all
        except MessageError as error:
            block = statuses.trailers_only(error.status, error.words)
            self.connection.send_headers(stream, block, end=True)
            return
        self.open[call] = None
        told.append(CallStarted(call))
        if has_room:
            stream.owner = call
        else:
            told.append(NoRoom(call))

    def _takes_room(self, stream: Stream) -> bool:
        """Take `STREAM_BYTES` for an open stream; False where there are none."""
        if self.connection.streams > 1 and not stream.over:  # as it is where its reset came along
            if not self.room.take_part(STREAM_BYTES):
                return False
            stream.taken_bytes = STREAM_BYTES
        return True

    def _refuse(self, stream: Stream) -> None:
        """The answer to who speaks no gRPC, once it has ended as requests do."""
        code, words = self._refused.pop(stream)
        self.connection.send_headers(stream, encode(((b":status", code), _PLAIN)))
        self.connection.send_data(stream, words, end=True)

    def _data(self, call: Call, event: DataReceived, told: list[CallEvent]) -> None:
        try:
            for message in call.reader.feed(event.data):
                told.append(MessageReceived(call, message))
                if len(told) > _MAX_EVENTS:
                    self.connection.reader.charge(_MAX_EVENTS)
                    raise MessageError(Status.RESOURCE_EXHAUSTED, "messages of a few bytes each")  # noqa: TRY301
        except MessageError as error:
            event.stream.owner, call.error = None, error
            call.finish(error.status, error.words)
            told.append(CallCancelled(call))
        except NoRoomError:
            event.stream.owner = None  # what else comes on it is nobody's
            told.append(NoRoom(call))

    def _ended(self, stream: Stream, told: list[CallEvent]) -> None:
        call = stream.owner
        if stream in self._refused:
            self._refuse(stream)
        if call is None or call.over:
            return
        if call.reader.partial:
            stream.owner = None
            call.finish(Status.INTERNAL, "the call ended within a message")
            told.append(CallCancelled(call))
        else:
            told.append(CallEnded(call))

    def _cancel(self, stream: Stream, told: list[CallEvent]) -> None:
        call = stream.owner
        if call is None or (call.over and not stream.unsent):
            return
        if not call.over:
            self.end(call)
        told.append(CallCancelled(call))

    def _cancel_all(self, streams: list[Stream]) -> list[CallEvent]:
        told: list[CallEvent] = []
        for stream in streams:
            self._cancel(stream, told)
        for call in list(self.open):  # without room: its stream has forgotten it
            self.end(call)
            told.append(CallCancelled(call))
        return told


def _check_encoding(head: RequestHead) -> None:
    """Refuse a call whose messages may be compressed.

    Raises:
        MessageError: UNIMPLEMENTED, as gRPC's compression document has it; `grpc-accept-encoding` goes along.
    """
    encoding = head.fields.get(b"grpc-encoding", b"identity")
    if encoding != b"identity":
        shown = encoding[:60].decode("latin-1")
        raise MessageError(Status.UNIMPLEMENTED, f"messages compressed as {shown!r} are not understood")


def _timeout_s(head: RequestHead) -> float | None:
    """What ``grpc-timeout`` says; None where nothing.

    Raises:
        MessageError: it says nothing that can be understood.
    """
    told = head.fields.get(b"grpc-timeout")
    if told is None:
        return None
    number, unit = told[:-1], told[-1:]
    if unit not in _UNITS_S or not number.isdigit() or len(number) > 8:
        raise MessageError(Status.INTERNAL, "a grpc-timeout that is no time")
    return int(number) * _UNITS_S[unit]
