"""The picker's own gRPC transport: a listener and its connections, driven by `epp.rpc.http2.connection`.

`RpcServer` owns who is connected and how a stop goes: no new connection, no new call, the open ones have
their time, then they are cut. It serves what it is given, by path. `RpcConnection` owns a socket: what came
is played to the handlers, what they sent is written together. Rules:

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
from functools import partial
from typing import TYPE_CHECKING, cast

from epp.config.listen import MAX_CONNECTIONS
from epp.logs import REPEATED
from epp.rpc.accepting import Acceptor
from epp.rpc.connection_balancer import TICK_S
from epp.rpc.fair_queue import FIRST_UNITS, Client, FairQueue, RateLimit
from epp.rpc.http2.connection import (
    CallCancelled,
    CallDrained,
    CallEnded,
    CallStarted,
    Connection,
    MessageReceived,
    NoRoom,
)
from epp.rpc.http2.frames import ErrorCode
from epp.rpc.http2.messages import UNBOUNDED
from epp.rpc.http2.status import Status

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from epp.extproc.body_budget import Reclaim
    from epp.rpc.connection_balancer import ConnectionBalancer
    from epp.rpc.fair_queue import Turn
    from epp.rpc.handlers import Serve
    from epp.rpc.http2.connection import Call, CallEvent
    from epp.rpc.http2.messages import BodilessLimit, Room

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
#: Calls of a lost connection that end in one turn: each may give back its reservation and its memory, some
#: 0.1 ms.
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
        self._peer: Client
        self._allowance: RateLimit
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
        self._client = self._server.opened(self, secured.getpeercert(binary_form=True) if secured else None)
        self._rate_limit = RateLimit(self._client, self._time_s())
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
            self._client.throttled -= 1
            self._server.on_throttled(self._rate_limit.waited(now_s))
            if self._rate_limit.is_flood:  # its peer has sent more than anybody will answer
                self._end_flood()
                return
        units = self._rate_limit.next_units(now_s)
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
            self._rate_limit.done()
            self._transport.resume_reading()

    def _settle(self) -> None:
        """Charge the work since the last turn."""
        self._rate_limit.charge(self._granted_units - self._reader.units)
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
        if self._rate_limit.is_quiet(now_s):
            self._loop.call_soon(self.turn)
        elif self._rate_limit.next_units(now_s):
            self._server.queue(self._client, self.turn)
        else:
            self._throttle(now_s)

    def _throttle(self, now_s: float) -> None:
        """Wait for the next turn a while."""
        if self._client.throttled >= _MAX_THROTTLED:
            self._end_flood()
            return
        self._throttled = True
        self._client.throttled += 1
        self._rate_limit.wait(now_s)
        self._later = self._loop.call_later(_OVER_BUDGET_S, self._server.queue, self._client, self.turn)

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
            self._client.throttled -= 1
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
            self._server.queue(self._client, self.turn)
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


#: So long the other side has to read that no new calls are wanted, before those that it opens are not heard.
_HEARD_WITHIN_S = 1.0
#: A connection on which no stream was open for so long is ended. An Envoy without requests opens another one
#: with its next.
_IDLE_S, _SWEEP_S = 300.0, 60.0
#: A connection unused for so long may make room for another.
_UNUSED_S = 1.0


class RpcServer:
    """One listener.

    Args:
        methods: what serves a call, by its path.
        max_receive_bytes: longest message taken.
        max_send_bytes: longest message sent.
        tls: for connections, None for plaintext.
        new_room: makes what a connection holds messages out of that nobody has taken yet.
        max_connections: at once; those beyond are closed as they come.
        bodiless: limit of messages without a body, None for none of its own.
        on_closed: called with why a connection is closed: ``limit``, ``idle``, ``room`` (its place was
            needed), ``flood`` (its peer was over its budget, and it went on) or ``balance`` (another worker
            has less to do).
        on_throttled: called with the seconds for which a connection is not read.
        balancer: this process's part among several that listen; None where there is one.
        keeps_places: whether some are kept for probes beyond all connections.
    """

    def __init__(
        self,
        methods: Mapping[str, Serve],
        *,
        max_receive_bytes: int,
        max_send_bytes: int,
        tls: ssl.SSLContext | None = None,
        new_room: Callable[[Reclaim], Room] = lambda _: UNBOUNDED,
        max_connections: int = MAX_CONNECTIONS,
        bodiless: BodilessLimit | None = None,
        on_closed: Callable[[str], None] = lambda _: None,
        on_throttled: Callable[[float], None] = lambda _: None,
        balancer: ConnectionBalancer | None = None,
        keeps_places: bool = False,
    ) -> None:
        self._new_room, self._bodiless = new_room, bodiless
        self.methods: dict[bytes, Serve] = {path.encode(): serve for path, serve in methods.items()}
        self._max_receive_bytes, self._max_send_bytes, self._tls = max_receive_bytes, max_send_bytes, tls
        self._max_connections, self._keeps_places = max_connections, keeps_places
        self.on_closed, self.on_throttled = on_closed, on_throttled
        self._fair_queue, self._turning = FairQueue(), False
        self._sweep: asyncio.TimerHandle | None = None
        self._balancer = balancer
        self._balancing: asyncio.TimerHandle | None = None
        self._acceptor: Acceptor[RpcConnection] | None = None
        self._stopping = False
        self._gone: asyncio.Event | None = None

    async def start(self, address: str) -> str:
        """Listen; the address with the port that it really has.

        Raises:
            OSError: the address cannot be bound.
        """
        self._acceptor = Acceptor(
            lambda: RpcConnection(self),
            most=self._max_connections,
            tls=self._tls,
            on_refused=partial(self.on_closed, "limit"),
            end_idle=self._end_idle,
            end_kept=RpcConnection.abort if self._keeps_places else None,
            queue=self.queue,
            balancer=self._balancer,
        )
        if self._balancer is not None:
            self._balance(self._balancer)
        self._sweep = asyncio.get_running_loop().call_later(_SWEEP_S, self._end_long_idle)
        return self._acceptor.listen(address)

    async def stop(self, grace_s: float) -> None:
        """Take no new calls, give the open ones ``grace_s``, then cut them."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + grace_s
        self._stopping, self._gone = True, asyncio.Event()
        if self._acceptor is not None:
            self._acceptor.close()
        for timer in (self._sweep, self._balancing):
            if timer is not None:
                timer.cancel()
        for connection in list(self._connections):
            connection.drain()
        await self._wait(min(grace_s, _HEARD_WITHIN_S))
        for connection in list(self._connections):
            connection.refuse_more()
        await self._wait(deadline_s - loop.time())
        for connection in list(self._connections):
            connection.cut()
        await self._wait(_HEARD_WITHIN_S if grace_s else 0.0)
        for connection in list(self._connections):
            connection.abort()
        await self._wait(_HEARD_WITHIN_S)

    @property
    def _connections(self) -> set[RpcConnection]:
        return self._acceptor.open if self._acceptor is not None else set()

    async def _wait(self, timeout_s: float) -> None:
        """Until no connection is left, for so long."""
        if self._connections and self._gone is not None:
            try:
                await asyncio.wait_for(self._gone.wait(), max(timeout_s, 0))
            except TimeoutError:
                return

    def new_connection(self, reclaim: Reclaim) -> Connection:
        """The state of a connection; ``reclaim`` ends calls of it to make room for those of others."""
        return Connection(
            self.methods,
            max_receive_bytes=self._max_receive_bytes,
            max_send_bytes=self._max_send_bytes,
            room=self._new_room(reclaim),
            bodiless=self._bodiless,
        )

    def opened(self, connection: RpcConnection, certificate: bytes | None) -> Client:
        """A connection has begun, with a client certificate (DER) or without; its peer."""
        client = self._acceptor.begun(connection, certificate) if self._acceptor is not None else None
        if client is None or self._stopping:
            connection.abort()
        return client or Client(0.0)

    def queue(self, client: Client, turn: Turn) -> None:
        """Give work of a peer a turn, beside those of the others."""
        self._fair_queue.add(client, turn)
        if not self._turning:
            self._turning = True
            asyncio.get_running_loop().call_soon(self._turn)

    def closed(self, connection: RpcConnection) -> None:
        """Forget a connection that is gone."""
        if self._acceptor is not None:
            self._acceptor.gone(connection)
        if not self._connections and self._gone is not None:
            self._gone.set()

    def _turn(self) -> None:
        """One slice of what waits; the sockets that have become ready are read before the next."""
        found = self._fair_queue.take()
        self._turning = found is not None
        if found is None:
            return
        loop = asyncio.get_running_loop()
        loop.call_soon(self._turn)
        client, turn = found
        began_s = loop.time()
        turn()
        client.credit_s -= loop.time() - began_s

    def _end_idle(self, connections: Iterable[RpcConnection]) -> RpcConnection | None:
        """End the one that was unused for longest, those first that never carried a call.

        One that has not begun is left to the acceptor.
        """
        idle = [each for each in connections if not each.was_used or each.unused_s() > _UNUSED_S]
        if not idle:
            return None
        connection = min(idle, key=lambda each: (each.was_used, each.used_s))
        if connection in self._connections:
            connection.end()
            self.on_closed("room")
        return connection

    def _end_long_idle(self) -> None:
        for connection in list(self._connections):
            if connection.unused_s() <= _IDLE_S:
                continue
            if connection.drain():
                self.on_closed("idle")
            else:  # it has not answered since the sweep before
                connection.end()
        self._sweep = asyncio.get_running_loop().call_later(_SWEEP_S, self._end_long_idle)

    def _balance(self, balancer: ConnectionBalancer) -> None:
        moved = balancer.tick({connection: connection.calls for connection in self._connections})
        if moved is not None and moved.drain():
            self.on_closed("balance")
        self._balancing = asyncio.get_running_loop().call_later(TICK_S, self._balance, balancer)
