"""One connection of the picker's own gRPC transport: a socket driven by `epp.transport.connection`.

Owns the socket's side: what came is played to the handlers, what they sent is written together. Rules:

* All that one read brings is played before the next. Answers are written at the end, and in between where
  playing takes longer than a proxy should wait for what is ready.
* Work is done in slices, bounded by work units and by time. What a slice leaves waits for a turn of the
  listener, and the socket is not read before it is done. Where nothing is left, there is no turn to wait for.
* Of a peer that is over its budget only connections are read that do little. One that is not read for long
  because of that is ended.
* While the socket takes no more, data waits; frames that do not wait are bounded, then the connection goes.
* A connection that has not said anything of HTTP/2 within a while is closed. TCP finds out who has vanished.
"""

from __future__ import annotations

import asyncio
import logging
import math
import socket
from typing import TYPE_CHECKING, cast

from epp.server.logs import REPEATED
from epp.server.turns import FIRST_UNITS, Allowance
from epp.transport.calls import CallCancelled, CallDrained, CallEnded, CallStarted, MessageReceived, NoRoom
from epp.transport.frames import ErrorCode
from epp.transport.status import Status

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Sequence

    from epp.server.rpc_server import RpcServer
    from epp.server.turns import Peer
    from epp.transport.calls import Call, CallEvent

log = logging.getLogger(__name__)

#: What is answered is written at the latest so long after it is ready, while more is being answered.
_WRITE_EVERY_S = 0.0005
_BEGIN_WITHIN_S = 20.0
#: Time for the handlers before others have a turn, in one read or in several: libuv reads a socket that is
#: always ready 32 times in a row.
_SLICE_S = 0.002
#: A connection over the budget is looked at again after this.
_OVER_BUDGET_S = 0.1
#: Connections of a peer that wait so at once; each may hold a read of 256 KiB, and more of them are cut.
_MAX_THROTTLED = 64
#: Calls of a lost connection that end in one turn: each may give back its lease and its memory, some 0.1 ms.
_MAX_ENDS = 32
#: An idle connection that was ended closes within this, or is aborted.
_CLOSE_S = 1.0
#: One that failed is left so long for the other side to read why: closing it while bytes come resets it.
_LINGER_S = 0.1
#: The socket takes no more: so much is with it.
_HIGH_WATER_BYTES = 1024 * 1024
#: Frames that do not wait, beyond that.
_MAX_UNREAD_BYTES = 1024 * 1024
_UNREAD = "closing connection: peer stopped reading (send buffer over limit)"
#: TCP's own probes of a connection that is silent: after, every, how often.
_ALIVE = ((socket.TCP_KEEPIDLE, 60), (socket.TCP_KEEPINTVL, 15), (socket.TCP_KEEPCNT, 4))


