"""The server's side of an HTTP/2 connection (RFC 9113): bytes in, events out; calls in, bytes out.

Owns the streams, the receive windows and how a connection ends. Frames are cut by `epp.transport.reading`,
and
what is sent is queued by `epp.transport.sending`. Rules:

* Nothing is raised at the caller, whatever comes. What breaks the connection gives `ConnectionFailed`, last
  of its list, and a GOAWAY in the output; what breaks a stream gives `StreamReset` and a RST_STREAM.
* A stream's events end with exactly one of `StreamReset`, `ConnectionFailed` and our own end of it.
* DATA is handed on as it comes from the socket, so a frame may be long without being held anywhere.
* Windows are made good in large steps as data comes, except for streams that are held.
* `drain` says that no new streams are wanted, waits for the other side to have read that, and then says up to
  which stream it was heard: no request is lost between the two (RFC 9113 section 6.8).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from epp.transport import frames
from epp.transport.errors import ProtocolError, StreamError
from epp.transport.events import (
    ConnectionFailed,
    DataReceived,
    RequestReceived,
    StreamDrained,
    StreamEnded,
    StreamReset,
)
from epp.transport.frames import ErrorCode, Setting
from epp.transport.headers import HeadReader
from epp.transport.limits import Bucket, Limits, announced
from epp.transport.messages import UNBOUNDED
from epp.transport.reading import FrameReader
from epp.transport.receiving import ReceiveWindows
from epp.transport.sending import Sender
from epp.transport.stream import Lately, Stream

if TYPE_CHECKING:
    from epp.transport.events import Event
    from epp.transport.messages import Room

_DRAIN_PING = b"gorgodra"
#: Work units of a new stream with its call, and of SETTINGS: one for each eight open streams.
_STREAM_UNITS, _STREAMS_UNIT_BITS = 16, 3
#: A window that is made too large, and one that is made larger by nothing.
_WINDOW_ERRORS = (ErrorCode.FLOW_CONTROL_ERROR, ErrorCode.PROTOCOL_ERROR)


class Connection:
    """One connection.

    Args:
        limits: what it may take up.
        room: what data is held out of that waits for the other side to read.
    """

    def __init__(self, limits: Limits | None = None, room: Room = UNBOUNDED) -> None:
        self._limits = limits = limits or Limits()
        #: Holds the work units that `receive` may use; knows whether bytes are left because they are used up.
        self.reader = FrameReader(self, limits)
        self._heads = HeadReader(limits.max_header_list_bytes, self.reader.charge)
        self._sender = Sender(self._sent_end, room)
        self._events: list[Event] = []
        self._now_s = 0.0
        self._streams: dict[int, Stream] = {}
        self.last_number = 0  # of the streams opened
        #: Streams that we have ended and whose frames may still be on their way: to the other side they are
        #: open until it reads that, so there are never more.
        self._reset = Lately(limits.max_streams)
        self._current: Stream | None = None
        self._windows = ReceiveWindows(limits, self._sender.control)
        self._their_window = frames.DEFAULT_WINDOW_BYTES
        self._table_bytes = frames.DEFAULT_TABLE_BYTES
        self._draining = self._drained = False
        self._pings, self._settings = Bucket(limits.pings), Bucket(limits.settings)
        self._idle, self._useless = Bucket(limits.idle_frames), Bucket(limits.useless_streams)
        #: Nothing comes of what is received any more.
        self.closed = False
        self._sender.control(frames.settings(announced(limits)))
        more = limits.connection_window_bytes - frames.DEFAULT_WINDOW_BYTES
        self._sender.control(frames.window_update(0, more))

    def youngest(self) -> list[Stream]:
        """Open streams, the youngest first."""
        return list(reversed(self._streams.values()))

    @property
    def streams(self) -> int:
        """Open streams."""
        return len(self._streams)

    @property
    def finished(self) -> bool:
        """Whether the connection can be closed: it has failed, or is drained."""
        return self.closed or (self._drained and not self._streams)

    def receive(self, data: bytes, now_s: float) -> list[Event]:
        """Take what has come; what comes of it, in order.

        Args:
            data: bytes from the socket.
            now_s: the time, for rates alone.
        """
        if self.closed:
            return []
        events: list[Event] = []
        self._events, self._now_s = events, now_s
        try:
            self.reader.feed(data)
        except ProtocolError as error:
            self._fail(error.code, error.detail)
        return events

    def output(self) -> bytes:
        """What is to be written now; it is not given again."""
        return self._sender.take()

    def send_headers(self, stream: Stream, block: bytes, *, end: bool = False) -> None:
        """A block made by `epp.transport.headers.encode`; ``end`` ends the stream."""
        self._sender.headers(stream, block, end=end)

    def send_data(self, stream: Stream, data: bytes, *, prefix: bytes = b"", end: bool = False) -> bool:
        """Data, ``prefix`` before it, now or later; False where it cannot wait: the stream is to be reset."""
        return self._sender.data(stream, data, prefix=prefix, end=end)

    def reset(self, stream: Stream, code: ErrorCode) -> None:
        """End a stream at once, with all that waits to be sent on it; no event comes of it."""
        if not stream.over:
            self._sender.control(frames.rst_stream(stream.number, code))
            self._reset.add(stream.number)
            self._remove(stream)

    def hold(self, stream: Stream) -> None:
        """Nobody takes what comes on a stream: the other side may fill its window, and no more."""
        stream.held = True

    def release(self, stream: Stream) -> None:
        """It is taken again."""
        stream.held = False
        self._windows.settle(stream)

    @property
    def corked(self) -> bool:
        """Whether data waits for `uncork`: because of `cork`, or because enough is in the output."""
        return self._sender.corked

    def cork(self) -> None:
        """The socket takes no more: data waits."""
        self._sender.corked = True

    def uncork(self) -> list[Event]:
        """It does again."""
        self._sender.corked = False
        return [StreamDrained(stream) for stream in self._sender.flush()]

    def drain(self) -> None:
        """No new streams, please; those that are open go on."""
        if self._draining or self.closed:
            return
        self._draining = True
        self._sender.control(frames.goaway(frames.STREAM_MASK, ErrorCode.NO_ERROR))
        self._sender.control(frames.frame(frames.PING, 0, 0, _DRAIN_PING))

    def refuse_more(self) -> None:
        """End the wait for the other side to have read that: what it opens from here on is not heard."""
        self.drain()
        if not self._drained and not self.closed:
            self._drained = True
            self._sender.control(frames.goaway(self.last_number, ErrorCode.NO_ERROR))

    def lost(self) -> list[Stream]:
        """The socket is gone, and all streams with what waits on them: these; no event comes of it."""
        self.closed = True
        gone, self._streams = list(self._streams.values()), {}
        self._sender.forget(gone)
        return gone

    # What frames mean, told by the reader.

    def on_data_head(self, number: int, length: int) -> None:
        """A DATA frame begins."""
        if not self._windows.take(length):
            raise ProtocolError(ErrorCode.FLOW_CONTROL_ERROR, "more data than the connection's window")
        stream = self._streams.get(number)
        self._current = None
        if stream is not None and not stream.ended_there:
            if self._windows.came(stream, length):
                self._current = stream
            else:
                self._stream_error(number, ErrorCode.FLOW_CONTROL_ERROR, "more data than the stream's window")
            return
        self._windows.lost(length)
        if stream is not None or not self._is_forgiven(number, "DATA"):
            self._stream_error(number, ErrorCode.STREAM_CLOSED, "data behind the end of a stream")

    def on_data(self, piece: memoryview) -> None:
        """A piece of it."""
        stream = self._current
        if stream is None or stream.over:
            return
        stream.received = True
        if stream.expected_bytes >= 0:
            stream.expected_bytes -= len(piece)
            if stream.expected_bytes < 0:
                self._stream_error(stream.number, ErrorCode.PROTOCOL_ERROR, "more than content-length says")
                return
        self._events.append(DataReceived(stream, piece))

    def on_data_end(self, *, end: bool) -> None:
        """It has come."""
        stream, self._current = self._current, None
        if end and stream is not None and not stream.over:
            self._ended(stream)

    def on_headers(self, number: int, block: bytes, *, end: bool, depends_on: int) -> None:
        """A header block: a request, or what ends one."""
        stream = self._streams.get(number)
        try:
            if stream is not None:
                self._trailers(stream, block, end=end)
            elif number <= self.last_number or (self._drained and number & 1):
                self._unheard(number, block)
            elif not number & 1:
                raise ProtocolError(ErrorCode.PROTOCOL_ERROR, f"a client opened stream {number}")
            else:
                self.last_number = number
                self._request(number, block, end=end)
        except StreamError as error:
            self._stream_error(number, error.code, error.detail)
        else:
            if depends_on == number:
                self._stream_error(number, ErrorCode.PROTOCOL_ERROR, "a stream that depends on itself")

    def on_priority(self, number: int, depends_on: int) -> None:
        """Ignored, as RFC 9113 has it, unless it makes no sense at all."""
        self.on_idle()
        if depends_on == number:
            self._stream_error(number, ErrorCode.PROTOCOL_ERROR, "a stream that depends on itself")
        elif depends_on < 0:
            self._stream_error(number, ErrorCode.FRAME_SIZE_ERROR, "a PRIORITY frame of a wrong length")

    def on_reset(self, number: int, code: int) -> None:
        """The other side gives a stream up."""
        stream = self._streams.get(number)
        if stream is None:
            if self._is_forgiven(number, "RST_STREAM") and number in self._reset:
                del self._reset[number]  # Envoy answers an early end with one; a second would say nothing
            else:
                self.on_idle()
            return
        self._remove(stream)
        self._events.append(StreamReset(stream, code, "reset by the other side"))
        if not stream.received and not self._useless.take(self._now_s):
            raise ProtocolError(ErrorCode.ENHANCE_YOUR_CALM, "too many streams that come to nothing")

    def on_settings(self, values: list[tuple[int, int]]) -> None:
        """What the other side wants."""
        if not self._settings.take(self._now_s):
            raise ProtocolError(ErrorCode.ENHANCE_YOUR_CALM, "too many SETTINGS frames")
        self.reader.charge(len(self._streams) >> _STREAMS_UNIT_BITS)
        for name, value in dict(values).items():  # the last of a name holds: each may touch every stream
            self._set(name, value)
        self._sender.control(frames.frame(frames.SETTINGS, frames.ACK, 0))
        # Not earlier: until the other side reads this, its smaller windows hold.
        self._drained_of([each for each in list(self._streams.values()) if self._sender.grew(each)])

    def on_settings_taken(self) -> None:
        """Ours are in force there; here they were from the start, because they only allow more."""
        self.on_idle()

    def on_ping(self, data: bytes, *, answer: bool) -> None:
        """Answered, or the answer to ours: then all that the other side opened before has come."""
        if answer:
            if self._draining and data == _DRAIN_PING:
                self.refuse_more()
        elif self._pings.take(self._now_s):
            self._sender.control(frames.frame(frames.PING, frames.ACK, 0, data))
        else:
            raise ProtocolError(ErrorCode.ENHANCE_YOUR_CALM, "too many PING frames")

    def on_window_update(self, number: int, step_bytes: int) -> None:
        """We may send more."""
        if number == 0:
            self._sender.window += step_bytes
            if not step_bytes or self._sender.window > frames.MAX_WINDOW:
                raise ProtocolError(_WINDOW_ERRORS[not step_bytes], f"a window made {step_bytes} larger")
            self._drained_of(self._sender.flush())
            return
        if (stream := self._streams.get(number)) is None:
            self._is_forgiven(number, "WINDOW_UPDATE")
            return
        stream.send_window += step_bytes
        if not step_bytes or stream.send_window > frames.MAX_WINDOW:
            code = _WINDOW_ERRORS[not step_bytes]
            self._stream_error(number, code, f"a window made {step_bytes} larger")
        elif self._sender.grew(stream):
            self._drained_of([stream])

    def on_idle(self) -> None:
        """A frame that says nothing."""
        if not self._idle.take(self._now_s):
            raise ProtocolError(ErrorCode.ENHANCE_YOUR_CALM, "too many frames that say nothing")

    def _request(self, number: int, block: bytes, *, end: bool) -> None:
        head = self._heads.request(block)
        self.reader.charge(_STREAM_UNITS)
        if len(self._streams) >= self._limits.max_streams:
            raise StreamError(ErrorCode.REFUSED_STREAM, "too many streams")
        if end and head.content_length > 0:
            raise StreamError(ErrorCode.PROTOCOL_ERROR, "less data than content-length says")
        stream = Stream(
            number,
            send_window=self._their_window,
            receive_window=self._limits.stream_window_bytes,
            expected_bytes=head.content_length,
        )
        self._streams[number] = stream
        self._events.append(RequestReceived(stream, head))
        if end:
            self._ended(stream)

    def _trailers(self, stream: Stream, block: bytes, *, end: bool) -> None:
        if stream.ended_there:
            self._heads.follow(block)
            raise StreamError(ErrorCode.STREAM_CLOSED, "headers behind the end of a stream")
        self._heads.trailers(block)
        if not end:
            raise StreamError(ErrorCode.PROTOCOL_ERROR, "a second head of a request")
        self._ended(stream)

    def _unheard(self, number: int, block: bytes) -> None:
        """A block of a stream that is over, or comes too late; the table must follow it all the same."""
        self._heads.follow(block)
        if not self._is_forgiven(number, "HEADERS"):
            raise ProtocolError(ErrorCode.STREAM_CLOSED, "headers on a closed stream")

    def _ended(self, stream: Stream) -> None:
        if stream.expected_bytes > 0:
            self._stream_error(stream.number, ErrorCode.PROTOCOL_ERROR, "less data than content-length says")
            return
        stream.ended_there = True
        self._events.append(StreamEnded(stream))

    def _is_forgiven(self, number: int, what: str) -> bool:
        """Whether a frame on a stream that is not open is one that was on its way when we ended it."""
        if number > self.last_number and self._drained:
            return True
        if number > self.last_number or not number & 1:
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, f"{what} on stream {number}, which nobody opened")
        return number in self._reset

    def _set(self, name: int, value: int) -> None:
        """One setting of theirs.

        Raises:
            ProtocolError: a value that it cannot have.
        """
        if name == Setting.INITIAL_WINDOW_SIZE:
            if value > frames.MAX_WINDOW:
                raise ProtocolError(ErrorCode.FLOW_CONTROL_ERROR, f"windows of {value} bytes")
            step, self._their_window = value - self._their_window, value
            for stream in self._streams.values():
                stream.send_window += step
                if stream.send_window > frames.MAX_WINDOW:
                    raise ProtocolError(ErrorCode.FLOW_CONTROL_ERROR, "a window that became too large")
        elif name == Setting.MAX_FRAME_SIZE:
            if not frames.DEFAULT_FRAME_BYTES <= value <= frames.MAX_FRAME_BYTES:
                raise ProtocolError(ErrorCode.PROTOCOL_ERROR, f"frames of {value} bytes")
            self._sender.max_frame_bytes = min(value, self._limits.max_frame_bytes)
        elif name == Setting.ENABLE_PUSH and value > 1:
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, f"ENABLE_PUSH {value}")
        elif name == Setting.HEADER_TABLE_SIZE and value < self._table_bytes:
            self._table_bytes = 0
            self._sender.table_limited()

    def _drained_of(self, streams: list[Stream]) -> None:
        self._events += [StreamDrained(stream) for stream in streams]

    def _sent_end(self, stream: Stream) -> None:
        """Our last frame of a stream is in the output."""
        if not stream.ended_there:
            self._reset.add(stream.number)
        self._remove(stream)

    def _remove(self, stream: Stream) -> None:
        del self._streams[stream.number]
        self._sender.forget((stream,))
        self._windows.settle(stream)

    def _stream_error(self, number: int, code: ErrorCode, detail: str) -> None:
        """Reset a stream for what the other side did on it, open or not."""
        if not self._useless.take(self._now_s):
            raise ProtocolError(ErrorCode.ENHANCE_YOUR_CALM, "too many streams that come to nothing")
        self._sender.control(frames.rst_stream(number, code))
        self._reset.add(number)
        stream = self._streams.get(number)
        if stream is not None:
            self._remove(stream)
            self._events.append(StreamReset(stream, code, detail))

    def _fail(self, code: ErrorCode, detail: str) -> None:
        self._sender.control(frames.goaway(self.last_number, code, detail.encode()))
        self._events.append(ConnectionFailed(code, detail, self.lost()))
