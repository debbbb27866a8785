"""The numbers of HTTP/2 and the layout of a frame (RFC 9113 sections 4, 6 and 7)."""

from __future__ import annotations

import struct
from enum import IntEnum

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD_BYTES = 9
#: Length in three bytes (one and two), type, flags, stream.
HEAD = struct.Struct(">BHBBL")
STREAM_MASK = 0x7FFFFFFF

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    range(10)
)

ACK = END_STREAM = 0x1
END_HEADERS = 0x4
PADDED = 0x8
#: Of HEADERS: five bytes of priority stand before the block.
WITH_PRIORITY = 0x20

#: Longest window, and largest step of one.
MAX_WINDOW = 2**31 - 1
#: What holds before anybody has said anything else.
DEFAULT_WINDOW_BYTES = 65_535
DEFAULT_FRAME_BYTES = 16_384
MAX_FRAME_BYTES = 2**24 - 1
DEFAULT_TABLE_BYTES = 4096


class ErrorCode(IntEnum):
    """Why a stream or a connection ends (RFC 9113 section 7)."""

    NO_ERROR = 0x0
    PROTOCOL_ERROR = 0x1
    FLOW_CONTROL_ERROR = 0x3
    STREAM_CLOSED = 0x5
    FRAME_SIZE_ERROR = 0x6
    REFUSED_STREAM = 0x7
    CANCEL = 0x8
    COMPRESSION_ERROR = 0x9
    ENHANCE_YOUR_CALM = 0xB


class ProtocolError(Exception):
    """The connection cannot go on. Never leaves `epp.rpc.http2`.

    Args:
        code: sent to the other side.
        detail: one sentence, sent too.
    """

    def __init__(self, code: ErrorCode, detail: str) -> None:
        self.code, self.detail = code, detail
        super().__init__(detail)


class StreamError(Exception):
    """One stream cannot go on: it is reset, with this code. Never leaves `epp.rpc.http2`."""

    def __init__(self, code: ErrorCode) -> None:
        self.code = code
        super().__init__(code)


class Setting(IntEnum):
    """What either side says of itself (RFC 9113 section 6.5.2)."""

    HEADER_TABLE_SIZE = 0x1
    ENABLE_PUSH = 0x2
    MAX_CONCURRENT_STREAMS = 0x3
    INITIAL_WINDOW_SIZE = 0x4
    MAX_FRAME_SIZE = 0x5
    MAX_HEADER_LIST_SIZE = 0x6


def head(kind: int, flags: int, stream_id: int, length: int) -> bytes:
    """The nine bytes before a payload of ``length`` bytes."""
    return HEAD.pack(length >> 16, length & 0xFFFF, kind, flags, stream_id)


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """A whole frame."""
    return head(kind, flags, stream_id, len(payload)) + payload


def window_update(stream_id: int, step_bytes: int) -> bytes:
    """Lets the other side send so many bytes more; stream 0 is the connection."""
    return frame(WINDOW_UPDATE, 0, stream_id, step_bytes.to_bytes(4, "big"))


def settings(values: dict[Setting, int]) -> bytes:
    """Our settings."""
    return frame(SETTINGS, 0, 0, b"".join(struct.pack(">HL", *pair) for pair in values.items()))


def rst_stream(number: int, code: int) -> bytes:
    """Ends a stream in both directions."""
    return frame(RST_STREAM, 0, number, code.to_bytes(4, "big"))


def goaway(last: int, code: int, detail: bytes = b"") -> bytes:
    """Ends a connection; streams above ``last`` were not heard."""
    return frame(GOAWAY, 0, 0, last.to_bytes(4, "big") + code.to_bytes(4, "big") + detail)
