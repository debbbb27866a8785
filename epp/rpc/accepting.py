"""Takes the connections of a listener, as many at once as are allowed, and closes what comes beyond.

Owns the listening sockets, what is in its TLS handshake, and who may have a place. asyncio's own server
reports a connection only after its TLS handshake, and each that is in one holds a file all the same. Where
idle connections can be ended, no peer holds all places: the oldest idle connection of the peer with the most
makes room. Beyond all places, listeners that answer probes keep some more for them: there the oldest
connection makes room, used or not. A connection over HTTP that is silent for long is closed: HTTP waits
without end for a request, for the rest of one, for an answer to be read.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import logging
import os
import resource
import socket
import stat
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from epp.config.address import UNIX, join_address, split_address
from epp.errors import ConfigError
from epp.logs import REPEATED
from epp.rpc.fair_queue import Clients, address_key

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from epp.rpc.connection_balancer import ConnectionBalancer
    from epp.rpc.fair_queue import Client, Turn

log = logging.getLogger(__name__)

_UNIX_MODE = 0o660
#: Connections that the system holds ready.
_BACKLOG = 1024
_FIXES = {
    errno.EADDRNOTAVAIL: "no address of this machine; 0.0.0.0 or [::] listens on all that it has",
    errno.ENOENT: "name a socket in a folder that is there",
    errno.EACCES: "ports below 1024 want rights that this process lacks; write a higher one",
}
_FIX = "is another picker running? stop it, or write another address"
#: Longer than it is from scrape to scrape, so that a scraper's connection lasts.
SILENT_S = 120.0
_HANDSHAKE_S = 20.0
#: Connections taken in one turn of the loop: a few milliseconds. With 16 a flood of connections fills the
#: backlog, and who connects then is heard a second later. They are no more than a part of what one peer may
#: have: some turns pass before a connection is heard, and by then it must not have made room for later ones.
_A_TURN, _A_TURN_PART = 64, 16
#: Places kept for probes: a probe is answered before so many others come.
_KEPT = 64
#: Work units of a new connection, and of a TLS handshake.
_CONNECT_UNITS, _HANDSHAKE_UNITS = 25, 800
#: The process or the system has nothing left to accept with: so long until it is tried again.
_PAUSE_S = 1.0
#: As long as a process leaves a connection to others that have less load.
_OTHERS_TURN_S = 0.005
_USED_UP = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

#: Share of the files that the process may open which the connections of one listener may hold. There are four
#: listeners at most, and a pool of endpoints wants two files for each of them.
_FILES_SHARE = 8
#: What `allow_files` asks for, at most.
_FILES = 65_536

P = TypeVar("P", bound=asyncio.Protocol)


@contextlib.contextmanager
def located(source: str, key: str, address: str) -> Iterator[None]:
    """Report what cannot be listened on by the file and key that say so.

    Args:
        source: name of the configuration file.
        key: its key, e.g. ``listen.grpc``.
        address: what the key says.

    Raises:
        ConfigError: instead of an OSError.
    """
    try:
        yield
    except OSError as error:
        first = error.__cause__ if isinstance(error.__cause__, OSError) else error
        # Of what the system refuses its own words; a resolver's numbers are negative, and grpc has none.
        number = first.errno or 0
        why = os.strerror(number) if number > 0 else first.strerror or str(first)
        fix = _FIXES.get(number, _FIX)
        raise ConfigError(source, key, f"cannot listen on {address}: {why}", fix) from error


def listening_sockets(address: str) -> list[socket.socket]:
    """A bound socket for each address of ``host:port``, on one port, or one for ``unix:/path``.

    A host's name may have two addresses, and ``::`` takes IPv4 as well, as gRPC's listeners do. A Unix socket
    is for this user and group; one that a dead process left there goes.

    Raises:
        OSError: one of them cannot be bound.
        ValueError: it is not an address.
    """
    if address in _early:
        return [bound.dup() for bound in _early[address]]
    opened: list[socket.socket] = []
    try:
        if address.startswith(UNIX):
            opened.append(_unix_socket(Path(address.removeprefix(UNIX))))
        else:
            _bind_all(*split_address(address), opened)
    except OSError as error:
        for bound in opened:
            bound.close()
        raise OSError(error.errno, f"cannot listen on {address}: {error.strerror or error}") from error
    return opened


def _bind_all(host: str, port: int, opened: list[socket.socket]) -> None:
    if host == "::" and not socket.has_dualstack_ipv6():
        host = "0.0.0.0"
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    for family, place in dict.fromkeys((family, place[:2]) for family, *_, place in found):
        chosen = opened[0].getsockname()[1] if opened else place[1]
        dual = host == "::" and family == socket.AF_INET6
        opened.append(
            socket.create_server((place[0], chosen), family=family, dualstack_ipv6=dual, backlog=_BACKLOG)
        )


def _unix_socket(path: Path) -> socket.socket:
    bound = socket.socket(socket.AF_UNIX)
    try:
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISSOCK(path.stat().st_mode):
                path.unlink()
        bound.bind(str(path))
        path.chmod(_UNIX_MODE)  # before it listens: nobody has come yet
        bound.listen(_BACKLOG)
    except OSError:
        bound.close()
        raise
    return bound


#: Of `listening_sockets`, opened before they were asked for, by the address that they really have.
_early: dict[str, list[socket.socket]] = {}


def open_early(address: str) -> str:
    """Open what `listening_sockets` will return for an address, here and in processes forked from this one.

    Returns:
        The address with the port that it really has, by which it is to be asked for.

    Raises:
        OSError: the address cannot be bound.
        ValueError: it is not an address.
    """
    if address in _early:
        raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
    opened = listening_sockets(address)
    address = _bound_address(address, opened)
    _early[address] = opened
    return address


def close_early() -> None:
    """Close this process's part of what was opened early."""
    for opened in _early.values():
        for bound in opened:
            bound.close()
    _early.clear()


