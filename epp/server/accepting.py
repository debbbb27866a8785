"""Takes the connections of a listener, as many at once as are allowed, and closes what comes beyond.

Owns the listening sockets and what is in its TLS handshake. asyncio's own server can refuse nobody: with TLS
it tells of a connection only after the handshake, and each that is in one holds a file all the same.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Callable

    from epp.server.sparse_log import SparseLog

log = logging.getLogger(__name__)

_HANDSHAKE_S = 20.0
#: Connections taken in one turn of the loop; others have theirs, however many wait.
_A_TURN = 64
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
    """So many connections, or fewer where this process may open too few files for them and its other work."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or wanted <= soft // _FILES_SHARE:
        return wanted
    allowed = max(soft // _FILES_SHARE, 1)
    log.warning("%d connections are taken instead of %d: %d files may be open", allowed, wanted, soft)
    return allowed


class Acceptor(Generic[P]):
    """The listening sockets of one listener.

    Args:
        new_protocol: makes what serves a connection; that one tells `begun` and `gone`.
        most: connections at once, those in their handshakes included.
        tls: for connections, None for plaintext.
        lines: for lines that a peer can cause by the thousand.
        on_refused: told of each connection that is closed because there are enough.

    Attributes:
        open: connections that have begun.
    """

    def __init__(
        self,
        new_protocol: Callable[[], P],
        *,
        most: int,
        tls: ssl.SSLContext | None,
        lines: SparseLog,
        on_refused: Callable[[], None],
    ) -> None:
        self._new_protocol, self._most, self._tls = new_protocol, most, tls
        self._lines, self._on_refused = lines, on_refused
        self._loop = asyncio.get_running_loop()
        self._sockets: list[socket.socket] = []
        self._beginning: dict[P, asyncio.Task[None]] = {}
        #: Of those the sockets that nothing has been begun with.
        self._untouched: dict[P, socket.socket] = {}
        self._retry: asyncio.TimerHandle | None = None
        self.open: set[P] = set()

    def listen(self, bound: socket.socket) -> None:
        """Take the connections of one more socket, which listens."""
        bound.setblocking(False)
        self._sockets.append(bound)
        self._loop.add_reader(bound, self._accept, bound)

    def close(self) -> None:
        """Take no more, and end handshakes; what is open stays."""
        self._pause()
        if self._retry is not None:
            self._retry.cancel()
        for bound in self._sockets:
            bound.close()
        self._sockets.clear()
        for task in self._beginning.values():
            task.cancel()
        for connection, accepted in self._untouched.items():  # their tasks never run: nobody else would
            accepted.close()
            del self._beginning[connection]
        self._untouched.clear()

    def begun(self, connection: P) -> None:
        """A connection can be spoken on."""
        self._beginning.pop(connection, None)
        self.open.add(connection)

    def gone(self, connection: P) -> None:
        """It is closed."""
        self.open.discard(connection)

    def _accept(self, bound: socket.socket) -> None:
        for _ in range(_A_TURN):
            try:
                accepted, _ = bound.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _USED_UP:
                    raise
                self._lines.warning("no connection can be taken: %s", error)
                self._pause()
                self._retry = self._loop.call_later(_PAUSE_S, self._go_on)
                return
            if len(self._beginning) + len(self.open) >= self._most:
                accepted.close()
                self._on_refused()
                self._lines.warning("a connection was closed at once: %d are open", self._most)
                continue
            accepted.setblocking(False)
            connection = self._new_protocol()
            self._untouched[connection] = accepted
            self._beginning[connection] = self._loop.create_task(self._begin(connection, accepted))

    async def _begin(self, connection: P, accepted: socket.socket) -> None:
        handshake_s = _HANDSHAKE_S if self._tls else None
        del self._untouched[connection]
        try:
            await self._loop.connect_accepted_socket(
                lambda: connection, accepted, ssl=self._tls, ssl_handshake_timeout=handshake_s
            )
        except OSError:
            log.debug("a connection came to nothing", exc_info=True)
        finally:
            self._beginning.pop(connection, None)

    def _pause(self) -> None:
        for bound in self._sockets:
            self._loop.remove_reader(bound)

    def _go_on(self) -> None:
        for bound in self._sockets:
            self._loop.add_reader(bound, self._accept, bound)
