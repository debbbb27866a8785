"""What goes out: frames in order, as far as the other side's windows and the socket let them.

Owns the output that has not been taken, the connection's send window and what waits for windows. Rules:

* Control frames and headers never wait. Data waits for its stream's window, the connection's, and the socket
  (`corked`); trailers wait for the data before them.
* Streams that wait for the connection alone take turns, a frame each. One that waits for its own window is
  looked at when that grows, so that no frame of the other side costs a look at every stream.
* Data that waits is held out of a `Room` that connections share: who does not read may fill that. One short
  message a stream may always wait; what the stream itself was charged covers it.
* A stream that we end before the other side has is reset without an error behind its last frame, as
  RFC 9113 section 8.1 has it: nobody reads what would still come.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from epp.transport import frames
from epp.transport.frames import ErrorCode
from epp.transport.stream import Stream, Waiting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

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


class Sender:
    """The sending half of a connection.

    Args:
        on_end: told of a stream that we have ended, once its last frame is in the output.
        room: what data is held out of that waits.
    """

    def __init__(self, on_end: Callable[[Stream], None], room: Room) -> None:
        self._on_end, self._room_of_all = on_end, room
        self._output: list[bytes | memoryview] = []
        self._put_bytes = 0
        self._ready: dict[Stream, None] = {}
        self._table_due = False
        self.window = frames.DEFAULT_WINDOW_BYTES
        self.max_frame_bytes = frames.DEFAULT_FRAME_BYTES
        #: Set while the socket takes no more, and once as much was put out as it may take: data waits.
        self.corked = False

    def take(self) -> bytes:
        """What is to be written, which is then gone from here."""
        output, self._output = self._output, []
        self._put_bytes = 0
        return b"".join(output)

    def control(self, frame: bytes) -> None:
        """A frame that nothing holds up."""
        self._output.append(frame)

    def table_limited(self) -> None:
        """The other side allows a smaller dynamic table: the next block has to say that it is used."""
        self._table_due = True

    def headers(self, stream: Stream, block: bytes, *, end: bool = False) -> None:
        """A header block; behind data that waits, where there is some."""
        if stream.over:
            return
        if stream.waiting:
            stream.waiting.append(Waiting(None, block, end))
        else:
            self._headers(stream, block, end=end)

    def data(self, stream: Stream, data: bytes, *, prefix: bytes = b"", end: bool = False) -> bool:
        """Data of a stream: ``prefix`` and then ``data``, now or as soon as the windows let it.

        False where it must wait and there is no room for it: then the stream cannot go on.
        """
        if stream.over:
            return True
        size = len(prefix) + len(data)
        if not stream.waiting and self._room(stream, size) and size <= _SHORT_BYTES:
            stream.send_window -= size
            self.window -= size
            flags = frames.END_STREAM if end else 0
            self._output.append(frames.head(frames.DATA, flags, stream.number, size) + prefix)
            self._output.append(data)
            if end:
                self._end(stream)
            return True
        if stream.waiting is None:
            stream.waiting = deque()
        item = Waiting(memoryview(prefix + data if prefix else data), b"", end)
        stream.waiting.append(item)
        if len(stream.waiting) == 1:
            self._advance(stream)
        left = len(item.data or b"")
        if left > UNCOUNTED_BYTES or (left and len(stream.waiting) > 1):
            if not self._room_of_all.take_part(left + _ITEM_BYTES):
                return False
            item.taken_bytes = left + _ITEM_BYTES
        return True

    def grew(self, stream: Stream) -> bool:
        """A stream's window has grown: send of what waits; whether nothing waits any more."""
        return self._advance(stream) if stream.waiting and stream not in self._ready else False

    def flush(self) -> list[Stream]:
        """Room was made for everybody: send of what waits; the streams for which nothing waits any more."""
        drained = []
        while self._ready and self.window > 0 and not self.corked:
            stream = next(iter(self._ready))
            del self._ready[stream]
            if self._advance(stream, frames_at_most=1):
                drained.append(stream)
        return drained

    def forget(self, streams: Iterable[Stream]) -> None:
        """These are over, and what waited for them is gone."""
        for stream in streams:
            stream.over = True
            self._ready.pop(stream, None)
            if stream.waiting:
                stream.unsent = True
                for item in stream.waiting:
                    self._let_go(item)
            stream.waiting = None
            if stream.taken_bytes:
                self._room_of_all.give_back(stream.taken_bytes)
                stream.taken_bytes = 0

    def _let_go(self, item: Waiting) -> None:
        taken_bytes, item.taken_bytes = item.taken_bytes, 0
        if taken_bytes:
            self._room_of_all.give_back(taken_bytes)

    def _room(self, stream: Stream, size: int) -> bool:
        return not self.corked and (size == 0 or (size <= stream.send_window and size <= self.window))

    def _advance(self, stream: Stream, frames_at_most: int = 1 << 30) -> bool:
        """Send of what waits for a stream; whether nothing waits any more."""
        waiting = stream.waiting
        while waiting:
            item = waiting[0]
            if item.data is None:
                waiting.popleft()
                self._headers(stream, item.block, end=item.end)
                continue
            if not self._piece(stream, item):
                return False
            if not item.data:
                waiting.popleft()
                if item.taken_bytes:
                    self._let_go(item)
            frames_at_most -= 1
            if waiting and frames_at_most <= 0 and waiting[0].data is not None:
                self._ready[stream] = None
                return False
        return True

    def _piece(self, stream: Stream, item: Waiting) -> bool:
        """One frame of an item, which keeps the rest; False where there is no room."""
        data = item.data
        assert data is not None  # noqa: S101  # looked at before
        size = min(len(data), self.max_frame_bytes, max(0, stream.send_window), max(0, self.window))
        if self.corked or (data and size == 0):
            if self.corked or stream.send_window > 0:
                self._ready[stream] = None
            return False
        stream.send_window -= size
        self.window -= size
        end = item.end and size == len(data)
        flags = frames.END_STREAM if end else 0
        self._output.append(frames.head(frames.DATA, flags, stream.number, size))
        self._output.append(data[:size])
        item.data = data[size:]
        self._put_bytes += size
        if self._put_bytes >= _AT_ONCE_BYTES:
            self.corked = True
        if end:
            self._end(stream)
        return True

    def _headers(self, stream: Stream, block: bytes, *, end: bool) -> None:
        if self._table_due:
            self._table_due, block = False, _NO_TABLE + block
        flags = frames.END_HEADERS | (frames.END_STREAM if end else 0)
        for at in range(0, len(block) or 1, self.max_frame_bytes):
            piece = block[at : at + self.max_frame_bytes]
            last = at + len(piece) >= len(block)
            kind = frames.HEADERS if at == 0 else frames.CONTINUATION
            shown = (flags if last else flags & ~frames.END_HEADERS) if at == 0 else flags & 4 * last
            self._output.append(frames.frame(kind, shown, stream.number, piece))
        if end:
            self._end(stream)

    def _end(self, stream: Stream) -> None:
        if not stream.ended_there:
            self._output.append(frames.rst_stream(stream.number, ErrorCode.NO_ERROR))
        self._on_end(stream)
