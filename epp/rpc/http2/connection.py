"""The server's side of an HTTP/2 connection that carries gRPC calls (RFC 9113): bytes in, events out.

`FrameReader` cuts bytes into frames, `Connection` knows what they mean, a `Call` is one stream with its
messages, `Sender` queues what goes out. Rules:

* Nothing is raised at the caller, whatever comes. What breaks the connection sets `failed`, cancels every
  call and puts a GOAWAY in the output; what breaks a stream cancels its call and puts a RST_STREAM there.
* A call that cannot be served is answered here: an unknown path, another content type, another method than
  POST, an encoding that is not known.
* A call's events end with `CallCancelled`, exactly once, unless the layer above called `Call.finish`. If the
  stream then goes while some of the answer still waits to be sent, it comes after all.
* The last message and the status are one write: they stand side by side in the output. What is sent on a call
  that is over is dropped.
* Windows are enlarged in large steps as data comes, but for streams that are held.
* What has come of a message is held out of a `Room` that connections share. A call that finds none there gets
  `NoRoom`, and after it nothing but `CallCancelled`: the layer above ends it.
* An open stream takes `STREAM_BYTES` of the room. One that is alone on its connection takes none, so that a
  health check on a connection of its own is answered however full the room is.
* `drain` says that no new streams are wanted, waits for the other side to have read that, and then says up to
  which stream it was heard: no request is lost between the two (RFC 9113 section 6.8).
"""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from epp.rpc.http2 import frames
from epp.rpc.http2.frames import ErrorCode, ProtocolError, Setting, StreamError
from epp.rpc.http2.headers import HeadReader, encode
from epp.rpc.http2.limits import PING_FRAMES, SETTINGS_FRAMES, UNLIMITED_UNITS, Bucket, Limits, announced
from epp.rpc.http2.messages import UNBOUNDED, MessageError, MessageReader, NoRoomError, prefix
from epp.rpc.http2.status import HEAD_BLOCK, Status, trailers

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable

    from epp.rpc.http2.headers import RequestHead
    from epp.rpc.http2.messages import BodilessLimit, Message, Room


