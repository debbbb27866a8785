"""Takes the connections of a listener, as many at once as are allowed, and closes what comes beyond.

Owns the listening sockets, what is in its TLS handshake, and who may have a place. asyncio's own server
reports a connection only after its TLS handshake, and each that is in one holds a file all the same. Where
idle connections can be ended, no peer holds all places: the oldest idle connection of the peer with the most
makes room.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import logging
import resource
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

from epp.config.address import UNIX, join_address, split_address
from epp.server.logs import REPEATED
from epp.server.sockets import listening_sockets
from epp.server.turns import Peers, address_key

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Callable, Iterable

    from epp.server.turns import Peer, Turn

log = logging.getLogger(__name__)

_HANDSHAKE_S = 20.0
#: Connections taken in one turn of the loop: a few milliseconds.
_A_TURN = 16
#: Work units of a new connection, and of a TLS handshake.
_CONNECT_UNITS, _HANDSHAKE_UNITS = 25, 800
#: The process or the system has nothing left to accept with: so long until it is tried again.
_PAUSE_S = 1.0
_USED_UP = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

#: Share of the files that the process may open which the connections of one listener may hold. There are four
#: listeners at most, and a pool of endpoints wants two files for each of them.
_FILES_SHARE = 8
#: What `allow_files` asks for, at most.
_FILES = 65_536

P = TypeVar("P", bound=asyncio.Protocol)


def allow_files() -> None:
    """Let this process open as many files as it may ask for: what it is given at first is 1,024, often."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _FILES if hard == resource.RLIM_INFINITY else min(hard, _FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def allowed_connections(wanted: int) -> int:
    """Reduce a number of connections to what the files leave that this process may open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or wanted <= soft // _FILES_SHARE:
        return wanted
    allowed = max(soft // _FILES_SHARE, 1)
    log.warning("%d connections are taken instead of %d: %d files may be open", allowed, wanted, soft)
    return allowed


class Acceptor(Generic[P]):
    """The listening sockets of one listener.

    Args:
        new_protocol: makes what serves a connection; that one calls `begun` and `gone`.
        most: connections at once, those in their handshakes included.
        tls: for connections, None for plaintext.
        on_refused: called for each connection that is closed because there are enough.
        end_idle: ends one of a peer's connections that is idle, if one is, and returns it; one that has not
            begun is left to be ended here. None where none is to be ended.
        queue: takes what waits for a turn: TLS handshakes of a peer over its budget.

    Attributes:
        open: connections that have begun.
    """

    def __init__(
        self,
        new_protocol: Callable[[], P],
        *,
        most: int,
        tls: ssl.SSLContext | None,
        on_refused: Callable[[], None],
        end_idle: Callable[[Iterable[P]], P | None] | None = None,
        queue: Callable[[Peer, Turn], None] | None = None,
    ) -> None:
        self._new_protocol, self._most, self._tls = new_protocol, most, tls
        self._on_refused = on_refused
        self._end_idle, self._queue = end_idle, queue
        self._share = most if end_idle is None else most - most // 2
        self._loop = asyncio.get_running_loop()
        self._sockets: list[socket.socket] = []
        self._beginning: dict[P, asyncio.Task[None]] = {}
        self._retry: asyncio.TimerHandle | None = None
        self._peers = Peers()
        #: Who holds a place, and whose it is.
        self._places: dict[P, Peer] = {}
        self.open: set[P] = set()

    def listen(self, address: str) -> str:
        """Listen on ``host:port`` or ``unix:/path``; the same with the port that it really has.

        Raises:
            OSError: the address cannot be bound.
            ValueError: it is not an address.
        """
        self._sockets = listening_sockets(address)
        for bound in self._sockets:
            bound.setblocking(False)
        self._go_on()
        if address.startswith(UNIX):
            return address
        return join_address(split_address(address)[0], self._sockets[0].getsockname()[1])

    def close(self) -> None:
        """Take no more, and end handshakes; what is open stays."""
        self._pause()
        if self._retry is not None:
            self._retry.cancel()
        for bound in self._sockets:
            bound.close()
        self._sockets.clear()
        for connection in list(self._beginning):
            self._end_beginning(connection)

    def begun(self, connection: P, certificate: bytes | None = None) -> Peer | None:
        """A connection can be spoken on; its peer, which is the ``certificate`` (DER) where there is one.

        None where it was ended while it began.
        """
        self._beginning.pop(connection, None)
        self.open.add(connection)
        peer = self._places.get(connection)
        if peer is not None and certificate is not None:
            del peer.connections[connection]
            key = hashlib.sha256(certificate).digest()
            peer = self._places[connection] = self._peers.find(key, self._loop.time())
            peer.connections[connection] = None
        return peer

    def gone(self, connection: P) -> None:
        """Forget a connection that is closed."""
        self.open.discard(connection)
        self._release(connection)

    def _accept(self, bound: socket.socket) -> None:
        for _ in range(_A_TURN):
            try:
                accepted, address = bound.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _USED_UP:
                    raise
                log.warning("no connection can be taken: %s", error, extra=REPEATED)
                self._pause()
                self._retry = self._loop.call_later(_PAUSE_S, self._go_on)
                return
            now_s = self._loop.time()
            peer = self._peers.find(address_key(address), now_s)
            peer.units -= _CONNECT_UNITS
            if not self._has_room(peer):
                self._on_refused()
                accepted.close()
                log.warning("a connection was closed at once: no place was left for its peer", extra=REPEATED)
                continue
            accepted.setblocking(False)
            connection = self._new_protocol()
            peer.connections[connection] = None
            self._places[connection] = peer
            task = self._beginning[connection] = self._loop.create_task(self._connect(connection, accepted))
            # Cancelled before its first step, nobody else would close it.
            task.add_done_callback(partial(self._connected, connection, accepted))

    def _has_room(self, peer: Peer) -> bool:
        """Whether a peer may have one more place, after an idle connection was ended where none was left."""
        if len(peer.connections) >= self._share:
            return self._make_room((peer,))
        return len(self._places) < self._most or self._make_room(self._peers.by_connections())

    def _make_room(self, peers: Iterable[Peer]) -> bool:
        """End an idle connection of the first of these peers that has one; whether there was one."""
        if self._end_idle is None:
            return False
        for peer in peers:
            ended = self._end_idle(peer.connections)
            if ended in self._beginning:
                self._end_beginning(ended)
                return True
            if ended is not None:
                self._release(ended)
                return True
        return False

    def _end_beginning(self, connection: P) -> None:
        """Close a connection that has not begun."""
        self._beginning.pop(connection).cancel()
        self._release(connection)

    def _release(self, connection: P) -> None:
        peer = self._places.pop(connection, None)
        if peer is not None:
            del peer.connections[connection]

    async def _connect(self, connection: P, accepted: socket.socket) -> None:
        handshake_s = _HANDSHAKE_S if self._tls else None
        peer = self._places[connection]
        if self._queue is not None and self._tls is not None and peer.is_over_budget(self._loop.time()):
            turn = asyncio.Event()
            self._queue(peer, turn.set)
            await turn.wait()
        try:
            await self._loop.connect_accepted_socket(
                lambda: connection, accepted, ssl=self._tls, ssl_handshake_timeout=handshake_s
            )
        except OSError:
            log.debug("a connection came to nothing", exc_info=True)
        finally:
            if self._tls is not None:
                peer.units -= _HANDSHAKE_UNITS  # only now: one that stalls has cost nothing

    def _connected(self, connection: P, accepted: socket.socket, _: asyncio.Task[None]) -> None:
        self._beginning.pop(connection, None)
        if connection not in self.open:
            accepted.close()
            self._release(connection)

    def _pause(self) -> None:
        for bound in self._sockets:
            self._loop.remove_reader(bound)

    def _go_on(self) -> None:
        for bound in self._sockets:
            self._loop.add_reader(bound, self._accept, bound)
