"""What distance costs: half a round trip each way, jitter, and slow start for large bodies.

Pure arithmetic; who sleeps is in ``http.py``, who schedules in ``fleet.py``. Source: [G] -
tiny prompts pay one round trip to a far region, 8-24k-token prompts about three, because their body goes up
in TCP slow start. Jitter is drawn by key: a request meets the same network whatever was chosen before.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

from epp.keyed_uniform import keyed_uniform

# RFC 6928: ten segments of 1,460 bytes before the first acknowledgement.
INITIAL_WINDOW_BYTES = 14_600
# Linux: retransmission timeout is the smoothed round trip and at least this much on top (TCP_RTO_MIN).
_RTO_FLOOR_MS = 200.0
_NORMAL = NormalDist()
_SPIKE_MS = 100.0  # source [P]
#: Idle connections are closed after so long.
_KEEP_ALIVE_MS = 60_000.0


@dataclass(frozen=True, slots=True)
class NetworkPath:
    """The way from the gateway to one replica.

    Attributes:
        rtt_ms: round trip over an open connection.
        jitter: standard deviation of the logarithm of each one-way delay (source [P]).
        spike_share: share of ways that are hit by a delay of their own, exponential with mean `_SPIKE_MS`.
    """

    rtt_ms: float = 0.0
    jitter: float = 0.08
    spike_share: float = 0.02

    def one_way_ms(self, seed: int, key: str, salt: str) -> float:
        """Return half a round trip with its jitter, drawn by key."""
        half_ms = self.rtt_ms / 2.0
        if self.rtt_ms == 0.0:
            return 0.0
        if self.jitter:
            half_ms *= math.exp(self.jitter * _NORMAL.inv_cdf(max(keyed_uniform(seed, key, salt), 1e-12)))
        if self.spike_share:
            hit = keyed_uniform(seed, key, salt + " spike")
            if hit < self.spike_share:  # given that it hits, the same number is uniform again
                half_ms -= _SPIKE_MS * math.log1p(-hit / self.spike_share)
        return half_ms


@dataclass(slots=True)
class Connection:
    """One connection between gateway and replica.

    Attributes:
        is_new: it was opened for the request that it was taken for.
        window_bytes: the congestion window: what the gateway may send at once.
        idle_since_ms: end of the last request on it.
    """

    is_new: bool = False
    window_bytes: int = INITIAL_WINDOW_BYTES
    idle_since_ms: float = 0.0

    def upload_round_trips(self, body_bytes: int) -> int:
        """Return the round trips that a body adds to the first half one; the window stays as it grew."""
        sent, extra = self.window_bytes, 0
        while sent < body_bytes:
            self.window_bytes *= 2
            sent += self.window_bytes
            extra += 1
        return extra


class Connections:
    """The gateway's pool of connections to one replica: the one used last is used next."""

    def __init__(self, path: NetworkPath) -> None:
        self._path = path
        self._idle: list[Connection] = []  # the oldest first

    def take(self, body_bytes: int, now_ms: float) -> tuple[Connection, int]:
        """Return a connection for a body, and the round trips that it adds to every request's half one."""
        found = self._prepared(body_bytes, now_ms)
        if self._idle:
            self._idle.pop()
        return found

    def preview(self, body_bytes: int, now_ms: float) -> int:
        """Return the round trips that `take` would name; nothing is taken."""
        return self._prepared(body_bytes, now_ms)[1]

    def release(self, connection: Connection, now_ms: float) -> None:
        """Keep a connection whose answer is through."""
        connection.idle_since_ms = now_ms
        self._idle.append(connection)

    def reroute(self, path: NetworkPath) -> None:
        """Use another way; connections stay open, as wide as they are."""
        self._path = path

    def close(self) -> None:
        """Drop all idle connections: the peer is gone."""
        self._idle.clear()

    def _prepared(self, body_bytes: int, now_ms: float) -> tuple[Connection, int]:
        """Return a copy of the newest connection as wide as it is now, or a new one, and its round trips."""
        if self._idle and now_ms - self._idle[-1].idle_since_ms > _KEEP_ALIVE_MS:
            self._idle.clear()  # the newest is too old, and so are the others
        if not self._idle:
            connection = Connection(is_new=True)
            return connection, 1 + connection.upload_round_trips(body_bytes)
        newest = self._idle[-1]
        # Halved for every retransmission timeout that it idles (RFC 2861, Linux's default).
        timeouts = int((now_ms - newest.idle_since_ms) / (_RTO_FLOOR_MS + self._path.rtt_ms))
        width = max(INITIAL_WINDOW_BYTES, newest.window_bytes >> min(timeouts, 40))
        connection = Connection(window_bytes=width)
        return connection, connection.upload_round_trips(body_bytes)
