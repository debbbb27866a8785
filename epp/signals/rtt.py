"""Round-trip times: what the network costs, not what a probe happened to catch.

Owns the filter. A probe measures the network plus whatever hit it (a handshake, a busy peer, a lost packet),
and the sum is never too small, so the least of the last few samples estimates the network; an EWMA over these
minima then moves without jumps. Published probe series show why the order matters: about half of the samples
to a far region sit at the true mode and the rest at two to four times of it, so an EWMA over raw samples
lands at twice the true value.

Two sources, a table each: TCP connects of real requests as Envoy timed them, which no busy engine delays
(the kernel answers), and probes. Connects count while they are fresh and do not end nearer than the engine
does: where a proxy or a tunnel in between takes the connection, its round trip is not the engine's, and the
probes, which go all the way, count.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from epp.signals.slots import grown
from epp.types import MAX_RTT_MS, RTT_SOURCES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from epp.types import Floats

_NAN = math.nan
#: Samples that the minimum is taken over. With half of them clean, 8 miss the network's own time once in 256.
#: At one probe every 1 to 5 s they span 8 to 40 s: so long takes a route that became slower to show.
_WINDOW = 8
#: Weight of the newest minimum in the EWMA; 0.3 follows 90 % of a step in 7 probes.
_ALPHA = 0.3
#: A connect that is quicker than this share of the probes ended at something in between.
_SAME_PEER = 0.5

_NOWHERE, _ASSUMED, _PROBE, _CONNECT = range(len(RTT_SOURCES))


class _Filtered:
    """Minimum over a window, then an EWMA, by slot."""

    def __init__(self, stale_after_s: float) -> None:
        self._stale_after_s = stale_after_s
        self._recent = np.full((_WINDOW, 0), _NAN, np.float64)
        self._next: list[int] = []
        self.smooth = np.zeros(0, np.float64)
        self.observed_s = np.zeros(0, np.float64)
        self.stale_at_s = math.inf  # no sample is stale before

    def resize(self, capacity: int) -> None:
        self._recent = grown(self._recent, capacity, _NAN)
        self._next += [0] * (capacity - len(self._next))
        self.smooth = grown(self.smooth, capacity, _NAN)
        self.observed_s = grown(self.observed_s, capacity, _NAN)

    def observe(self, slot: int, rtt_ms: float, now_s: float) -> None:
        if now_s - self.observed_s[slot] > self._stale_after_s:
            self.clear(slot)  # what was measured before the gap says nothing about now
        self._recent[self._next[slot], slot] = rtt_ms
        self._next[slot] = (self._next[slot] + 1) % _WINDOW
        least = float(np.fmin.reduce(self._recent[:, slot]))
        before = float(self.smooth[slot])
        self.smooth[slot] = least if math.isnan(before) else before + _ALPHA * (least - before)
        self.observed_s[slot] = now_s
        self.stale_at_s = min(self.stale_at_s, now_s + self._stale_after_s)

    def clear(self, slot: int) -> None:
        self._recent[:, slot] = _NAN
        self.smooth[slot] = self.observed_s[slot] = _NAN

    def expire(self, now_s: float) -> list[int]:
        """Clear what is stale; the slots."""
        stale = np.flatnonzero(now_s - self.observed_s > self._stale_after_s).tolist()  # not of NaN
        for slot in stale:
            self.clear(slot)
        left = self.observed_s[~np.isnan(self.observed_s)]
        self.stale_at_s = float(left.min()) + self._stale_after_s if left.size else math.inf
        return [int(slot) for slot in stale]


class RttTable:
    """RTT by slot.

    Args:
        stale_after_s: age of the last sample beyond which nothing is known any more.
    """

    def __init__(self, stale_after_s: float = 60.0) -> None:
        self._probes = _Filtered(stale_after_s)
        self._connects = _Filtered(stale_after_s)
        self._prior = np.zeros(0, np.float64)
        self._column = np.zeros(0, np.float64)  # what the outside sees
        self._sources = np.zeros(0, np.int8)
        #: Changes with every value that anybody can see.
        self.version = 0

    def resize(self, capacity: int) -> None:
        """Make room for slots below ``capacity``."""
        self._probes.resize(capacity)
        self._connects.resize(capacity)
        self._prior = grown(self._prior, capacity, _NAN)
        self._column = grown(self._column, capacity, _NAN)
        self._sources = grown(self._sources, capacity, _NOWHERE)

    def observe(self, slot: int, rtt_ms: float, now_s: float) -> bool:
        """Take one probe over an open connection.

        Returns:
            False for a sample that is no time at all: negative, NaN, infinite, over a minute.
        """
        return self._take(self._probes, slot, rtt_ms, now_s)

    def connected(self, slot: int, connect_ms: float, now_s: float) -> bool:
        """Take the time of one TCP connect, one round trip by SYN and SYN-ACK; returns as `observe`."""
        return self._take(self._connects, slot, connect_ms, now_s)

    def assume(self, slot: int, rtt_ms: float | None) -> None:
        """State what counts while nothing is measured; None to state nothing."""
        self._prior[slot] = _NAN if rtt_ms is None else rtt_ms
        self._show(slot)

    def forget(self, slot: int) -> None:
        """Clear the slot, assumption included."""
        self._probes.clear(slot)
        self._connects.clear(slot)
        self._prior[slot] = self._column[slot] = _NAN
        self._sources[slot] = _NOWHERE
        self.version += 1

    def rtt_ms(self, now_s: float) -> Floats:
        """Return by slot: measured, else assumed, else NaN. Not to be written; valid until the next call."""
        for table in (self._probes, self._connects):
            if now_s > table.stale_at_s:
                for slot in table.expire(now_s):
                    self._show(slot)
        return self._column

    def sources(self, now_s: float) -> NDArray[np.int8]:
        """Return where each slot's RTT comes from, as indices of `epp.types.RTT_SOURCES`."""
        self.rtt_ms(now_s)
        return self._sources

    def source(self, slot: int, now_s: float) -> str:
        """Name where a slot's RTT comes from, ``""`` when it is not known."""
        return RTT_SOURCES[self.sources(now_s)[slot]]

    def _take(self, table: _Filtered, slot: int, rtt_ms: float, now_s: float) -> bool:
        if not 0.0 <= rtt_ms <= MAX_RTT_MS:
            return False
        table.observe(slot, rtt_ms, now_s)
        self._show(slot)
        return True

    def _by_connects(self, slot: int) -> bool:
        connect_ms, probe_ms = float(self._connects.smooth[slot]), float(self._probes.smooth[slot])
        return not math.isnan(connect_ms) and not connect_ms < _SAME_PEER * probe_ms

    def _show(self, slot: int) -> None:
        self.version += 1
        if self._by_connects(slot):
            self._column[slot], self._sources[slot] = self._connects.smooth[slot], _CONNECT
        elif not math.isnan(self._probes.smooth[slot]):
            self._column[slot], self._sources[slot] = self._probes.smooth[slot], _PROBE
        else:
            prior_ms = self._column[slot] = self._prior[slot]
            self._sources[slot] = _NOWHERE if math.isnan(prior_ms) else _ASSUMED
