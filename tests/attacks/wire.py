"""What attacks are put together from: header blocks, frames and messages, and generators of blobs."""

from __future__ import annotations

import gzip
import random
from functools import cache
from itertools import chain, repeat
from typing import TYPE_CHECKING, TypeAlias

from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH

from epp.extproc.modes import BodyMode
from epp.http2 import frames
from tests.kit.conversation import POST, request_body, request_headers, with_metadata, with_modes
from tests.kit.http2 import message
from tests.kit.rawpeer import PROCESS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

Blobs: TypeAlias = "Callable[[], Iterable[bytes]]"
MIB = 1 << 20
_LAST_STREAM = frames.STREAM_MASK


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
        for start in range(3, _LAST_STREAM - 2 * at_once, 2 * at_once):
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