class Call:
    """One call with its stream.

    Args:
        connection: it came on.
        number: of its stream.
        head: of its request.
        reader: of its messages.
        send_window: bytes that the other side takes.
        receive_window: bytes that it may send.

    Attributes:
        path: ``/package.Service/Method``.
        owner: for the layer above.
        over: whether it has ended, in either way; what was sent may still wait.
        error: why its messages could not be read, None while they could.
        started: whether the layer above hears of it.
        deaf: whether further messages are dropped.
        refusal: HTTP status and text for a request that is no gRPC.
        expected_bytes: what is missing of its ``content-length``, negative where there is none.
        ended_there: whether the other side has ended the stream.
        gone: whether the stream is over: ended by both, or reset.
        unsent: whether it went while something waited to be sent.
        held: whether its receive window stays as it is, because nobody takes what comes.
        received: whether it has carried data.
        taken_bytes: of the room, while it is open.
        waiting: what waits to be sent.
    """

    __slots__ = (
        "_begun", "_connection", "deaf", "ended_there", "error", "expected_bytes", "gone", "held", "number",
        "over", "owner", "path", "reader", "receive_window", "received", "refusal", "send_window", "started",
        "taken_bytes", "unsent", "waiting",
    )  # fmt: skip

    def __init__(
        self,
        connection: Connection,
        number: int,
        head: RequestHead,
        reader: MessageReader,
        *,
        send_window: int,
        receive_window: int,
    ) -> None:
        self._connection, self.number, self.path, self.reader = connection, number, head.path, reader
        self.send_window, self.receive_window = send_window, receive_window
        self.expected_bytes = head.content_length
        self._begun = self.over = self.started = self.deaf = False
        self.ended_there = self.gone = self.unsent = self.held = self.received = False
        self.taken_bytes = 0
        self.waiting: deque[Waiting] | None = None
        self.refusal: tuple[bytes, bytes] | None = None
        self.owner: Any = None
        self.error: MessageError | None = None

    @property
    def blocked(self) -> bool:
        """Whether something that was sent waits for a window; `CallDrained` comes when it no longer does."""
        return bool(self.waiting)

    @property
    def room(self) -> Room:
        """What its connection holds messages out of."""
        return self.reader.room

    def send(self, message: bytes) -> None:
        """Send a message. One that is too long, or must wait and finds no room, ends the call instead."""
        if self.over:
            return
        longest = self._connection.max_send_bytes
        if len(message) > longest:
            words = f"Sent message larger than max ({len(message)} vs. {longest})"
            self.finish(Status.RESOURCE_EXHAUSTED, words)
            return
        sender = self._connection.sender
        if not self._begun:
            self._begun = True
            sender.headers(self, HEAD_BLOCK)
        if not sender.data(self, message, prefix=prefix(len(message))):
            self.end()
            self.reset(ErrorCode.ENHANCE_YOUR_CALM)

    def finish(self, status: Status, words: str = "", *, last: bytes | None = None) -> bool:
        """End the call, with a last message where there is one.

        Returns:
            False where the last message is too long, or must wait and finds no room.
        """
        if self.over:
            return True
        if last is not None:
            self.send(last)
            if self.over:
                return False
        self.end()
        head = b"" if self._begun else HEAD_BLOCK
        self._connection.sender.headers(self, head + trailers(status, words), end=True)
        return True

    def flush(self) -> None:
        """Write what was sent, unless a read is being played: then it is written with the rest."""
        self._connection.flush()

    def end(self) -> None:
        """Mark it as over, and give back what has come of a message."""
        self.over = True
        self.reader.discard()

    def reset(self, code: ErrorCode) -> None:
        """Reset the stream, with all that waits to be sent on it; no event comes of it."""
        self._connection.reset(self, code)

    def hold(self) -> None:
        """Let the other side fill the stream's window, and send no more."""
        self.held = True

    def release(self) -> None:
        """Let it send again."""
        self.held = False
        self._connection.enlarge(self)


@dataclass(slots=True)
class CallEvent:
    """What has become of a call."""

    call: Call


class CallStarted(CallEvent):
    """A call for a path that is served."""


@dataclass(slots=True)
class MessageReceived(CallEvent):
    """A message, good until the next bytes are received."""

    message: Message


class CallEnded(CallEvent):
    """No message will come any more; the call is still to be finished."""


class CallDrained(CallEvent):
    """All that was sent is on its way."""


class NoRoom(CallEvent):
    """What comes finds no room: no message will come any more; the call is still to be finished."""


class CallCancelled(CallEvent):
    """The call was ended by the other side, or the last of it was not sent."""


#: An update of the dynamic table's size to 0, due once where the other side wants a smaller one.
_NO_TABLE = b"\x20"
#: What goes out in one frame, uncounted: no peer may want shorter ones.
_SHORT_BYTES = 16 * 1024
#: What may wait on a stream without room: a decision.
UNCOUNTED_BYTES = 1024
#: What an item that waits takes beside its data.
_ITEM_BYTES = 512
#: So much data is put into the output before anybody has seen whether the socket takes it.
_AT_ONCE_BYTES = 1024 * 1024


@dataclass(slots=True)
class Waiting:
    """Something to be sent once there is room for it.

    Attributes:
        data: of a DATA frame; where it is None, ``block`` is sent.
        block: trailers.
        end: whether the stream ends with it.
        taken_bytes: of the room that it is held out of.
    """

    data: memoryview | None
    block: bytes
    end: bool
    taken_bytes: int = 0


