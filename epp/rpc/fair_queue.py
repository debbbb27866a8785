"""Peers of a listener: the work that each may cause, and whose turn it is when work was left.

Owns the budgets of peers and the order of turns. Rules:

* A peer is a client certificate, else an address (of IPv6 its /64). Its budget outlives its connections, so
  a reconnect brings no fresh allowance.
* Work is counted in the units of `epp.rpc.http2.limits`. Of a peer that is over its budget only the quiet
  connections are read.
* What is left after a slice waits in deficit round robin: over peers by the time that serving them took, and
  over the connections of a peer one by one.
"""

from __future__ import annotations

import ipaddress
from collections import deque
from typing import TYPE_CHECKING, Any

from epp.rpc.http2.limits import Bucket, Rate

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    #: Does a slice of work that waited, and queues again what is left.
    Turn = Callable[[], None]

#: More than an Envoy uses that saturates the picker: 1,500 requests/s, some 22 units each. A flood gets by it
#: a tenth of a CPU.
_PEER = Rate(burst=60_000, per_s=60_000)
#: A connection within this does little, and is read whatever its peer owes: some 100 requests/s.
_QUIET = Rate(burst=1000, per_s=3000)
#: Units that a new connection has of it, a few requests; and the least that are worth a slice.
FIRST_UNITS, _QUIET_SLICE_UNITS = 300, 100
#: Units of a slice: a millisecond or less.
_SLICE_UNITS = 500
#: A connection that was not read for so much of a window's time is a flood.
_FLOOD_S, _WINDOW_S = 0.5, 1.0
#: Peers without a connection whose budgets are kept.
_MAX_PEERS = 1024
#: Time that a peer is served before the next is.
_QUANTUM_S = 0.002


class Client(Bucket):
    """One peer of a listener, with its budget.

    Args:
        now_s: the time.

    Attributes:
        connections: its connections, those in their handshakes included, the oldest first.
        queue: what waits for its turn.
        credit_s: time that it may still be served in this round; negative where it took longer.
        throttled: its connections that are not read because it is over its budget.
    """

    __slots__ = ("connections", "credit_s", "queue", "throttled")

    def __init__(self, now_s: float) -> None:
        super().__init__(_PEER, now_s=now_s)
        self.connections: dict[Any, None] = {}
        self.queue: deque[Turn] = deque()
        self.credit_s = 0.0
        self.throttled = 0

    def is_over_budget(self, now_s: float) -> bool:
        """Whether it has used up its budget."""
        return self.units <= 0 and self.refill(now_s) <= 0


class RateLimit:
    """What one connection may use: of its peer's budget, else of a little of its own.

    Args:
        client: the connection's.
        now_s: the time.
    """

    __slots__ = ("_client", "_own", "_unread_s", "_waiting_since_s", "_waits", "_window_s")

    def __init__(self, client: Client, now_s: float) -> None:
        self._client, self._own = client, Bucket(_QUIET, FIRST_UNITS, now_s)
        self._waits = False
        self._window_s = self._waiting_since_s = now_s
        self._unread_s = 0.0

    def charge(self, units: int) -> None:
        """Subtract work that was done."""
        self._client.units -= units
        self._own.units -= units

    def next_units(self, now_s: float) -> int:
        """Units of the next slice; 0 while the peer is over its budget and this connection is not quiet."""
        if not self._client.is_over_budget(now_s):
            return _SLICE_UNITS
        return min(_SLICE_UNITS, int(self._own.units)) if self.is_quiet(now_s) else 0

    def is_quiet(self, now_s: float) -> bool:
        """Whether it does little; where it once did more than that, not before all of it is done."""
        return not self._waits and self._own.refill(now_s) >= _QUIET_SLICE_UNITS

    def wait(self, now_s: float) -> None:
        """The connection is not read from now on."""
        if now_s - self._window_s > _WINDOW_S:
            self._window_s, self._unread_s = now_s, 0.0
        self._waits, self._waiting_since_s = True, now_s

    def waited(self, now_s: float) -> float:
        """Seconds since then, which count."""
        waited_s = now_s - self._waiting_since_s
        self._unread_s += waited_s
        return waited_s

    @property
    def is_flood(self) -> bool:
        """Whether it was not read for half of the time."""
        return self._unread_s > _FLOOD_S

    def done(self) -> None:
        """Note that nothing of what came is left."""
        self._waits = False


class Clients:
    """The peers of a listener, by address or certificate."""

    def __init__(self) -> None:
        self._peers: dict[Hashable, Client] = {}

    def find(self, key: Hashable, now_s: float) -> Client:
        """The peer with this key, a new one where it is unknown or forgotten."""
        client = self._peers.get(key)
        if client is None:
            if len(self._peers) >= _MAX_PEERS:
                self._forget(now_s)
            client = self._peers[key] = Client(now_s)
        return client

    def by_connections(self) -> list[Client]:
        """All, those with the most connections first."""
        return sorted(self._peers.values(), key=lambda client: -len(client.connections))

    def _forget(self, now_s: float) -> None:
        """Drop peers without connections: all with full budgets, else the one known for longest."""
        absent = [key for key, client in self._peers.items() if not client.connections]
        full = [key for key in absent if self._peers[key].refill(now_s) >= _PEER.burst]
        for key in full or absent[:1]:
            del self._peers[key]


class FairQueue:
    """What waits for a turn, in deficit round robin."""

    def __init__(self) -> None:
        self._round: deque[Client] = deque()

    def add(self, client: Client, turn: Turn) -> None:
        """Queue work of a peer."""
        if not client.queue:
            self._round.append(client)
            client.credit_s = min(client.credit_s, 0.0)
        client.queue.append(turn)

    def take(self) -> tuple[Client, Turn] | None:
        """Whose turn it is; the time that it takes is to be subtracted from the peer's ``credit_s``."""
        while self._round:
            client = self._round[0]
            if client.credit_s <= 0:
                self._round.rotate(-1)
                self._round[0].credit_s += _QUANTUM_S
                continue
            turn = client.queue.popleft()
            if not client.queue:
                self._round.popleft()
                if self._round:
                    self._round[0].credit_s += _QUANTUM_S
            return client, turn
        return None


def address_key(address: Any) -> Hashable:
    """Key of the peer at a socket's address: the host, of IPv6 its /64; one for all of a Unix socket."""
    if not isinstance(address, tuple):
        return ""
    host = ipaddress.ip_address(address[0].partition("%")[0])
    if isinstance(host, ipaddress.IPv4Address):
        return host.packed
    return host.ipv4_mapped.packed if host.ipv4_mapped else host.packed[:8]
