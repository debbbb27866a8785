"""The floor of a Python process: HTTP/2 framing and nothing around it, for the row ``framing``.

It shows what a gRPC library costs above the bytes themselves. It is not a server to build on (that is
`epp.http2`, the row ``builtin``): it takes every stream for a call of the one method it knows, so it decodes
no header, and it trusts its peer - no limits, no send windows, no CONTINUATION frames, no errors. Frame
layout: RFC 9113 section 4.1; gRPC's message prefix is one byte of compression flag and four of length.
"""

from __future__ import annotations

import asyncio
import struct
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Callable

_PREFACE_BYTES = 24
_HEAD_BYTES = 9
_PREFIX_BYTES = 5
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 8
_END_STREAM, _ACK, _END_HEADERS = 1, 1, 4
_HEADER_TABLE_SIZE, _INITIAL_WINDOW_SIZE = 1, 4
_STREAM_WINDOW_BYTES = 4 << 20
_CONNECTION_WINDOW_BYTES = 64 << 20


def _literal(name: bytes, value: bytes) -> bytes:
    """A header field neither indexed nor Huffman coded (RFC 7541 section 6.2.2), parts under 127 bytes."""
    return b"\0" + bytes((len(name),)) + name + bytes((len(value),)) + value


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    length = len(payload)
    return struct.pack(">BHBBI", length >> 16, length & 0xFFFF, kind, flags, stream) + payload


# 0x88 is ":status: 200" in the static table (RFC 7541 appendix A).
_RESPONSE_HEADERS = b"\x88" + _literal(b"content-type", b"application/grpc")
_TRAILERS = _literal(b"grpc-status", b"0")
_GREETING = _frame(
    _SETTINGS,
    0,
    0,
    struct.pack(">HIHI", _HEADER_TABLE_SIZE, 0, _INITIAL_WINDOW_SIZE, _STREAM_WINDOW_BYTES),
) + _frame(_WINDOW_UPDATE, 0, 0, struct.pack(">I", _CONNECTION_WINDOW_BYTES))


class Framing(asyncio.Protocol):
    """One HTTP/2 connection whose every stream is answered message by message.

    Args:
        answer: the reply's bytes for a message's bytes; called in the order of arrival.
    """

    def __init__(self, answer: Callable[[bytes], bytes]) -> None:
        self._answer = answer
        self._transport: asyncio.Transport | None = None
        self._rest = b""
        self._preface_seen = False
        self._streams: dict[int, bytearray] = {}
        self._replied: set[int] = set()
        self._unacknowledged_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Sends our settings and a wide window."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's derives from no asyncio class
        self._transport.write(_GREETING)

    def data_received(self, data: bytes) -> None:
        """Takes every whole frame and writes the replies to all of them at once."""
        data = self._rest + data if self._rest else data
        place, end = 0, len(data)
        if not self._preface_seen:
            if end < _PREFACE_BYTES:
                self._rest = data
                return
            place, self._preface_seen = _PREFACE_BYTES, True
        out: list[bytes] = []
        view = memoryview(data)
        while end - place >= _HEAD_BYTES:
            high, low, kind, flags, stream = struct.unpack_from(">BHBBI", data, place)
            start = place + _HEAD_BYTES
            stop = start + (high << 16 | low)
            if stop > end:
                break
            self._frame(kind, flags, stream, view[start:stop], out)
            place = stop
        self._rest = data[place:]
        if self._unacknowledged_bytes > _CONNECTION_WINDOW_BYTES // 4:
            out.append(_frame(_WINDOW_UPDATE, 0, 0, struct.pack(">I", self._unacknowledged_bytes)))
            self._unacknowledged_bytes = 0
        if out and self._transport is not None:
            self._transport.write(b"".join(out))

    def _frame(self, kind: int, flags: int, stream: int, payload: memoryview, out: list[bytes]) -> None:
        """One frame; frames that ask for nothing here are ignored."""
        if kind == _DATA:
            self._unacknowledged_bytes += len(payload)
            self._data(stream, payload, out)
            if flags & _END_STREAM and self._streams.pop(stream, None) is not None:
                self._replied.discard(stream)
                out.append(_frame(_HEADERS, _END_HEADERS | _END_STREAM, stream, _TRAILERS))
        elif kind == _HEADERS:
            self._streams[stream] = bytearray()
        elif kind == _RST_STREAM:
            self._streams.pop(stream, None)
            self._replied.discard(stream)
        elif kind in (_SETTINGS, _PING) and not flags & _ACK:
            out.append(_frame(kind, _ACK, 0, bytes(payload) if kind == _PING else b""))

    def _data(self, stream: int, payload: memoryview, out: list[bytes]) -> None:
        """Adds to a stream's bytes and answers each message that is complete."""
        held = self._streams.get(stream)
        if held is None:
            return
        held += payload
        while len(held) >= _PREFIX_BYTES:
            stop = _PREFIX_BYTES + int.from_bytes(held[1:_PREFIX_BYTES], "big")
            if len(held) < stop:
                return
            reply = self._answer(bytes(memoryview(held)[_PREFIX_BYTES:stop]))
            del held[:stop]
            if stream not in self._replied:
                self._replied.add(stream)
                out.append(_frame(_HEADERS, _END_HEADERS, stream, _RESPONSE_HEADERS))
            out.append(_frame(_DATA, 0, stream, struct.pack(">BI", 0, len(reply)) + reply))