def _bound_address(address: str, opened: Sequence[socket.socket]) -> str:
    if address.startswith(UNIX):
        return address
    return join_address(split_address(address)[0], opened[0].getsockname()[1])


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
        end_kept: ends a connection in one of the places kept for probes; None where none are kept.
        queue: takes what waits for a turn: TLS handshakes of a peer over its budget.
        balancer: says which of several processes takes the next connection; None where there is one.

    Attributes:
        open: connections that have begun.
        kept: connections in the places kept for probes, the oldest first, and whose they are.
    """

    def __init__(
        self,
        new_protocol: Callable[[], P],
        *,
        most: int,
        tls: ssl.SSLContext | None,
        on_refused: Callable[[], None],
        end_idle: Callable[[Iterable[P]], P | None] | None = None,
        end_kept: Callable[[P], None] | None = None,
        queue: Callable[[Client, Turn], None] | None = None,
        balancer: ConnectionBalancer | None = None,
    ) -> None:
        self._new_protocol, self._most, self._tls = new_protocol, most, tls
        self._on_refused = on_refused
        self._end_idle, self._end_kept = end_idle, end_kept
        self._queue, self._balancer = queue, balancer
        self._share = most if end_idle is None else most - most // 2
        self._a_turn = max(min(_A_TURN, self._share // _A_TURN_PART), 1)
        self._loop = asyncio.get_running_loop()
        self._sockets: list[socket.socket] = []
        self._beginning: dict[P, asyncio.Task[None]] = {}
        self._retry: asyncio.TimerHandle | None = None
        self._clients = Clients()
        #: Who holds a place, and whose it is.
        self._places: dict[P, Client] = {}
        self.open: set[P] = set()
        self.kept: dict[P, Client] = {}

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
        return _bound_address(address, self._sockets)

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

    def begun(self, connection: P, certificate: bytes | None = None) -> Client | None:
        """A connection can be spoken on; its peer, which is the ``certificate`` (DER) where there is one.

        None where it was ended while it began.
        """
        self._beginning.pop(connection, None)
        self.open.add(connection)
        client = self._places.get(connection)
        if client is None:
            return self.kept.get(connection)
        if certificate is not None:
            del client.connections[connection]
            key = hashlib.sha256(certificate).digest()
            client = self._places[connection] = self._clients.find(key, self._loop.time())
            client.connections[connection] = None
        return client

    def gone(self, connection: P) -> None:
        """Forget a connection that is closed."""
        self.open.discard(connection)
        self._release(connection)

    def _accept(self, bound: socket.socket, *, left_over: bool = False) -> None:
        for turn in range(self._a_turn):
            balancer = self._balancer
            if (
                balancer is not None
                and balancer.is_others_turn
                and (turn or not left_over or not balancer.is_ready)
            ):
                self._pause()
                self._retry = self._loop.call_later(_OTHERS_TURN_S, self._accept_left_over)
                return
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
            if balancer is not None:
                balancer.took()
            now_s = self._loop.time()
            client = self._clients.find(address_key(address), now_s)
            client.units -= _CONNECT_UNITS
            try:
                accepted.getpeername()
            except OSError:  # reset while it waited to be taken
                accepted.close()
                continue
            has_room = self._has_room(client)
            if not has_room and self._end_kept is None:
                self._on_refused()
                accepted.close()
                log.warning("a connection was closed at once: no place was left for its peer", extra=REPEATED)
                continue
            accepted.setblocking(False)
            connection = self._new_protocol()
            if has_room:
                client.connections[connection] = None
                self._places[connection] = client
            else:
                self._keep(connection, client)
            connecting = self._connect(connection, accepted, client)
            task = self._beginning[connection] = self._loop.create_task(connecting)
            # Cancelled before its first step, nobody else would close it.
            task.add_done_callback(partial(self._connected, connection, accepted))

    def _accept_left_over(self) -> None:
        """Take what no other process has taken: the one whose turn it was is busy."""
        self._go_on()
        for bound in self._sockets:
            self._accept(bound, left_over=True)

    def _has_room(self, client: Client) -> bool:
        """Whether a peer may have one more place, after an idle connection was ended where none was left."""
        if len(client.connections) >= self._share:
            return self._make_room((client,))
        return len(self._places) < self._most or self._make_room(self._clients.by_connections())

    def _make_room(self, peers: Iterable[Client]) -> bool:
        """End an idle connection of the first of these peers that has one; whether there was one."""
        if self._end_idle is None:
            return False
        for client in peers:
            ended = self._end_idle(client.connections)
            if ended in self._beginning:
                self._end_beginning(ended)
                return True
            if ended is not None:
                self._release(ended)
                return True
        return False

    def _keep(self, connection: P, client: Client) -> None:
        """Give a connection one of the places kept for probes."""
        self.kept[connection] = client
        if len(self.kept) <= _KEPT:
            return
        oldest = next(iter(self.kept))
        self._on_refused()
        if oldest in self._beginning:
            self._end_beginning(oldest)
        elif self._end_kept is not None:
            del self.kept[oldest]
            self._end_kept(oldest)

    def _end_beginning(self, connection: P) -> None:
        """Close a connection that has not begun."""
        self._beginning.pop(connection).cancel()
        self._release(connection)

    def _release(self, connection: P) -> None:
        self.kept.pop(connection, None)
        client = self._places.pop(connection, None)
        if client is not None:
            del client.connections[connection]

    async def _connect(self, connection: P, accepted: socket.socket, client: Client) -> None:
        handshake_s = _HANDSHAKE_S if self._tls else None
        if self._queue is not None and self._tls is not None and client.is_over_budget(self._loop.time()):
            turn = asyncio.Event()
            self._queue(client, turn.set)
            await turn.wait()
        try:
            await self._loop.connect_accepted_socket(
                lambda: connection, accepted, ssl=self._tls, ssl_handshake_timeout=handshake_s
            )
        except OSError:
            log.debug("a connection came to nothing", exc_info=True)
        finally:
            if self._tls is not None:
                client.units -= _HANDSHAKE_UNITS  # only now: one that stalls has cost nothing

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


class Watched(asyncio.Protocol):
    """One connection.

    Args:
        spoken: what is spoken on it.
        acceptor: what it came from.
        probes: how a request has to begin in a place kept for probes.

    Attributes:
        has_begun: it can be spoken on.
    """

    def __init__(
        self, spoken: asyncio.Protocol, acceptor: Acceptor[Watched], probes: tuple[bytes, ...] = ()
    ) -> None:
        self.spoken, self._acceptor, self._probes = spoken, acceptor, probes
        self._loop = asyncio.get_running_loop()
        self.has_begun = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to speak."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's derives from no asyncio class
        self._acceptor.begun(self)
        self.has_begun = True
        self._heard_s = self._loop.time()
        self._looks = self._loop.call_later(SILENT_S, self._look)
        self.spoken.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Pass on what was heard."""
        self._heard_s = self._loop.time()
        if self in self._acceptor.kept and not data.startswith(self._probes):
            self.abort()
            return
        self.spoken.data_received(data)

    def eof_received(self) -> bool | None:
        """Note the end of what is heard."""
        return self.spoken.eof_received()

    def pause_writing(self) -> None:
        """Wait: the socket takes no more."""
        self.spoken.pause_writing()

    def resume_writing(self) -> None:
        """Write on."""
        self.spoken.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        self._looks.cancel()
        self._acceptor.gone(self)
        self.spoken.connection_lost(exc)

    def abort(self) -> None:
        """Close it at once."""
        self._transport.abort()

    def _look(self) -> None:
        # One timer a connection that is put off when it comes: a request costs none.
        left_s = self._heard_s + SILENT_S - self._loop.time()
        if left_s > 0.0:
            self._looks = self._loop.call_later(left_s, self._look)
        else:
            self.abort()


def watching(
    new_protocol: Callable[[], asyncio.Protocol],
    *,
    most: int,
    tls: ssl.SSLContext | None,
    on_refused: Callable[[], None],
    end_idle: Callable[[Iterable[Watched]], Watched | None] | None = None,
    probes: tuple[bytes, ...] = (),
) -> Acceptor[Watched]:
    """Make an `Acceptor` whose connections are watched.

    Args:
        new_protocol: makes what is spoken on a connection.
        most: see `Acceptor`, as for ``tls``, ``on_refused`` and ``end_idle``.
        tls: likewise.
        on_refused: likewise.
        end_idle: likewise.
        probes: how the requests begin for which places are kept; none are kept where there are none.
    """
    acceptor: Acceptor[Watched] = Acceptor(
        lambda: Watched(new_protocol(), acceptor, probes),
        most=most,
        tls=tls,
        on_refused=on_refused,
        end_idle=end_idle,
        end_kept=Watched.abort if probes else None,
    )
    return acceptor
