"""What goes out: frames in order, as far as the other side's windows and the socket let them.

Owns the output that has not been taken, the connection's send window and what waits for windows. Rules:

* Control frames and headers never wait. Data waits for its stream's window, the connection's, and the socket
  (`corked`); trailers wait for the data before them.
* Streams that wait for the connection alone take turns, a frame each. One that waits for its own window is
  looked at when that grows, so that no frame of the other side costs a look at every stream.
* Data that waits is held out of a `Room` that connections share. One short message a stream may always wait;
  what the stream itself was charged covers it.
* A stream that we end before the other side has is reset without an error behind its last frame, as
  RFC 9113 section 8.1 has it: nobody reads what would still come.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from epp.transport import frames
from epp.transport.frames import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from epp.transport.calls import Call
    from epp.transport.messages import Room

#: An update of the dynamic table's size to 0, due once where the other side wants a smaller one.
_NO_TABLE = b"\x20"
#: What goes out in one frame, uncounted: no peer may want shorter ones.
_SHORT_BYTES = 16 * 1024
#: What may wait on a stream without room: a pick.
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
    """The sending half of a connection.

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
