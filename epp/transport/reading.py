"""Bytes to frames: cuts them, holds header blocks together, checks what one frame alone can have wrong.

Owns the bytes that have come and make no whole frame yet: never more than one control frame, because DATA is
handed on as it comes. Knows no stream: what frames mean is the connection's, by its methods ``on_*``.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from epp.transport import frames
from epp.transport.frames import ErrorCode, ProtocolError
from epp.transport.limits import UNLIMITED_UNITS

if TYPE_CHECKING:
    from epp.transport.connection import Connection
    from epp.transport.limits import Limits

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
    """Cuts frames.

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