class RpcConnection(asyncio.Protocol):
    """One connection.

    Args:
        server: the listener.

    Attributes:
        used_s: when a stream was last seen on it, or the connection itself began.
    """

    def __init__(self, server: RpcServer) -> None:
        self._server, self._connection = server, server.new_connection(self._reclaim)
        self._reader = self._connection.reader
        self._connection.flush = self.flush
        self._loop = asyncio.get_running_loop()
        self._time_s = self._loop.time
        self._transport: asyncio.Transport | None = None
        self._playing = False
        self._written_s = 0.0
        self._peer: Peer
        self._allowance: Allowance
        self._granted_units = 0
        #: Time worked since the last turn, and what it left to be played.
        self._worked_s = 0.0
        self._left: list[CallEvent] = []
        self._paused = False
        #: Whether it is not read because its peer is over the budget.
        self._throttled = False
        self._lingering = False
        self._later: asyncio.TimerHandle | None = None
        self._begins: asyncio.TimerHandle | None = None
        self._last_number, self.used_s = 0, self._time_s()
        self._corked_bytes: int | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's derives from no asyncio class
        self._transport.set_write_buffer_limits(_HIGH_WATER_BYTES)
        connected = transport.get_extra_info("socket")
        if connected is not None:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _ALIVE:
                connected.setsockopt(socket.IPPROTO_TCP, option, value)
        secured: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
        self._peer = self._server.opened(self, secured.getpeercert(binary_form=True) if secured else None)
        self._allowance = Allowance(self._peer, self._time_s())
        self._reader.units = self._granted_units = FIRST_UNITS
        if secured is not None and secured.selected_alpn_protocol() != "h2":
            self.abort()
            return
        self._begins = self._loop.call_later(_BEGIN_WITHIN_S, self._has_begun)
        self.flush()

    def data_received(self, data: bytes) -> None:
        """Take what has come."""
        now_s = self._time_s()
        events = self._connection.receive(data, now_s)
        if self._connection.last_number != self._last_number:
            self._last_number, self.used_s = self._connection.last_number, now_s
        self._play(events, now_s + _SLICE_S)
        self._worked_s += self._time_s() - now_s
        if self._worked_s > _SLICE_S or self._left or self._reader.more:
            self._wait_for_turn()

    def turn(self) -> None:
        """Do a slice of what was left, and read on once nothing is."""
        if self._transport is None:
            if self._left:
                self._end_some()
            return
        if self._transport.is_closing() or self._lingering:
            return
        now_s = self._time_s()
        if self._throttled:
            self._throttled = False
            self._peer.throttled -= 1
            self._server.on_throttled(self._allowance.waited(now_s))
            if self._allowance.is_flood:  # its peer has sent more than anybody will answer
                self._end_flood()
                return
        units = self._allowance.next_units(now_s)
        if not units:
            self._throttle(now_s)
            return
        self._worked_s, self._reader.units, self._granted_units = 0.0, units, units
        if self._left:
            events, self._left = self._left, []
            self._play(events, now_s + _SLICE_S)
        elif self._reader.more:
            self._play(self._connection.receive(b"", now_s), now_s + _SLICE_S)
        if self._left or self._reader.more:
            self._queue()
        else:
            self._paused = False
            self._allowance.done()
            self._transport.resume_reading()

    def _settle(self) -> None:
        """Charge the work since the last turn."""
        self._allowance.charge(self._granted_units - self._reader.units)
        self._reader.units = self._granted_units = 0

    def _wait_for_turn(self) -> None:
        """Read no more before this connection had a turn."""
        if not self._paused and self._transport is not None and not self._transport.is_closing():
            self._paused = True
            self._transport.pause_reading()
            self._queue()

    def _queue(self) -> None:
        """Take a turn: at once where this connection does little, else beside those of the others."""
        self._settle()
        now_s = self._time_s()
        if self._allowance.is_quiet(now_s):
            self._loop.call_soon(self.turn)
        elif self._allowance.next_units(now_s):
            self._server.queue(self._peer, self.turn)
        else:
            self._throttle(now_s)

    def _throttle(self, now_s: float) -> None:
        """Wait for the next turn a while."""
        if self._peer.throttled >= _MAX_THROTTLED:
            self._end_flood()
            return
        self._throttled = True
        self._peer.throttled += 1
        self._allowance.wait(now_s)
        self._later = self._loop.call_later(_OVER_BUDGET_S, self._server.queue, self._peer, self.turn)

    def _end_flood(self) -> None:
        self._server.on_closed("flood")
        self.abort()

    def pause_writing(self) -> None:
        """Hold data back: the socket takes no more."""
        self._connection.sender.corked = True
        assert self._transport is not None  # noqa: S101  # it says so
        self._corked_bytes = self._transport.get_write_buffer_size()

    def resume_writing(self) -> None:
        """Send what waited."""
        self._corked_bytes = None
        self._play(self._connection.uncork())

    def _write_on(self) -> None:
        if self._corked_bytes is None and self._transport is not None:
            self.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # why changes nothing
        """End what is open: the other side has gone, or we have closed."""
        self._transport = None
        if self._throttled:
            self._peer.throttled -= 1
        self._settle()
        self._left = [*self._ends_left(), *self._connection.lost()]
        for timer in (self._begins, self._later):
            if timer is not None:
                timer.cancel()
        self._end_some()

    def drain(self) -> bool:
        """Take no new calls; close once the open ones have ended. False where that was said before."""
        begun = self._connection.drain()
        self.flush()
        return begun

    def refuse_more(self) -> None:
        """Take no new calls, without waiting for the other side to have read that."""
        self._connection.refuse_more()
        self.flush()

    def cut(self) -> None:
        """End every call, and the connection."""
        self._play(self._ends_left())
        for call in self._connection.streams:
            if call.started and not call.over:
                self._fail(call, Status.UNAVAILABLE, "the server stops")
        self.refuse_more()

    @property
    def calls(self) -> int:
        """How many streams have begun on it."""
        return (self._last_number + 1) // 2

    @property
    def was_used(self) -> bool:
        """Whether a stream has begun on it."""
        return self._last_number > 0

    def unused_s(self) -> float:
        """Seconds since a stream was last seen open, as it began or at an earlier call; 0 while one is."""
        now_s = self._time_s()
        if self._connection.streams:
            self.used_s = now_s
        return now_s - self.used_s

    def end(self) -> None:
        """Close an idle connection: with a GOAWAY, and without the other side where it does nothing."""
        self.refuse_more()
        self._later = self._loop.call_later(_CLOSE_S, self.abort)

    def abort(self) -> None:
        """Close it at once."""
        if self._transport is not None:
            self._transport.abort()

    def flush(self) -> None:
        """Write what was sent, unless a read is being played: then it is written with the rest."""
        # asyncio cannot abort a TLS connection that was closed twice.
        if self._playing or self._lingering or self._transport is None or self._transport.is_closing():
            return
        if output := self._connection.output():
            self._transport.write(output)
            unread = self._corked_bytes
            if unread is not None and self._transport.get_write_buffer_size() > unread + _MAX_UNREAD_BYTES:
                log.warning(_UNREAD, extra=REPEATED)
                self._transport.abort()
                return
            if unread is None and self._connection.sender.corked:  # there is more, and the socket takes it
                self._loop.call_soon(self._write_on)
        if self._connection.failed and self._transport.can_write_eof():
            self._linger(self._transport)
        elif self._connection.finished:
            self._transport.close()

    def _linger(self, transport: asyncio.Transport) -> None:
        """Say no more and read no more, and close a little later."""
        self._lingering = True
        transport.write_eof()
        if not self._paused:
            self._paused = True
            transport.pause_reading()
        self._loop.call_later(_LINGER_S, self.abort)

    def _play(self, events: Sequence[CallEvent], until_s: float = math.inf) -> None:
        """Pass events to the handlers, and write what they send; what is not played in time is left.

        Looks at the clock after messages alone: a slice has few of the others that cost anything.
        """
        if self._left:
            self._left += events
            return
        self._playing, self._written_s = True, self._time_s()
        waiting = iter(events)
        for event in waiting:
            try:
                self._handle(event)
            except Exception:
                path = event.call.path.decode("latin-1")
                log.exception("a call of %s failed", path, extra=REPEATED)
                self._fail(event.call, Status.INTERNAL, "internal error")
            if isinstance(event, MessageReceived):
                now_s = self._time_s()
                if now_s > until_s:
                    self._left = list(waiting)
                elif now_s - self._written_s > _WRITE_EVERY_S:
                    self._written_s, self._playing = now_s, False
                    self.flush()
                    self._playing = True
        self._playing = False
        ends = self._connection.failed and not self._lingering
        if ends and self._transport is not None and not self._transport.is_closing():
            peer = self._transport.get_extra_info("peername")
            words = "a connection from %s was ended: %s"
            log.info(words, peer, self._connection.failed, extra=REPEATED)
        self.flush()

    def _handle(self, event: CallEvent) -> None:
        """Pass an event to its call's handler."""
        call = event.call
        if isinstance(event, CallStarted):
            call.owner = self._server.methods[call.path](call)
        elif call.owner is None:  # its handler could not even be made
            return
        elif isinstance(event, MessageReceived):
            call.owner.message(event.message)
        elif isinstance(event, CallEnded):
            call.owner.ended()
        elif isinstance(event, CallCancelled):
            if call.error is not None:
                path = call.path.decode("latin-1")
                log.warning("a call of %s was ended: %s", path, call.error.words, extra=REPEATED)
            call.owner.cancelled()
            call.owner = None  # or both would stay until a garbage collection
        elif isinstance(event, CallDrained):
            call.owner.drained()
        elif isinstance(event, NoRoom):
            self._no_room(call)

    def _ends_left(self) -> list[CallEvent]:
        """Take what was left; of it the ends of calls: nobody waits for more."""
        left, self._left = self._left, []
        return [each for each in left if isinstance(each, CallCancelled)]

    def _end_some(self) -> None:
        """End some of the handlers whose calls went with the socket; the others wait for a turn."""
        ends, rest = self._left[:_MAX_ENDS], self._left[_MAX_ENDS:]
        self._left = []
        self._play(ends)
        self._left = rest
        if rest:
            self._server.queue(self._peer, self.turn)
        else:
            self._server.closed(self)

    @staticmethod
    def _fail(call: Call, status: Status, words: str) -> None:
        """End a call in our words."""
        call.finish(status, words)
        if call.owner is not None:
            call.owner.cancelled()

    def _no_room(self, call: Call) -> None:
        call.owner.no_room()
        if not call.over:
            self._fail(call, Status.RESOURCE_EXHAUSTED, "there is no room for what comes")

    def _reclaim(self, needed: Callable[[], bool]) -> None:
        """End streams, the youngest first, while their room is needed."""
        for call in reversed(self._connection.streams):
            if not needed():
                break
            if call.started and not call.over:
                if call.owner is None:
                    continue  # it is still to be started
                self._no_room(call)
            if not call.gone:  # the answer waits: nobody reads
                call.reset(ErrorCode.ENHANCE_YOUR_CALM)
                if call.owner is not None:
                    call.owner.cancelled()
        self.flush()

    def _has_begun(self) -> None:
        if not self._reader.begun:
            self.abort()
