"""Bytes to frames: cuts them, holds header blocks together, checks what one frame alone can have wrong.

Owns the bytes that have come and make no whole frame yet: never more than one control frame, because DATA is
handed on as it comes. Knows no stream: what frames mean is the connection's, which is told of them by the
methods of `Sink`.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Protocol

from epp.transport import frames
from epp.transport.errors import ProtocolError
from epp.transport.frames import ErrorCode
from epp.transport.limits import UNLIMITED_UNITS

if TYPE_CHECKING:
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


class Sink(Protocol):
    """What frames mean. Each may raise `ProtocolError`."""

    def on_data_head(self, number: int, length: int) -> None:
        """A DATA frame begins; padding counts."""

    def on_data(self, piece: memoryview) -> None:
        """A piece of it."""

    def on_data_end(self, *, end: bool) -> None:
        """It has come; ``end`` if its stream ends with it."""

    def on_headers(self, number: int, block: bytes, *, end: bool, depends_on: int) -> None:
        """A whole block; ``depends_on`` is negative where no priority is told."""

    def on_priority(self, number: int, depends_on: int) -> None:
        """A PRIORITY frame; ``depends_on`` is negative where it has a wrong length."""

    def on_reset(self, number: int, code: int) -> None:
        """A RST_STREAM frame."""

    def on_settings(self, values: list[tuple[int, int]]) -> None:
        """A SETTINGS frame."""

    def on_settings_taken(self) -> None:
        """The other side has ours."""

    def on_ping(self, data: bytes, *, answer: bool) -> None:
        """A PING frame."""

    def on_window_update(self, number: int, step_bytes: int) -> None:
        """A WINDOW_UPDATE frame."""

    def on_idle(self) -> None:
        """A frame that says nothing."""


class FrameReader:
    """Cuts frames.

    Args:
        sink: told of them, in order.
        limits: how long they may be.
    """

    def __init__(self, sink: Sink, limits: Limits) -> None:
        self._sink, self._limits = sink, limits
        self._rest = b""
        self._preface = True
        #: Whether preface and settings have come.
        self.begun = False
        #: Work units that may still be used; its owner grants them, and `feed` stops where there are none.
        self.units = UNLIMITED_UNITS
        #: Whether it stopped, and bytes may be left: call it again, without data, once there are more units.
        self.more = False
        #: Of a frame whose payload is taken as it comes: bytes that are missing, padding among them.
        self._left = self._padding = 0
        self._padded = self._skipping = self._ends = self._empty = False
        #: Of a header block in several frames.
        self._block: bytearray | None = None
        self._block_of, self._block_ends, self._block_frames, self._block_depends = 0, False, 0, -1

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
            begin = data[: len(frames.PREFACE)]
            if not frames.PREFACE.startswith(begin):
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
        """What a frame's head alone can have wrong.

        Raises:
            ProtocolError: it has.
        """
        if kind == frames.DATA or kind > frames.CONTINUATION:
            longest = self._limits.max_frame_bytes
        else:
            longest = self._limits.max_control_bytes
        if length > longest or _LENGTHS.get(kind, length) != length:
            raise ProtocolError(
                ErrorCode.FRAME_SIZE_ERROR, f"a frame of type {kind} with a length of {length}"
            )
        if self._block is not None and (kind != frames.CONTINUATION or number != self._block_of):
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "another frame within a header block")
        if not self.begun:
            if kind != frames.SETTINGS or flags & frames.ACK:
                raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "the first frame is not SETTINGS")
            self.begun = True
        if (kind in _OF_STREAMS and not number) or (kind in _OF_CONNECTION and number):
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, f"a frame of type {kind} on stream {number}")

    def _begin(self, kind: int, flags: int, number: int, length: int) -> None:
        """A frame that is taken as it comes: DATA, or of a kind that nobody knows."""
        self._left, self._padding = length, 0
        self._skipping = kind != frames.DATA
        if self._skipping:
            self._sink.on_idle()
            return
        self._ends = bool(flags & frames.END_STREAM)
        self._padded, self._empty = bool(flags & frames.PADDED), True
        if self._padded and not length:
            raise ProtocolError(
                ErrorCode.FRAME_SIZE_ERROR, "a padded frame without the length of its padding"
            )
        self._sink.on_data_head(number, length)
        if not length:
            self._end_of_data()

    def _payload(self, view: memoryview, at: int, end: int) -> int:
        """Of such a frame, what there is; where the rest begins."""
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
                self._sink.on_data(view[at : at + size])
            self._left -= size
            at += size
        if not self._left and not self._skipping:
            self._end_of_data()
        return at

    def _end_of_data(self) -> None:
        if self._empty and not self._ends:
            self._sink.on_idle()
        self._sink.on_data_end(end=self._ends)

    def _control(self, kind: int, flags: int, number: int, payload: memoryview) -> None:
        sink = self._sink
        if kind == frames.HEADERS:
            self._headers(flags, number, payload)
        elif kind == frames.WINDOW_UPDATE:
            sink.on_window_update(number, int.from_bytes(payload, "big") & frames.STREAM_MASK)
        elif kind == frames.RST_STREAM:
            sink.on_reset(number, int.from_bytes(payload, "big"))
        elif kind == frames.PING:
            sink.on_ping(bytes(payload), answer=bool(flags & frames.ACK))
        elif kind == frames.SETTINGS:
            self._settings(flags, payload)
        elif kind == frames.CONTINUATION:
            self._continuation(flags, payload)
        elif kind == frames.PRIORITY:
            whole = len(payload) == _PRIORITY_BYTES
            sink.on_priority(number, int.from_bytes(payload[:4], "big") & frames.STREAM_MASK if whole else -1)
        elif kind == frames.PUSH_PROMISE:
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "a client cannot push")
        else:  # GOAWAY: what is open goes on, and nothing new would come anyway
            sink.on_idle()

    def _settings(self, flags: int, payload: memoryview) -> None:
        if flags & frames.ACK:
            if payload:
                raise ProtocolError(ErrorCode.FRAME_SIZE_ERROR, "settings in an acknowledgement")
            self._sink.on_settings_taken()
            return
        if len(payload) % _SETTING.size:
            raise ProtocolError(ErrorCode.FRAME_SIZE_ERROR, f"{len(payload)} bytes of settings")
        self._sink.on_settings(list(_SETTING.iter_unpack(payload)))

    def _headers(self, flags: int, number: int, payload: memoryview) -> None:
        start, stop, depends_on = 0, len(payload), -1
        if flags & frames.PADDED:
            if not payload:
                raise ProtocolError(ErrorCode.FRAME_SIZE_ERROR, "padding without its length")
            start, stop = 1, stop - payload[0]
        if flags & frames.WITH_PRIORITY:
            depends_on = int.from_bytes(payload[start : start + 4], "big") & frames.STREAM_MASK
            start += _PRIORITY_BYTES
        if start > stop:
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "padding or priority longer than the frame")
        block, ends = bytes(payload[start:stop]), bool(flags & frames.END_STREAM)
        if flags & frames.END_HEADERS:
            self._sink.on_headers(number, block, end=ends, depends_on=depends_on)
            return
        self._block, self._block_of, self._block_ends = bytearray(block), number, ends
        self._block_frames, self._block_depends = 0, depends_on

    def _continuation(self, flags: int, payload: memoryview) -> None:
        if self._block is None:
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "CONTINUATION of nothing")
        self._block += payload
        self._block_frames += 1
        limits = self._limits
        if self._block_frames > limits.max_continuations or len(self._block) > limits.max_control_bytes:
            raise ProtocolError(ErrorCode.ENHANCE_YOUR_CALM, "a header block without end")
        if flags & frames.END_HEADERS:
            block, self._block = bytes(self._block), None
            self._sink.on_headers(self._block_of, block, end=self._block_ends, depends_on=self._block_depends)
