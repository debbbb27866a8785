"""One connection of the picker's own gRPC transport: a socket driven by `epp.http2.calls`.

Owns the socket's side: what came is played to the handlers, what they sent is written together. Rules:

* All that one read brings is played before the next. Answers are written at the end, and in between where
  playing takes longer than a proxy should wait for what is ready.
* After some milliseconds of work for one connection the others have a turn.
* While the socket takes no more, data waits; frames that do not wait are bounded, then the connection goes.
* A connection that has not said anything of HTTP/2 within a while is closed. TCP finds out who has vanished.
"""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Protocol, cast

from epp.http2.calls import (
    CallCancelled,
    CallDrained,
    CallEnded,
    Calls,
    CallStarted,
    MessageReceived,
    NoRoom,
)
from epp.http2.status import Status

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping

    from epp.http2.calls import Call, CallEvent
    from epp.server.rpc_handlers import Serve
    from epp.server.sparse_log import SparseLog

#: What is answered is written at the latest so long after it is ready, while more is being answered.
_WRITE_EVERY_S = 0.0005
_BEGIN_WITHIN_S = 20.0
#: After so much work others have a turn: libuv reads a socket that is always ready 32 times, 256 KiB each,
#: before it looks at another, and the other may be a health check.
_TURN_S = 0.005
#: The socket takes no more: so much is with it.
_HIGH_WATER_BYTES = 1024 * 1024
#: Frames that do not wait, beyond that.
_MAX_UNREAD_BYTES = 1024 * 1024
#: TCP's own probes of a connection that is silent: after, every, how often.
_ALIVE = ((socket.TCP_KEEPIDLE, 60), (socket.TCP_KEEPINTVL, 15), (socket.TCP_KEEPCNT, 4))


class Place(Protocol):
    """What a connection belongs to."""

    @property
    def methods(self) -> Mapping[bytes, Serve]:
        """What serves a call, by its path."""

    @property
    def log(self) -> SparseLog:
        """For lines that a peer can cause by the thousand."""

    def new_calls(self) -> Calls:
        """The state of a connection."""

    def opened(self, connection: RpcConnection) -> None:
        """One has begun."""

    def closed(self, connection: RpcConnection) -> None:
        """It is gone."""


