"""What distance costs: half a round trip each way, jitter, and slow start for large bodies.

Pure arithmetic; who sleeps is in ``http.py``, who schedules in ``fleet.py``. Source: [G] -
tiny prompts pay one round trip to a far region, 8-24k-token prompts about three, because their body goes up
in TCP slow start. Jitter is drawn by key: a request meets the same network whatever was picked before.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from statistics import NormalDist

from epp.keyed_uniform import keyed_uniform

# RFC 6928: ten segments of 1,460 bytes before the first acknowledgement.
INITIAL_WINDOW_BYTES = 14_600
# Linux: retransmission timeout is the smoothed round trip and at least this much on top (TCP_RTO_MIN).
_RTO_FLOOR_MS = 200.0
_NORMAL = NormalDist()


@dataclass(slots=True)
class SendWindow:
    """The congestion window that a peer has opened on one connection."""

    window_bytes: int = INITIAL_WINDOW_BYTES

    def upload_round_trips(self, body_bytes: int) -> int:
        """Whole round trips that a body adds to the first half one; the window stays as wide as it grew."""
        sent, extra = self.window_bytes, 0
        while sent < body_bytes:
            self.window_bytes *= 2
            sent += self.window_bytes
            extra += 1
        return extra


class SlowStart(Enum):
    """When a connection's window falls back to the initial one."""

    ALWAYS = "always"  # every body goes up cold: the cost that the published fleet paid
    IDLE = "idle"  # halved for every retransmission timeout that it idles (RFC 2861, Linux's default)
    NEVER = "never"  # the window stays (tcp_slow_start_after_idle=0), or proxies on the way keep it


@dataclass(frozen=True, slots=True)
class NetworkPath:
    """The way from the gateway to one replica.

    Attributes:
        rtt_ms: round trip over a warm connection.
        jitter: standard deviation of the logarithm of each one-way delay (source [P]).
        spike_share: share of ways that are hit by a delay of their own (the same).
        spike_ms: mean of that delay, exponential.
        slow_start: when windows fall back.
        handshake_round_trips: cost of a new connection: 1 for TCP, 2 with TLS 1.3.
        keep_alive_s: an idle connection is closed after so long.
    """

    rtt_ms: float = 0.0
    jitter: float = 0.08
    spike_share: float = 0.02
    spike_ms: float = 100.0
    slow_start: SlowStart = SlowStart.IDLE
    handshake_round_trips: int = 1
    keep_alive_s: float = 60.0

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            ValueError: a value makes no sense.
        """
        if min(self.rtt_ms, self.jitter, self.spike_ms, self.handshake_round_trips, self.keep_alive_s) < 0:
            raise ValueError("a path's times must not be negative")
        if not 0 <= self.spike_share <= 1:
            raise ValueError("spike_share must be within 0 and 1")

    @property
    def opening_ms(self) -> float:
        """Time to open a connection."""
        return self.handshake_round_trips * self.rtt_ms

    def one_way_ms(self, seed: int, key: str, salt: str) -> float:
        """Half a round trip with its jitter, drawn by key."""
        half_ms = self.rtt_ms / 2.0
        if self.rtt_ms == 0.0:
            return 0.0
        if self.jitter:
            half_ms *= math.exp(self.jitter * _NORMAL.inv_cdf(max(keyed_uniform(seed, key, salt), 1e-12)))
        if self.spike_share:
            hit = keyed_uniform(seed, key, salt + " spike")
            if hit < self.spike_share:  # given that it hits, the same number is uniform again
                half_ms -= self.spike_ms * math.log1p(-hit / self.spike_share)
        return half_ms


@dataclass(slots=True)
class Connection:
    """One connection between gateway and replica.

    Attributes:
        window: what the gateway may send at once.
        idle_since_ms: end of the last request on it.
        anew: it was opened for the request that it was taken for.
    """

    window: SendWindow
    idle_since_ms: float = 0.0
    anew: bool = False


class Connections:
    """The gateway's pool of connections to one replica: the one used last is used next."""

    __slots__ = ("_idle", "_path")

    def __init__(self, path: NetworkPath) -> None:
        self._path = path
        self._idle: list[Connection] = []  # the oldest first

    def take(self, body_bytes: int, now_ms: float) -> tuple[Connection, int]:
        """A connection for a body, and the round trips that it adds to the half one of every request."""
        found = self._newest(now_ms)
        if found is not None:
            self._idle.pop()
        connection, extra = self._prepare(found, now_ms)
        return connection, extra + connection.window.upload_round_trips(body_bytes)

    def preview(self, body_bytes: int, now_ms: float) -> int:
        """The round trips that `take` would name; nothing is taken."""
        connection, extra = self._prepare(self._newest(now_ms), now_ms)
        return extra + connection.window.upload_round_trips(body_bytes)

    def give_back(self, connection: Connection, now_ms: float) -> None:
        """The answer is through."""
        connection.idle_since_ms = now_ms
        self._idle.append(connection)

    def close(self) -> None:
        """All idle connections are gone: the peer is."""
        self._idle.clear()

    def _newest(self, now_ms: float) -> Connection | None:
        if self._idle and now_ms - self._idle[-1].idle_since_ms > self._path.keep_alive_s * 1e3:
            self._idle.clear()  # the newest is too old, and so are the others
        return self._idle[-1] if self._idle else None

    def _prepare(self, found: Connection | None, now_ms: float) -> tuple[Connection, int]:
        """A copy of the connection as wide as it is now, and its handshake's round trips."""
        path = self._path
        if found is None:
            return Connection(SendWindow(), anew=True), path.handshake_round_trips
        width = found.window.window_bytes
        if path.slow_start is SlowStart.ALWAYS:
            width = INITIAL_WINDOW_BYTES
        elif path.slow_start is SlowStart.IDLE:
            timeouts = int((now_ms - found.idle_since_ms) / (_RTO_FLOOR_MS + path.rtt_ms))
            width = max(INITIAL_WINDOW_BYTES, width >> min(timeouts, 40))
        return Connection(SendWindow(width)), 0
