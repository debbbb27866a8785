"""What the other side may still send: the windows that we keep for it, and when they are made good.

Owns the connection's receive window. A window is made good once a quarter of it is owed, so a short stream
never costs a WINDOW_UPDATE. What comes on a stream that is held is not made up for, neither on the stream nor
on the connection, so streams that nobody takes hold the connection's window together and no more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from epp.transport import frames

if TYPE_CHECKING:
    from collections.abc import Callable

    from epp.transport.limits import Limits
    from epp.transport.stream import Stream

_SHARE = 4


class ReceiveWindows:
    """The windows of one connection.

    Args:
        limits: how large they are.
        send: takes WINDOW_UPDATE frames.
    """

    def __init__(self, limits: Limits, send: Callable[[bytes], None]) -> None:
        self._stream_bytes, self._connection_bytes = (
            limits.stream_window_bytes,
            limits.connection_window_bytes,
        )
        self._send = send
        self._left, self._owed = limits.connection_window_bytes, 0

    def take(self, length: int) -> bool:
        """So much comes on the connection; whether it might."""
        self._left -= length
        return self._left >= 0

    def came(self, stream: Stream, length: int) -> bool:
        """It comes on a stream; whether it might. Made good unless the stream is held."""
        if length > stream.receive_window:
            self.lost(length)
            return False
        stream.receive_window -= length
        stream.owed += length
        stream.withheld += length
        if not stream.held:
            self.settle(stream)
        return True

    def lost(self, length: int) -> None:
        """It came on no stream that takes it."""
        self._owed += length
        if self._owed * _SHARE > self._connection_bytes:
            self._send(frames.window_update(0, self._owed))
            self._left += self._owed
            self._owed = 0

    def settle(self, stream: Stream) -> None:
        """Make good for what came on a stream, if it is worth a frame."""
        if stream.withheld:
            withheld, stream.withheld = stream.withheld, 0
            self.lost(withheld)
        if stream.owed * _SHARE > self._stream_bytes and not (stream.ended_there or stream.over):
            self._send(frames.window_update(stream.number, stream.owed))
            stream.receive_window += stream.owed
            stream.owed = 0
