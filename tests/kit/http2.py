"""The client's side of HTTP/2, built of frames by hand: right or wrong, as wanted."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hpack import Decoder, Encoder

from epp.rpc.http2 import frames
from epp.rpc.http2.connection import Connection
from epp.rpc.http2.messages import prefix

if TYPE_CHECKING:
    from collections.abc import Iterable

    from epp.rpc.http2.limits import Limits

PATH = b"/test.Service/Method"
REQUEST = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", PATH),
    (b":authority", b"picker"),
    (b"te", b"trailers"),
    (b"content-type", b"application/grpc"),
)
Fields = tuple[tuple[bytes, bytes], ...]


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame that was sent to us."""

    kind: int
    flags: int
    number: int
    payload: bytes

    @property
    def code(self) -> int:
        """The error code of RST_STREAM and GOAWAY."""
        at = 4 if self.kind == frames.GOAWAY else 0
        return int.from_bytes(self.payload[at : at + 4], "big")

    @property
    def ends(self) -> bool:
        """Whether it ends its stream."""
        return self.kind in (frames.DATA, frames.HEADERS) and bool(self.flags & frames.END_STREAM)


def cut(data: bytes) -> list[Frame]:
    """Bytes to frames; they must be whole."""
    found = []
    while data:
        high, low, kind, flags, number = struct.unpack_from(">BHBBL", data)
        end = 9 + (high << 16 | low)
        assert len(data) >= end, "half a frame was written"
        found.append(Frame(kind, flags, number, data[9:end]))
        data = data[end:]
    return found


def settings(**values: int) -> bytes:
    """A SETTINGS frame, settings by their names in lower case."""
    return frames.settings({frames.Setting[name.upper()]: value for name, value in values.items()})


def message(body: bytes, *, flag: int = 0) -> bytes:
    """A gRPC message with what stands before it."""
    return bytes((flag,)) + prefix(len(body))[1:] + body


@dataclass
class Client:
    """Speaks to a `Connection`.

    Attributes:
        encoder: makes its header blocks.
        decoder: reads ours.
    """

    encoder: Encoder = field(default_factory=Encoder)
    decoder: Decoder = field(default_factory=Decoder)

    def hello(self, **values: int) -> bytes:
        """Preface and settings."""
        return frames.PREFACE + settings(**values)

    def headers(self, number: int, fields: Fields = REQUEST, *, end: bool = False) -> bytes:
        """HEADERS in one frame."""
        block: bytes = self.encoder.encode(fields)
        flags = frames.END_HEADERS | (frames.END_STREAM if end else 0)
        return frames.frame(frames.HEADERS, flags, number, block)

    def data(self, number: int, data: bytes, *, end: bool = False, padding: int = -1) -> bytes:
        """DATA in one frame."""
        flags = frames.END_STREAM if end else 0
        if padding >= 0:
            flags |= frames.PADDED
            data = bytes((padding,)) + data + bytes(padding)
        return frames.frame(frames.DATA, flags, number, data)

    def fields(self, frame: Frame) -> dict[bytes, bytes]:
        """What a HEADERS frame says."""
        return dict(self.decoder.decode(frame.payload, raw=True))


def greeted(limits: Limits | None = None, **values: int) -> tuple[Connection, Client]:
    """A connection on which both sides have said their settings."""
    connection, client = serving(limits=limits), Client()
    assert not connection.receive(client.hello(**values), 0.0)
    kinds = [frame.kind for frame in sent(connection)]
    assert kinds == [frames.SETTINGS, frames.WINDOW_UPDATE, frames.SETTINGS]
    return connection, client


def serving(longest_bytes: int = 1 << 20, **settings: Any) -> Connection:
    """A connection that serves `PATH`."""
    return Connection({PATH}, max_receive_bytes=longest_bytes, max_send_bytes=longest_bytes, **settings)


def sent(connection: Connection) -> list[Frame]:
    """What is to be written now."""
    return cut(connection.output())


def only(found: Iterable[Frame], kind: int) -> list[Frame]:
    """Those of a kind."""
    return [frame for frame in found if frame.kind == kind]
