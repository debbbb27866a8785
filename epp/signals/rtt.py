"""Round-trip times: what the network costs, not what a probe happened to catch.

Owns the filter. A probe measures the network plus whatever hit it (a handshake, a busy peer, a lost packet),
and the sum is never too small, so the least of the last few samples estimates the network; an EWMA over these
minima then moves without jumps. Published probe series show why the order matters: about half of the samples
to a far region sit at the true mode and the rest at two to four times of it, so an EWMA over raw samples
lands at twice the true value.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from epp.signals.slots import grown

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: No network takes this long; such a sample is a fault of clock or prober.
_ABSURD_MS = 60_000.0
_NAN = math.nan


class RttTable:
    """RTT by slot.

    Args:
        window: samples the minimum is taken over. With half of the samples clean, 8 miss the network's own
            time once in 256; at one probe every 1 to 5 s they span 8 to 40 s, which is how long a route that
            became slower takes to show. One that became faster shows at once.
        alpha: weight of the newest minimum in the EWMA; 0.3 follows 90 % of a step in 7 probes.
        stale_after_s: age of the last sample beyond which nothing is known any more.
    """

    def __init__(self, window: int = 8, alpha: float = 0.3, stale_after_s: float = 60.0) -> None:
        if window < 1 or not 0.0 < alpha <= 1.0 or stale_after_s <= 0:
            raise ValueError(f"window {window}, alpha {alpha}, stale_after_s {stale_after_s}")
        self._window, self._alpha, self._stale_after_s = window, alpha, stale_after_s
        self._recent = np.full((window, 0), _NAN, np.float64)
        self._next: list[int] = []
        self._smooth = np.zeros(0, np.float64)  # the EWMA
        self._prior = np.zeros(0, np.float64)
        self._column = np.zeros(0, np.float64)  # what the outside sees
        self._observed_s = np.zeros(0, np.float64)
        self._stale_at_s = math.inf  # no sample is stale before
        #: Samples refused because no network gives them.
        self.rejected = 0

    def resize(self, capacity: int) -> None:
        """Make room for slots below ``capacity``."""
        self._recent = grown(self._recent, capacity, _NAN)
        self._next += [0] * (capacity - len(self._next))
        self._smooth = grown(self._smooth, capacity, _NAN)
        self._prior = grown(self._prior, capacity, _NAN)
        self._column = grown(self._column, capacity, _NAN)
        self._observed_s = grown(self._observed_s, capacity, _NAN)

    def observe(self, slot: int, rtt_ms: float, now_s: float) -> bool:
        """Take one sample over a warm connection.

        Returns:
            False for a sample that is no time at all (negative, NaN, infinite, over a minute): refused and
            counted.
        """
        if not 0.0 <= rtt_ms <= _ABSURD_MS:
            self.rejected += 1
            return False
        if now_s - self._observed_s[slot] > self._stale_after_s:
            self._clear(slot)  # what was measured before the gap says nothing about now
        self._recent[self._next[slot], slot] = rtt_ms
        self._next[slot] = (self._next[slot] + 1) % self._window
        least = float(np.fmin.reduce(self._recent[:, slot]))
        before = float(self._smooth[slot])
        smooth = least if math.isnan(before) else before + self._alpha * (least - before)
        self._smooth[slot] = self._column[slot] = smooth
        self._observed_s[slot] = now_s
        self._stale_at_s = min(self._stale_at_s, now_s + self._stale_after_s)
        return True

    def assume(self, slot: int, rtt_ms: float | None) -> None:
        """State what counts while nothing is measured; None to state nothing.

        Raises:
            ValueError: not a time.
        """
        if rtt_ms is not None and not 0.0 <= rtt_ms <= _ABSURD_MS:
            raise ValueError(f"not a round-trip time: {rtt_ms} ms")
        self._prior[slot] = _NAN if rtt_ms is None else rtt_ms
        if math.isnan(self._smooth[slot]):
            self._column[slot] = self._prior[slot]

    def forget(self, slot: int) -> None:
        """Clear the slot, assumption included."""
        self._clear(slot)
        self._prior[slot] = self._column[slot] = _NAN

    def rtt_ms(self, now_s: float) -> NDArray[np.float64]:
        """By slot: measured, else assumed, else NaN. Not to be written; valid until the next call."""
        if now_s > self._stale_at_s:
            self._expire(now_s)
        return self._column

    def age_s(self, now_s: float) -> NDArray[np.float64]:
        """Seconds since the last sample, by slot; NaN where there is none."""
        return now_s - self._observed_s

    def _expire(self, now_s: float) -> None:
        stale = now_s - self._observed_s > self._stale_after_s  # False for NaN
        for slot in np.flatnonzero(stale).tolist():
            self._clear(slot)
        left = self._observed_s[~np.isnan(self._observed_s)]
        self._stale_at_s = float(left.min()) + self._stale_after_s if left.size else math.inf

    def _clear(self, slot: int) -> None:
        self._recent[:, slot] = _NAN
        self._smooth[slot] = self._observed_s[slot] = _NAN
        self._column[slot] = self._prior[slot]