class Sender:
    """The sending half: frames in order, as far as the other side's windows and the socket let them.

    * Control frames and headers never wait. Data waits for its stream's window, the connection's, and the
      socket (`corked`); trailers wait for the data before them.
    * Streams that wait for the connection alone take turns, a frame each. One that waits for its own window
      is looked at when that grows, so that no frame of the other side costs a look at every stream.
    * Data that waits is held out of the room. One short message a stream may always wait; what the stream
      itself was charged covers it.
    * A stream that we end before the other side has is reset without an error behind its last frame, as
      RFC 9113 section 8.1 has it: nobody reads what would still come.

    Args:
        on_end: called with a stream that we have ended, once its last frame is in the output.
        room: what data is held out of that waits.

    Attributes:
        window: bytes that the other side takes on the connection.
        max_frame_bytes: longest frame that it takes.
        corked: whether data waits: the socket takes no more, or enough is in the output.
    """

    def __init__(self, on_end: Callable[[Call], None], room: Room) -> None:
        self._on_end, self._room = on_end, room
        self._output: list[bytes | memoryview] = []
        self._put_bytes = 0
        self._ready: dict[Call, None] = {}
        self._table_due = False
        self.window = frames.DEFAULT_WINDOW_BYTES
        self.max_frame_bytes = frames.DEFAULT_FRAME_BYTES
        self.corked = False

    def take(self) -> bytes:
        """Take what is to be written."""
        output, self._output = self._output, []
        self._put_bytes = 0
        return b"".join(output)

    def control(self, frame: bytes) -> None:
        """Send a frame that nothing holds up."""
        self._output.append(frame)

    def limit_table(self) -> None:
        """Have the next block say that no dynamic table is used: the other side allows a smaller one."""
        self._table_due = True

    def headers(self, call: Call, block: bytes, *, end: bool = False) -> None:
        """Send a header block, behind data that waits."""
        if call.gone:
            return
        if call.waiting:
            call.waiting.append(Waiting(None, block, end))
        else:
            self._headers(call, block, end=end)

    def data(self, call: Call, data: bytes, *, prefix: bytes = b"", end: bool = False) -> bool:
        """Send ``prefix`` and ``data``, now or as soon as windows let them.

        Returns:
            False where it must wait and there is no room for it: then the stream is to be reset.
        """
        if call.gone:
            return True
        size = len(prefix) + len(data)
        if (
            not (call.waiting or self.corked)
            and size <= _SHORT_BYTES
            and ((size <= call.send_window and size <= self.window) or not size)
        ):
            call.send_window -= size
            self.window -= size
            self._output.append(frames.head(frames.DATA, frames.END_STREAM * end, call.number, size) + prefix)
            self._output.append(data)
            if end:
                self._end(call)
            return True
        if call.waiting is None:
            call.waiting = deque()
        item = Waiting(memoryview(prefix + data), b"", end)
        call.waiting.append(item)
        if len(call.waiting) == 1:
            self._advance(call)
        left = len(item.data or b"")
        if left > UNCOUNTED_BYTES or (left and len(call.waiting) > 1):
            if not self._room.reserve(left + _ITEM_BYTES):
                return False
            item.taken_bytes = left + _ITEM_BYTES
        return True

    def grew(self, call: Call) -> bool:
        """Send of what waits, once a stream's window has grown; whether nothing waits any more."""
        return self._advance(call) if call.waiting and call not in self._ready else False

    def flush(self) -> list[Call]:
        """Send of what waits for the connection or the socket; the streams for which nothing waits now."""
        drained = []
        while self._ready and self.window > 0 and not self.corked:
            call = next(iter(self._ready))
            del self._ready[call]
            if self._advance(call, frames_at_most=1):
                drained.append(call)
        return drained

    def forget(self, calls: Iterable[Call]) -> None:
        """Drop what waits for streams that are gone."""
        for call in calls:
            call.gone = True
            self._ready.pop(call, None)
            call.unsent = bool(call.waiting)
            taken_bytes = call.taken_bytes + sum(item.taken_bytes for item in call.waiting or ())
            if taken_bytes:
                self._room.release(taken_bytes)
            call.waiting, call.taken_bytes = None, 0

    def _advance(self, call: Call, frames_at_most: int = 1 << 30) -> bool:
        """Send of what waits for a stream; whether nothing waits any more."""
        waiting = call.waiting
        while waiting:
            item = waiting[0]
            if item.data is None:
                waiting.popleft()
                self._headers(call, item.block, end=item.end)
                continue
            if not self._piece(call, item, item.data):
                return False
            if not item.data:
                waiting.popleft()
                if item.taken_bytes:
                    self._room.release(item.taken_bytes)
            frames_at_most -= 1
            if waiting and frames_at_most <= 0 and waiting[0].data is not None:
                self._ready[call] = None
                return False
        return True

    def _piece(self, call: Call, item: Waiting, data: memoryview) -> bool:
        """Send one frame of an item, which keeps the rest; False where no window is left."""
        size = min(len(data), self.max_frame_bytes, max(0, call.send_window), max(0, self.window))
        if self.corked or (data and size == 0):
            if self.corked or call.send_window > 0:
                self._ready[call] = None
            return False
        call.send_window -= size
        self.window -= size
        end = item.end and size == len(data)
        self._output.append(frames.head(frames.DATA, frames.END_STREAM * end, call.number, size))
        self._output.append(data[:size])
        item.data = data[size:]
        self._put_bytes += size
        if self._put_bytes >= _AT_ONCE_BYTES:
            self.corked = True
        if end:
            self._end(call)
        return True

    def _headers(self, call: Call, block: bytes, *, end: bool) -> None:
        """Send a block, which is always short enough for one frame."""
        if self._table_due:
            self._table_due, block = False, _NO_TABLE + block
        flags = frames.END_HEADERS | frames.END_STREAM * end
        self._output.append(frames.frame(frames.HEADERS, flags, call.number, block))
        if end:
            self._end(call)

    def _end(self, call: Call) -> None:
        if not call.ended_there:
            self._output.append(frames.rst_stream(call.number, ErrorCode.NO_ERROR))
        self._on_end(call)


