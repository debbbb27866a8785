"""What comes of bytes received on a connection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from epp.transport.frames import ErrorCode
    from epp.transport.headers import RequestHead
    from epp.transport.stream import Stream


@dataclass(slots=True)
class RequestReceived:
    """A stream began."""

    stream: Stream
    head: RequestHead


@dataclass(slots=True)
class DataReceived:
    """A piece of a stream's body, good until the next bytes are received.

    Pieces are as they come from the socket: neither frames nor anything else of meaning.
    """

    stream: Stream
    data: memoryview


@dataclass(slots=True)
class StreamEnded:
    """Nothing more will come on a stream; we may still send."""

    stream: Stream


@dataclass(slots=True)
class StreamReset:
    """A stream is over in both directions, whatever was still to be sent.

    Attributes:
        stream: which.
        code: why.
        detail: one sentence.
    """

    stream: Stream
    code: int
    detail: str


@dataclass(slots=True)
class StreamDrained:
    """All that was waiting for a window, or for the socket, is on its way."""

    stream: Stream


@dataclass(slots=True)
class ConnectionFailed:
    """The connection is over: take the output, close the socket. All its streams are gone.

    Attributes:
        code: what the other side is told.
        detail: one sentence.
        streams: that were open.
    """

    code: ErrorCode
    detail: str
    streams: list[Stream]


Event = RequestReceived | DataReceived | StreamEnded | StreamReset | StreamDrained | ConnectionFailed
