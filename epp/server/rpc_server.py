"""The picker's own gRPC listener: sockets, connections, and their end.

Owns who is connected and how a stop goes: no new connection, no new call, the open ones have their time, then
they are cut. Serves what it is given, by path; the calls of a connection are `epp.server.rpc_protocol`'s.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from epp.config.listen import MAX_CONNECTIONS
from epp.server.accepting import Acceptor
from epp.server.rpc_protocol import RpcConnection
from epp.server.seat import TICK_S
from epp.server.turns import Peer, Turns
from epp.transport.connection import Connection
from epp.transport.messages import UNBOUNDED

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterable, Mapping

    from epp.extproc.body_budget import Reclaim
    from epp.server.handlers import Serve
    from epp.server.seat import Seat
    from epp.server.turns import Turn
    from epp.transport.messages import BodilessLimit, Room

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
        seat: this process's part among several that listen; None where there is one.
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
        seat: Seat | None = None,
        keeps_places: bool = False,
    ) -> None:
        self._new_room, self._bodiless = new_room, bodiless
        self.methods: dict[bytes, Serve] = {path.encode(): serve for path, serve in methods.items()}
        self._max_receive_bytes, self._max_send_bytes, self._tls = max_receive_bytes, max_send_bytes, tls
        self._max_connections, self._keeps_places = max_connections, keeps_places
        self.on_closed, self.on_throttled = on_closed, on_throttled
        self._turns, self._turning = Turns(), False
        self._sweep: asyncio.TimerHandle | None = None
        self._seat = seat
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
            seat=self._seat,
        )
        if self._seat is not None:
            self._balance(self._seat)
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

    def opened(self, connection: RpcConnection, certificate: bytes | None) -> Peer:
        """A connection has begun, with a client certificate (DER) or without; its peer."""
        peer = self._acceptor.begun(connection, certificate) if self._acceptor is not None else None
        if peer is None or self._stopping:
            connection.abort()
        return peer or Peer(0.0)

    def queue(self, peer: Peer, turn: Turn) -> None:
        """Give work of a peer a turn, beside those of the others."""
        self._turns.add(peer, turn)
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
        found = self._turns.take()
        self._turning = found is not None
        if found is None:
            return
        loop = asyncio.get_running_loop()
        loop.call_soon(self._turn)
        peer, turn = found
        began_s = loop.time()
        turn()
        peer.credit_s -= loop.time() - began_s

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

    def _balance(self, seat: Seat) -> None:
        moved = seat.tick({connection: connection.calls for connection in self._connections})
        if moved is not None and moved.drain():
            self.on_closed("balance")
        self._balancing = asyncio.get_running_loop().call_later(TICK_S, self._balance, seat)
