"""The workers of one host: datagrams from process to process, without a broker.

Owns a worker's socket and what waits for others to read. A datagram is dropped where its reader has gone or
too much waits for it; what is shared heals by the next message.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections import Counter, defaultdict, deque
from functools import partial
from typing import TYPE_CHECKING

from epp.cluster.link import Link
from epp.errors import UnreadableError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from epp.clock import Clock
    from epp.cluster.messages import Group
    from epp.signals.datastore import Datastore

#: Room for the longest message of `epp.cluster.index_sync`, of which Linux grants twice `net.core.wmem_max`.
_SEND_BYTES = 512 * 1024
#: Linux takes ten datagrams for a reader by default: the rest waits here, so many at most.
_WAITING, _RETRY_S = 1000, 0.002
#: Datagrams read in one turn of the event loop.
_A_TURN = 32
SHARED, _QUESTION, _ANSWER = b"S", b"Q", b"A"


class Mailbox:
    """One worker's datagram socket.

    Args:
        folder: of the workers' sockets.
        index: of this worker.
        count: of all workers.

    Attributes:
        others: indices of the other workers.
        handlers: take what comes, by its kind, one byte; raise UnreadableError.
        ignored: datagrams not taken, by reason.
    """

    def __init__(self, folder: Path, index: int, count: int) -> None:
        self.index, self._folder = index, folder
        self.others = [other for other in range(count) if other != index]
        self.handlers: dict[bytes, Callable[[bytes], None]] = {}
        self.ignored = Counter[str]()
        self._waiting: defaultdict[int, deque[bytes]] = defaultdict(deque)
        self._retry: asyncio.TimerHandle | None = None
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BYTES)
        self._path(index).unlink(missing_ok=True)  # of the worker that this one replaces
        self._socket.bind(str(self._path(index)))

    def _path(self, index: int) -> Path:
        return self._folder / f"{index}.mail"

    def listen(self) -> None:
        """Read from now on."""
        asyncio.get_running_loop().add_reader(self._socket, self._read)

    def close(self) -> None:
        """Read and send no more."""
        asyncio.get_running_loop().remove_reader(self._socket)
        if self._retry is not None:
            self._retry.cancel()
        self._socket.close()

    def send(self, to: int, kind: bytes, data: bytes) -> bool:
        """Send a worker something; False where it is dropped."""
        waiting = self._waiting[to]
        if len(waiting) >= _WAITING:
            return False
        waiting.append(kind + data)
        return self._send_waiting(to)

    def _send_waiting(self, to: int) -> bool:
        waiting = self._waiting[to]
        while waiting:
            try:
                self._socket.sendto(waiting[0], str(self._path(to)))
            except BlockingIOError:
                if self._retry is None:
                    self._retry = asyncio.get_running_loop().call_later(_RETRY_S, self._send_again)
                return True
            except OSError:  # it is being replaced
                waiting.clear()
                return False
            waiting.popleft()
        return True

    def _send_again(self) -> None:
        self._retry = None
        for to in self.others:
            self._send_waiting(to)

    def _read(self) -> None:
        for _ in range(_A_TURN):
            try:
                data = self._socket.recv(2 * _SEND_BYTES)
            except BlockingIOError:
                return
            try:
                self.handlers.get(data[:1], _refuse)(data[1:])
            except UnreadableError:
                self.ignored["unreadable"] += 1


def _refuse(_: bytes) -> None:
    """Take a datagram of no kind that this worker knows."""
    raise UnreadableError("of no kind")


class HostLink(Link):
    """A worker's link to the others of its host.

    Args:
        mailbox: carries it.
        group: whom this picker understands.
        datastore: its signals.
        clock: the time.
    """

    def __init__(self, mailbox: Mailbox, group: Group, datastore: Datastore, clock: Clock) -> None:
        self._mailbox = mailbox
        super().__init__(group, datastore, clock, f"{mailbox.index}-{secrets.token_hex(8)}")
        mailbox.ignored = self.index_sync.counts.ignored
        mailbox.handlers[SHARED] = self.index_sync.receive
        mailbox.handlers[_QUESTION] = self._asked
        mailbox.handlers[_ANSWER] = self._answer

    @property
    def connected(self) -> bool:
        """Whether peers can be reached."""
        return True

    async def run(self) -> None:
        """Share until cancelled."""
        try:
            await self._share()
        finally:
            self.index_sync.leave()

    def ask(self, question: bytes) -> None:
        """Ask the live pages of all others something."""
        for index in self._mailbox.others:
            self._mailbox.send(index, _QUESTION, bytes((self._mailbox.index,)) + question)

    def _asked(self, data: bytes) -> None:
        asker = data[0] if data else -1
        if asker not in self._mailbox.others:
            raise UnreadableError("of nobody")
        self._question(data[1:], partial(self._mailbox.send, asker, _ANSWER))

    def _publish(self, to: str, data: bytes) -> None:
        for index in self._mailbox.others:
            if to.partition("-")[0] not in ("", str(index)):
                continue
            self.dropped += not self._mailbox.send(index, SHARED, data)
