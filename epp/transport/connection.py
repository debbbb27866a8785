"""The server's side of an HTTP/2 connection that carries gRPC calls (RFC 9113): bytes in, events out.

Owns the calls, the receive windows and how a connection ends. Frames are cut by `epp.transport.reading`; what
is sent is queued by `epp.transport.sending`. Rules:

* Nothing is raised at the caller, whatever comes. What breaks the connection sets `failed`, cancels every
  call and puts a GOAWAY in the output; what breaks a stream cancels its call and puts a RST_STREAM there.
* A call that cannot be served is answered here: an unknown path, another content type, another method than
  POST, an encoding that is not known.
* Windows are enlarged in large steps as data comes, but for streams that are held.
* What has come of a message is held out of a `Room` that connections share. A call that finds none there gets
  `NoRoom`, and after it nothing but `CallCancelled`: the layer above ends it.
* An open stream takes `STREAM_BYTES` of the room. One that is alone on its connection takes none, so that a
  health check on a connection of its own is answered however full the room is.
* `drain` says that no new streams are wanted, waits for the other side to have read that, and then says up to
  which stream it was heard: no request is lost between the two (RFC 9113 section 6.8).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from epp.transport import frames
from epp.transport.calls import (
    Call,
    CallCancelled,
    CallDrained,
    CallEnded,
    CallStarted,
    MessageReceived,
    NoRoom,
)
from epp.transport.frames import ErrorCode, ProtocolError, Setting, StreamError
from epp.transport.headers import HeadReader, encode
from epp.transport.limits import PING_FRAMES, SETTINGS_FRAMES, Bucket, Limits, announced
from epp.transport.messages import UNBOUNDED, MessageError, MessageReader, NoRoomError
from epp.transport.reading import FrameReader
from epp.transport.sending import UNCOUNTED_BYTES, Sender
from epp.transport.status import Status

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable

    from epp.transport.calls import CallEvent
    from epp.transport.headers import RequestHead
    from epp.transport.messages import BodilessLimit, Room

#: What an open stream takes with all that belongs to it here and above: its objects, a decision, a short
#: answer that waits. Measured: 2 KB opened, 6 KB picked.
STREAM_BYTES = 7 * 1024 + UNCOUNTED_BYTES
_DRAIN_PING = b"gorgodra"
#: Work units of a new stream with its call, and of SETTINGS: one for each eight open streams.
_STREAM_UNITS, _STREAMS_UNIT_BITS = 16, 3
#: What one slice may bring: 256 KiB hold more only where messages are shorter than 32 bytes. Cutting so many
#: takes 8 ms.
_MAX_EVENTS = 8192
#: A window is enlarged once this part of it is used.
_WINDOW_PART = 4
#: A window that is made too large, and one that is made larger by nothing.
_WINDOW_ERRORS = (ErrorCode.FLOW_CONTROL_ERROR, ErrorCode.PROTOCOL_ERROR)
_GRPC = b"application/grpc"
#: What may follow it: nothing, a subtype, parameters.
_FURTHER = (b"", b"+", b";")


class Connection:
    """One connection.

    Args:
        paths: that are served.
        max_receive_bytes: longest message taken.
        max_send_bytes: longest message sent.
        limits: what the connection may take up.
        room: what messages are held out of that nobody has taken, or read, yet.
        bodiless: limit of messages without a body, None for none of its own.

    Attributes:
        reader: holds the work units that `receive` may use; knows whether bytes are left because they are
            used up.
        sender: queues what is sent.
        last_number: of the streams opened.
        failed: why the connection was ended, ``""`` while it was not.
        closed: nothing comes of what is received any more.
        flush: has the output written, set by who writes it.
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
        self._limits = limits = limits or Limits()
        self._paths, self._max_receive_bytes, self._bodiless = paths, max_receive_bytes, bodiless
        self.room, self.max_send_bytes = room, max_send_bytes
        self.reader = FrameReader(self, limits)
        self._heads = HeadReader(limits.max_header_list_bytes, self.reader.charge)
        self.sender = Sender(self._sent_end, room)
        self._events: list[CallEvent] = []
        self._now_s = 0.0
        self._calls: dict[int, Call] = {}
        self.last_number = 0
        #: Streams that we have ended and whose frames may still be on their way: to the other side they are
        #: open until it reads that, so there are never more.
        self._reset = RecentStreamIds(limits.max_streams)
        self._current: Call | None = None
        self._window = limits.connection_window_bytes
        self._their_window = frames.DEFAULT_WINDOW_BYTES
        self._table_bytes = frames.DEFAULT_TABLE_BYTES
        self._draining = self._drained = False
        self._idle, self._useless = Bucket(limits.idle_frames), Bucket(limits.useless_streams)
        self.failed, self.closed = "", False
        self.flush: Callable[[], None] = _no_flush
        self.sender.control(frames.settings(announced(limits)))
        more = limits.connection_window_bytes - frames.DEFAULT_WINDOW_BYTES
        self.sender.control(frames.window_update(0, more))

    @property
    def streams(self) -> list[Call]:
        """Open streams, the oldest first; a call may be over and its answer still wait."""
        return list(self._calls.values())

    @property
    def finished(self) -> bool:
        """Whether the connection can be closed: it has failed, or is drained."""
        return self.closed or (self._drained and not self._calls)

    def receive(self, data: bytes, now_s: float) -> list[CallEvent]:
        """Take bytes from the socket; what comes of them, in order. The time is for rates alone."""
        if self.closed:
            return []
        events: list[CallEvent] = []
        self._events, self._now_s = events, now_s
        try:
            self.reader.feed(data)
        except ProtocolError as error:
            self.sender.control(frames.goaway(self.last_number, error.code, error.detail.encode()))
            self.failed = error.detail
            self._lose()
        return events

    def output(self) -> bytes:
        """Take what is to be written now."""
        return self.sender.take()

    def reset(self, call: Call, code: ErrorCode) -> None:
        """Reset a stream; no event comes of it."""
        if not call.gone:
            self.sender.control(frames.rst_stream(call.number, code))
            self._reset.add(call.number)
            self._remove(call)

    def enlarge(self, call: Call) -> None:
        """Make good what came on a stream, if it is worth a frame."""
        used = self._limits.stream_window_bytes - call.receive_window
        if used * _WINDOW_PART > self._limits.stream_window_bytes and not (call.ended_there or call.gone):
            self.sender.control(frames.window_update(call.number, used))
            call.receive_window += used

    def uncork(self) -> list[CallEvent]:
        """Send what waited: the socket takes more."""
        self.sender.corked, self._events = False, []
        self._drained_of(self.sender.flush())
        return self._events

    def drain(self) -> bool:
        """Ask for no new streams; those that are open go on. False where that was asked before."""
        if self._draining or self.closed:
            return False
        self._draining = True
        self.sender.control(frames.goaway(frames.STREAM_MASK, ErrorCode.NO_ERROR))
        self.sender.control(frames.frame(frames.PING, 0, 0, _DRAIN_PING))
        return True

    def refuse_more(self) -> None:
        """Ignore the streams that the other side opens from here on."""
        self.drain()
        if not self._drained and not self.closed:
            self._drained = True
            self.sender.control(frames.goaway(self.last_number, ErrorCode.NO_ERROR))

    def lost(self) -> list[CallEvent]:
        """End every call: the socket is gone, nothing is received or sent any more."""
        self._events = []
        self._lose()
        # Cycles end, so that all is freed at once and not in a garbage collection.
        events, self._events, self.flush = self._events, [], _no_flush
        del self.reader, self.sender, self.room, self._heads
        return events

    # What frames mean: called by the reader.

    def on_data_head(self, number: int, length: int) -> None:
        """A DATA frame begins; padding counts."""
        self._window -= length
        if self._window < 0:
            raise ProtocolError(ErrorCode.FLOW_CONTROL_ERROR, "more data than the connection's window")
        used = self._limits.connection_window_bytes - self._window
        if used * _WINDOW_PART > self._limits.connection_window_bytes:
            self.sender.control(frames.window_update(0, used))
            self._window += used
        call = self._calls.get(number)
        self._current = None
        if call is None or call.ended_there:
            if call is not None or not self._is_forgiven(number, "DATA"):
                self._stream_error(number, ErrorCode.STREAM_CLOSED)
        elif length > call.receive_window:
            self._stream_error(number, ErrorCode.FLOW_CONTROL_ERROR)
        else:
            call.receive_window -= length
            if not call.held:
                self.enlarge(call)
            self._current = call

    def on_data(self, piece: memoryview) -> None:
        """A piece of it."""
        call = self._current
        if call is None or call.gone:
            return
        call.received = True
        if call.expected_bytes >= 0:
            call.expected_bytes -= len(piece)
            if call.expected_bytes < 0:  # more than its content-length
                self._stream_error(call.number, ErrorCode.PROTOCOL_ERROR)
                return
        if call.deaf or call.over:
            return
        events = self._events
        try:
            for message in call.reader.feed(piece):
                events.append(MessageReceived(call, message))
                if len(events) > _MAX_EVENTS:
                    self.reader.charge(_MAX_EVENTS)
                    raise MessageError(Status.RESOURCE_EXHAUSTED, "messages of a few bytes each")  # noqa: TRY301
        except MessageError as error:
            self._unreadable(call, error)
        except NoRoomError:
            call.deaf = True
            events.append(NoRoom(call))

    def on_data_end(self, *, end: bool) -> None:
        """All of it has come; ``end`` if its stream ends with it."""
        call, self._current = self._current, None
        if end and call is not None and not call.gone:
            self._ended(call)

    def on_headers(self, number: int, block: bytes, *, end: bool, depends_on: int) -> None:
        """A header block, of a request or its trailers; ``depends_on`` is negative without a priority."""
        call = self._calls.get(number)
        try:
            if call is not None:
                self._trailers(call, block, end=end)
            elif number <= self.last_number or (self._drained and number & 1):
                self._heads.follow(block)  # comes too late; the table must follow it all the same
                if not self._is_forgiven(number, "HEADERS"):
                    raise ProtocolError(ErrorCode.STREAM_CLOSED, "headers on a closed stream")
            elif not number & 1:
                raise ProtocolError(ErrorCode.PROTOCOL_ERROR, f"a client opened stream {number}")
            else:
                self.last_number = number
                self._request(number, block, end=end)
        except StreamError as error:
            self._stream_error(number, error.code)
        else:
            if depends_on == number:
                self._stream_error(number, ErrorCode.PROTOCOL_ERROR)

    def on_priority(self, number: int, depends_on: int) -> None:
        """A PRIORITY frame, ignored; ``depends_on`` is negative where it has a wrong length."""
        self.on_idle()
        if depends_on == number:
            self._stream_error(number, ErrorCode.PROTOCOL_ERROR)
        elif depends_on < 0:
            self._stream_error(number, ErrorCode.FRAME_SIZE_ERROR)

    def on_reset(self, number: int) -> None:
        """A RST_STREAM frame."""
        call = self._calls.get(number)
        if call is None:
            if self._is_forgiven(number, "RST_STREAM") and number in self._reset:
                del self._reset[number]  # Envoy answers an early end with one; a second would say nothing
            else:
                self.on_idle()
            return
        self._remove(call)
        self._cancel(call)
        if not call.received:
            self._count_useless()

    def on_settings(self, values: list[tuple[int, int]]) -> None:
        """A SETTINGS frame."""
        self.on_idle(SETTINGS_FRAMES)
        self.reader.charge(len(self._calls) >> _STREAMS_UNIT_BITS)
        for name, value in dict(values).items():  # the last of a name holds: each may touch every stream
            self._set(name, value)
        self.sender.control(frames.frame(frames.SETTINGS, frames.ACK, 0))
        # Not earlier: until the other side reads this, its smaller windows hold.
        self._drained_of([call for call in self.streams if self.sender.grew(call)])

    def on_ping(self, data: bytes, *, answer: bool) -> None:
        """A PING frame; after the answer to ours all has come that the other side opened before."""
        if answer and self._draining and data == _DRAIN_PING:
            self.refuse_more()
            return
        self.on_idle(PING_FRAMES)
        if not answer:
            self.sender.control(frames.frame(frames.PING, frames.ACK, 0, data))

    def on_window_update(self, number: int, step_bytes: int) -> None:
        """A WINDOW_UPDATE frame: we may send more."""
        wrong = _WINDOW_ERRORS[not step_bytes]
        if number == 0:
            self.sender.window += step_bytes
            if not step_bytes or self.sender.window > frames.MAX_WINDOW:
                raise ProtocolError(wrong, f"a window made {step_bytes} larger")
            self._drained_of(self.sender.flush())
            return
        if (call := self._calls.get(number)) is None:
            self._is_forgiven(number, "WINDOW_UPDATE")
            return
        call.send_window += step_bytes
        if not step_bytes or call.send_window > frames.MAX_WINDOW:
            self._stream_error(number, wrong)
        elif self.sender.grew(call):
            self._drained_of([call])

    def on_idle(self, frames_counted: int = 1) -> None:
        """A frame that says nothing, or asks for work."""
        if not self._idle.take(self._now_s, frames_counted):
            raise ProtocolError(ErrorCode.ENHANCE_YOUR_CALM, "too many frames that bring nothing")

    def _request(self, number: int, block: bytes, *, end: bool) -> None:
        head = self._heads.request(block)
        self.reader.charge(_STREAM_UNITS)
        if len(self._calls) >= self._limits.max_streams:
            raise StreamError(ErrorCode.REFUSED_STREAM)
        if end and head.content_length > 0:
            raise StreamError(ErrorCode.PROTOCOL_ERROR)
        reader = MessageReader(self._max_receive_bytes, self.room, self._bodiless)
        window = self._limits.stream_window_bytes
        call = Call(self, number, head, reader, send_window=self._their_window, receive_window=window)
        call.ended_there = end
        self._calls[number] = call
        self._start(call, head)
        if end and not call.gone:
            self._ended(call)

    def _start(self, call: Call, head: RequestHead) -> None:
        """Start a call, or answer it here."""
        has_room = len(self._calls) == 1 or self.room.reserve(STREAM_BYTES)
        if has_room and len(self._calls) > 1:
            call.taken_bytes = STREAM_BYTES
        kind = head.fields.get(b"content-type", b"")
        encoding = head.fields.get(b"grpc-encoding", b"identity")
        if head.method != b"POST":
            call.refusal = b"405", b"only POST is served here\n"
        elif not kind.startswith(_GRPC) or kind[len(_GRPC) : len(_GRPC) + 1] not in _FURTHER:
            call.refusal = b"415", b"only application/grpc is served here\n"
        elif encoding != b"identity":  # as gRPC's compression document has it
            words = f"messages compressed as {encoding[:60].decode('latin-1')!r} are not understood"
            call.finish(Status.UNIMPLEMENTED, words)
        elif head.path not in self._paths:
            call.finish(Status.UNIMPLEMENTED, "Method not found!")
        else:
            call.started = True
            self._events.append(CallStarted(call))
            if not has_room:
                call.deaf = True
                self._events.append(NoRoom(call))
            return
        call.deaf = True

    def _trailers(self, call: Call, block: bytes, *, end: bool) -> None:
        if call.ended_there:
            self._heads.follow(block)
            raise StreamError(ErrorCode.STREAM_CLOSED)
        self._heads.trailers(block)
        if not end:  # a second head of a request
            raise StreamError(ErrorCode.PROTOCOL_ERROR)
        self._ended(call)

    def _ended(self, call: Call) -> None:
        if call.expected_bytes > 0:  # less than its content-length
            self._stream_error(call.number, ErrorCode.PROTOCOL_ERROR)
            return
        call.ended_there = True
        if call.refusal is not None:
            code, words = call.refusal
            call.end()
            self.sender.headers(call, encode(((b":status", code), (b"content-type", b"text/plain"))))
            self.sender.data(call, words, end=True)
        elif call.deaf or call.over:
            return
        elif call.reader.partial:
            self._unreadable(call, MessageError(Status.INTERNAL, "the call ended within a message"))
        else:
            self._events.append(CallEnded(call))

    def _unreadable(self, call: Call, error: MessageError) -> None:
        call.deaf, call.error = True, error
        call.finish(error.status, error.words)
        self._events.append(CallCancelled(call))

    def _is_forgiven(self, number: int, what: str) -> bool:
        """Whether a frame on a stream that is not open is one that was on its way when we ended it."""
        if number > self.last_number and self._drained:
            return True
        if number > self.last_number or not number & 1:
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, f"{what} on stream {number}, which nobody opened")
        return number in self._reset

    def _set(self, name: int, value: int) -> None:
        """Apply one setting of theirs.

        Raises:
            ProtocolError: a value that it cannot have.
        """
        if name == Setting.INITIAL_WINDOW_SIZE:
            step, self._their_window = value - self._their_window, value
            for call in self._calls.values():
                call.send_window += step
            if max([value, *(call.send_window for call in self._calls.values())]) > frames.MAX_WINDOW:
                raise ProtocolError(ErrorCode.FLOW_CONTROL_ERROR, f"windows of {value} bytes")
        elif name == Setting.MAX_FRAME_SIZE:
            if not frames.DEFAULT_FRAME_BYTES <= value <= frames.MAX_FRAME_BYTES:
                raise ProtocolError(ErrorCode.PROTOCOL_ERROR, f"frames of {value} bytes")
            self.sender.max_frame_bytes = min(value, self._limits.max_frame_bytes)
        elif name == Setting.ENABLE_PUSH and value > 1:
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, f"ENABLE_PUSH {value}")
        elif name == Setting.HEADER_TABLE_SIZE and value < self._table_bytes:
            self._table_bytes = 0
            self.sender.limit_table()

    def _drained_of(self, calls: Iterable[Call]) -> None:
        self._events += [CallDrained(call) for call in calls if not call.over]

    def _sent_end(self, call: Call) -> None:
        """Remove a stream whose last frame of ours is in the output."""
        if not call.ended_there:
            self._reset.add(call.number)
        self._remove(call)

    def _remove(self, call: Call) -> None:
        del self._calls[call.number]
        self.sender.forget((call,))

    def _cancel(self, call: Call) -> None:
        if call.started and (not call.over or call.unsent):
            self._events.append(CallCancelled(call))
        if not call.over:
            call.end()

    def _lose(self) -> None:
        self.closed = True
        lost, self._calls = self.streams, {}
        self.sender.forget(lost)
        for call in lost:
            self._cancel(call)

    def _count_useless(self) -> None:
        if not self._useless.take(self._now_s):
            raise ProtocolError(ErrorCode.ENHANCE_YOUR_CALM, "too many streams that come to nothing")

    def _stream_error(self, number: int, code: ErrorCode) -> None:
        """Reset a stream for what the other side did on it, open or not."""
        self._count_useless()
        self.sender.control(frames.rst_stream(number, code))
        self._reset.add(number)
        call = self._calls.get(number)
        if call is not None:
            self._remove(call)
            self._cancel(call)


def _no_flush() -> None:
    """Write nothing: there is no socket."""


class RecentStreamIds(dict[int, None]):
    """Numbers of streams, at least the newest so many; each frame of a flood may look one up."""

    def __init__(self, least: int) -> None:
        super().__init__()
        self._least = least

    def add(self, number: int) -> None:
        """Remember one, and now and then forget the older half."""
        if len(self) >= 2 * self._least:
            newest = list(self)[self._least :]
            self.clear()
            self.update(dict.fromkeys(newest))
        self[number] = None