_SETTING = struct.Struct(">HL")
_PRIORITY_BYTES = 5
#: Kinds that speak of a stream, and kinds that speak of the connection.
_OF_STREAMS = {
    frames.DATA,
    frames.HEADERS,
    frames.PRIORITY,
    frames.RST_STREAM,
    frames.PUSH_PROMISE,
    frames.CONTINUATION,
}
_OF_CONNECTION = {frames.SETTINGS, frames.PING, frames.GOAWAY}
#: Lengths of frames that have only one.
_LENGTHS = {frames.RST_STREAM: 4, frames.PING: 8, frames.WINDOW_UPDATE: 4}
#: Longest piece of a DATA frame that is passed on at once: a piece can be 26,000 empty gRPC messages.
_PIECE_BYTES = 128 * 1024
#: So much payload costs about as much as a frame.
_PAYLOAD_UNIT_BYTES = 8 * 1024


class FrameReader:
    """Cuts bytes into frames, holds header blocks together, checks what one frame alone can have wrong.

    Holds the bytes that make no whole frame yet: never more than one control frame, because DATA is handed on
    as it comes. Knows no stream: what frames mean is the connection's, by its methods ``on_*``.

    Args:
        connection: what they mean.
        limits: how long they may be.

    Attributes:
        begun: whether preface and settings have come.
        units: work units that may still be used, granted by the owner; `feed` stops where there are none.
        more: whether it stopped; call it again, without data, once there are more units.
    """

    def __init__(self, connection: Connection, limits: Limits) -> None:
        self._connection, self._limits = connection, limits
        self._rest = b""
        self._preface = True
        self.begun = self.more = False
        self.units = UNLIMITED_UNITS
        #: Of a frame whose payload is taken as it comes: bytes that are missing, padding among them.
        self._left = self._padding = 0
        self._padded = self._skipping = self._ends = self._empty = False
        #: A header block in several frames: its bytes, then stream, flags, frames and dependency.
        self._block: bytearray | None = None
        self._block_of, self._block_flags, self._block_frames, self._block_depends = 0, 0, 0, -1

    def feed(self, data: bytes) -> None:
        """Cut the frames of ``data`` and of what was left by the call before.

        Raises:
            ProtocolError: the connection cannot go on.
        """
        self.more = False
        if self._rest:
            data = self._rest + data
            self._rest = b""
        at, end, view = 0, len(data), memoryview(data)
        if self._preface:
            if not frames.PREFACE.startswith(data[: len(frames.PREFACE)]):
                raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "this is no HTTP/2: the preface is missing")
            if end < len(frames.PREFACE):
                self._rest = data
                return
            self._preface, at = False, len(frames.PREFACE)
        while at < end:
            if self._left:
                at = self._payload(view, at, end)
                continue
            if self.units <= 0:
                self.more = True
                break
            self.units -= 1
            if end - at < frames.HEAD_BYTES:
                break
            high, low, kind, flags, number = frames.HEAD.unpack_from(data, at)
            length, number = high << 16 | low, number & frames.STREAM_MASK
            self._check(kind, flags, number, length)
            start = at + frames.HEAD_BYTES
            if kind == frames.DATA or kind > frames.CONTINUATION:
                self.units -= 1
                self._begin(kind, flags, number, length)
                at = start
                continue
            if start + length > end:
                break
            at = start + length
            self._control(kind, flags, number, view[start:at])
        self._rest = data[at:]

    def charge(self, units: int) -> None:
        """Count work that a frame's head does not show."""
        self.units -= units

    def _check(self, kind: int, flags: int, number: int, length: int) -> None:
        """Refuse what a frame's head alone can have wrong.

        Raises:
            ProtocolError: it has.
        """
        limits = self._limits
        of_any_length = kind == frames.DATA or kind > frames.CONTINUATION
        longest = limits.max_frame_bytes if of_any_length else limits.max_control_bytes
        wrong = ""
        if length > longest or _LENGTHS.get(kind, length) != length:
            raise ProtocolError(ErrorCode.FRAME_SIZE_ERROR, f"a frame of type {kind} has {length} bytes")
        if self._block is not None and (kind != frames.CONTINUATION or number != self._block_of):
            wrong = "another frame within a header block"
        elif not self.begun and (kind != frames.SETTINGS or flags & frames.ACK):
            wrong = "the first frame is not SETTINGS"
        elif (kind in _OF_STREAMS and not number) or (kind in _OF_CONNECTION and number):
            wrong = f"a frame of type {kind} on stream {number}"
        if wrong:
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, wrong)
        self.begun = True

    def _begin(self, kind: int, flags: int, number: int, length: int) -> None:
        """Begin a frame that is taken as it comes: DATA, or of a kind that nobody knows."""
        self._left, self._padding = length, 0
        self._skipping = kind != frames.DATA
        if self._skipping:
            self._connection.on_idle()
            return
        self._ends = bool(flags & frames.END_STREAM)
        self._padded, self._empty = bool(flags & frames.PADDED), True
        if self._padded and not length:
            raise ProtocolError(ErrorCode.FRAME_SIZE_ERROR, "padding without its length")
        self._connection.on_data_head(number, length)
        if not length:
            self._end_of_data()

    def _payload(self, view: memoryview, at: int, end: int) -> int:
        """Take what there is of such a frame; where the rest begins."""
        if self._padded and not self._skipping:
            self._padded, self._padding = False, view[at]
            self._left -= 1
            at += 1
            if self._padding > self._left:
                raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "more padding than frame")
        else:
            # Less is left than the padding once a read has ended within it.
            content = 0 if self._skipping else max(0, self._left - self._padding)
            size = min(content or self._left, end - at, _PIECE_BYTES)
            if size > _PAYLOAD_UNIT_BYTES:
                self.units -= size // _PAYLOAD_UNIT_BYTES
            if content:
                self._empty = False
                self._connection.on_data(view[at : at + size])
            self._left -= size
            at += size
        if not self._left and not self._skipping:
            self._end_of_data()
        return at

    def _end_of_data(self) -> None:
        if self._empty and not self._ends:
            self._connection.on_idle()
        self._connection.on_data_end(end=self._ends)

    def _control(self, kind: int, flags: int, number: int, payload: memoryview) -> None:
        connection = self._connection
        if kind == frames.HEADERS:
            self._headers(flags, number, payload)
        elif kind == frames.WINDOW_UPDATE:
            connection.on_window_update(number, _stream_number(payload))
        elif kind == frames.RST_STREAM:
            connection.on_reset(number)
        elif kind == frames.PING:
            connection.on_ping(bytes(payload), answer=bool(flags & frames.ACK))
        elif kind == frames.SETTINGS:
            self._settings(flags, payload)
        elif kind == frames.CONTINUATION:
            self._continuation(flags, payload)
        elif kind == frames.PRIORITY:
            whole = len(payload) == _PRIORITY_BYTES
            connection.on_priority(number, _stream_number(payload) if whole else -1)
        elif kind == frames.PUSH_PROMISE:
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "a client cannot push")
        else:  # GOAWAY: what is open goes on, and nothing new would come anyway
            connection.on_idle()

    def _settings(self, flags: int, payload: memoryview) -> None:
        answer = flags & frames.ACK
        if (answer and payload) or len(payload) % _SETTING.size:
            raise ProtocolError(ErrorCode.FRAME_SIZE_ERROR, f"{len(payload)} bytes of settings")
        if answer:  # ours hold from the start, because they only allow more
            self._connection.on_idle()
        else:
            self._connection.on_settings(list(_SETTING.iter_unpack(payload)))

    def _headers(self, flags: int, number: int, payload: memoryview) -> None:
        start, stop, depends_on = 0, len(payload), -1
        if flags & frames.PADDED:
            if not payload:
                raise ProtocolError(ErrorCode.FRAME_SIZE_ERROR, "padding without its length")
            start, stop = 1, stop - payload[0]
        if flags & frames.WITH_PRIORITY:
            depends_on = _stream_number(payload[start:])
            start += _PRIORITY_BYTES
        if start > stop:
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "padding or priority longer than the frame")
        self._block, self._block_of, self._block_flags = bytearray(payload[start:stop]), number, flags
        self._block_frames, self._block_depends = 0, depends_on
        self._end_block(flags)

    def _continuation(self, flags: int, payload: memoryview) -> None:
        if self._block is None:
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "CONTINUATION of nothing")
        self._block += payload
        self._block_frames += 1
        limits = self._limits
        if self._block_frames > limits.max_continuations or len(self._block) > limits.max_control_bytes:
            raise ProtocolError(ErrorCode.ENHANCE_YOUR_CALM, "a header block without end")
        self._end_block(flags)

    def _end_block(self, flags: int) -> None:
        if flags & frames.END_HEADERS and self._block is not None:
            block, self._block = bytes(self._block), None
            ends = bool(self._block_flags & frames.END_STREAM)
            self._connection.on_headers(self._block_of, block, end=ends, depends_on=self._block_depends)


def _stream_number(payload: memoryview) -> int:
    """The first 31 bits behind the reserved one."""
    return int.from_bytes(payload[:4], "big") & frames.STREAM_MASK


#: What an open stream takes with all that belongs to it here and above: its objects, a decision, a short
#: answer that waits. Measured: 2 KB opened, 6 KB decided.
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