class RpcConnection(asyncio.Protocol):
    """One connection.

    Args:
        place: the listener's.
    """

    def __init__(self, place: Place) -> None:
        self._place, self._calls = place, place.new_calls()
        self._loop = asyncio.get_running_loop()
        self._time_s = self._loop.time
        self._transport: asyncio.Transport | None = None
        self._deadlines: dict[Call, asyncio.TimerHandle] = {}
        self._calls.on_over = self._expires_no_more
        self._playing = False
        self._written_s = 0.0
        self._worked_s = 0.0
        self._corked_bytes: int | None = None
        self._begins: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's derives from no asyncio class
        self._transport.set_write_buffer_limits(_HIGH_WATER_BYTES)
        connected = transport.get_extra_info("socket")
        if connected is not None and connected.family != socket.AF_UNIX:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _ALIVE:
                connected.setsockopt(socket.IPPROTO_TCP, option, value)
        self._place.opened(self)
        secured: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
        if secured is not None and secured.selected_alpn_protocol() != "h2":
            self.abort()
            return
        self._begins = self._loop.call_later(_BEGIN_WITHIN_S, self._has_begun)
        self.flush()

    def data_received(self, data: bytes) -> None:
        """Take what has come."""
        began_s = self._time_s()
        self._play(self._calls.receive(data, began_s))
        self._worked_s += self._time_s() - began_s
        if self._worked_s > _TURN_S and self._transport is not None and not self._transport.is_closing():
            self._worked_s = 0.0
            self._transport.pause_reading()
            self._loop.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def pause_writing(self) -> None:
        """The socket takes no more."""
        self._calls.connection.cork()
        assert self._transport is not None  # noqa: S101  # it says so
        self._corked_bytes = self._transport.get_write_buffer_size()

    def resume_writing(self) -> None:
        """It does again."""
        self._corked_bytes = None
        self._play(self._calls.uncork())

    def _write_on(self) -> None:
        if self._corked_bytes is None and self._transport is not None:
            self.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # why changes nothing
        """The other side has gone, or we have closed."""
        self._transport = None
        self._play(self._calls.lost())
        for timer in (*self._deadlines.values(), self._begins):
            if timer is not None:
                timer.cancel()
        self._place.closed(self)

    def drain(self) -> None:
        """Take no new calls; close once the open ones have ended."""
        self._calls.connection.drain()
        self.flush()

    def refuse_more(self) -> None:
        """The same without waiting for the other side to have heard it."""
        self._calls.connection.refuse_more()
        self.flush()

    def cut(self) -> None:
        """End every call, and the connection."""
        cut = list(self._calls.open)
        for call in cut:
            call.finish(Status.UNAVAILABLE, "the server stops")
            call.owner.cancelled()
        self.refuse_more()

    def abort(self) -> None:
        """Close it at once."""
        if self._transport is not None:
            self._transport.abort()

    def flush(self) -> None:
        """Write what was sent, unless a read is being played: then it is written with the rest."""
        if self._playing or self._transport is None:
            return
        output = self._calls.connection.output()
        if output and not self._transport.is_closing():
            self._transport.write(output)
            unread = self._corked_bytes
            if unread is not None and self._transport.get_write_buffer_size() > unread + _MAX_UNREAD_BYTES:
                self._place.log.warning("a connection was cut whose answers nobody reads")
                self._transport.abort()
            elif unread is None and self._calls.connection.corked:  # there is more, and the socket takes it
                self._loop.call_soon(self._write_on)
        if self._calls.connection.finished:
            self._transport.close()

    def _play(self, events: list[CallEvent]) -> None:
        """Tell the handlers; write what they send."""
        self._playing, self._written_s = True, self._time_s()
        for event in events:
            call = event.call
            try:
                if isinstance(event, CallStarted):
                    self._start(call)
                elif call.owner is None:  # its handler could not even be made
                    continue
                elif isinstance(event, MessageReceived):
                    call.owner.message(event.message)
                    self._write_early()
                elif isinstance(event, CallEnded):
                    call.owner.ended()
                elif isinstance(event, CallCancelled):
                    if call.error is not None:
                        words = "a call of %s was ended: %s"
                        self._place.log.warning(words, call.path.decode("latin-1"), call.error.words)
                    call.owner.cancelled()
                elif isinstance(event, CallDrained):
                    call.owner.drained()
                elif isinstance(event, NoRoom):
                    self._no_room(call)
            except Exception:
                path = call.path.decode("latin-1")
                self._place.log.exception("a call of %s failed", path)
                self._failed(call)
        self._playing = False
        if self._calls.failed and self._transport is not None and not self._transport.is_closing():
            peer = self._transport.get_extra_info("peername")
            words = "a connection from %s was ended: %s"
            self._place.log.info(words, peer, self._calls.failed)
        self.flush()

    def _write_early(self) -> None:
        now_s = self._time_s()
        if now_s - self._written_s > _WRITE_EVERY_S:
            self._written_s = now_s
            self._playing = False
            self.flush()
            self._playing = True

    def _start(self, call: Call) -> None:
        call.owner = self._place.methods[call.path](call, self.flush)
        if call.timeout_s is not None and not call.over:
            self._deadlines[call] = self._loop.call_later(call.timeout_s, self._expire, call)

    def _expire(self, call: Call) -> None:
        if not call.over:
            call.finish(Status.DEADLINE_EXCEEDED, "Deadline Exceeded")
            call.owner.cancelled()
            self.flush()

    def _expires_no_more(self, call: Call) -> None:
        deadline = self._deadlines.pop(call, None)
        if deadline is not None:
            deadline.cancel()

    @staticmethod
    def _no_room(call: Call) -> None:
        call.owner.no_room()
        if not call.over:
            call.finish(Status.RESOURCE_EXHAUSTED, "too many messages wait for their rest")
            call.owner.cancelled()

    def _failed(self, call: Call) -> None:
        """A handler raised."""
        call.finish(Status.INTERNAL, "internal error")
        if call.owner is not None:
            call.owner.cancelled()

    def _has_begun(self) -> None:
        if not self._calls.connection.begun:
            self.abort()
