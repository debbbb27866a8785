"""The picker's own gRPC listener: sockets, connections, and their end.

Owns who is connected and how a stop goes: no new connection, no new call, the open ones have their time, then
they are cut. Serves what it is given, by path; the calls of a connection are `epp.server.rpc_protocol`'s.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from epp.config.address import join_address, split_address
from epp.config.listen import MAX_CONNECTIONS
from epp.http2.calls import Calls
from epp.http2.messages import UNBOUNDED
from epp.server.accepting import Acceptor
from epp.server.rpc_protocol import RpcConnection
from epp.server.sockets import listening_sockets
from epp.server.sparse_log import SparseLog

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Mapping

    from epp.http2.messages import OtherLimit, Room
    from epp.server.rpc_handlers import Serve

#: Connections that the system holds ready; the same as for gRPC's listeners would be.
_BACKLOG = 1024
#: So long the other side has to read that no new calls are wanted, before those that it opens are not heard.
_HEARD_WITHIN_S = 1.0


class RpcServer:
    """One listener.

    Args:
        methods: what serves a call, by its path.
        max_receive_bytes: longest message taken.
        max_send_bytes: longest message sent.
        tls: for connections, None for plaintext.
        room: what messages are held out of that nobody has taken yet.
        log: for lines that a peer can cause by the thousand.
        max_connections: at once; those beyond are closed as they come.
        on_refused: told of each of those.
        others: limit of messages without a body, None for none of its own.
    """

    def __init__(
        self,
        methods: Mapping[str, Serve],
        *,
        max_receive_bytes: int,
        max_send_bytes: int,
        tls: ssl.SSLContext | None = None,
        room: Room = UNBOUNDED,
        log: SparseLog | None = None,
        max_connections: int = MAX_CONNECTIONS,
        on_refused: Callable[[], None] = lambda: None,
        others: OtherLimit | None = None,
    ) -> None:
        self._room, self._others = room, others
        self.log = log or SparseLog(logging.getLogger(__name__))
        self._methods: dict[bytes, Serve] = {path.encode(): serve for path, serve in methods.items()}
        self._max_receive_bytes, self._max_send_bytes, self._tls = max_receive_bytes, max_send_bytes, tls
        self._max_connections, self._on_refused = max_connections, on_refused
        self._acceptor: Acceptor[RpcConnection] | None = None
        self._stopping = False
        self._gone: asyncio.Event | None = None

    async def start(self, address: str) -> str:
        """Listen; the address with the port that it really has.

        Raises:
            OSError: the address cannot be bound.
        """
        host, port = split_address(address)
        sockets = listening_sockets(host, port, backlog=_BACKLOG)
        self._acceptor = Acceptor(
            lambda: RpcConnection(self),
            most=self._max_connections,
            tls=self._tls,
            lines=self.log,
            on_refused=self._on_refused,
        )
        for bound in sockets:
            port = bound.getsockname()[1]
            self._acceptor.listen(bound)
        return join_address(host, port)

    async def stop(self, grace_s: float) -> None:
        """Take no new calls, give the open ones ``grace_s``, then cut them."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + grace_s
        self._stopping, self._gone = True, asyncio.Event()
        if self._acceptor is not None:
            self._acceptor.close()
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

    @property
    def methods(self) -> Mapping[bytes, Serve]:
        """What serves a call, by its path."""
        return self._methods

    def new_calls(self) -> Calls:
        """The state of a connection."""
        return Calls(
            self._methods,
            max_receive_bytes=self._max_receive_bytes,
            max_send_bytes=self._max_send_bytes,
            room=self._room,
            others=self._others,
        )

    def opened(self, connection: RpcConnection) -> None:
        """A connection has begun."""
        if self._acceptor is not None:
            self._acceptor.begun(connection)
        if self._stopping:
            connection.abort()

    def closed(self, connection: RpcConnection) -> None:
        """It is gone."""
        if self._acceptor is not None:
            self._acceptor.gone(connection)
        if not self._connections and self._gone is not None:
            self._gone.set()
