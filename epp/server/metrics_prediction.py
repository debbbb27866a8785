"""How well the picker's signals foretell TTFT: one small regression per endpoint, and nothing that decides.

Owns the coefficients. The model is the simplest that the signals allow: beyond the round trip, time grows
linearly with the uncached tokens that stand before the first token, the request's own among them
(uncached tokens awaiting their first token explain TTFT best: R2 0.714 against 0.625 for all queued tokens,
design section 7). A policy that foretells TTFT itself passes its own figure instead.
"""

from __future__ import annotations

import math

#: Weight of the newest sample; an endpoint's last fifty requests speak.
ALPHA = 0.02
#: Samples before which nothing is foretold.
ENOUGH = 5


class TtftModel:
    """``ttft_ms = rtt_ms + base_ms + ms_per_token * tokens`` of one endpoint, forgetting exponentially."""

    __slots__ = ("_count", "_x", "_xx", "_xy", "_y")

    def __init__(self) -> None:
        self._count = 0
        self._x = self._y = self._xx = self._xy = 0.0

    def predict(self, rtt_ms: float, tokens: float) -> float:
        """TTFT in milliseconds; NaN before `ENOUGH` samples."""
        if self._count < ENOUGH:
            return math.nan
        spread = self._xx - self._x * self._x
        slope = max((self._xy - self._x * self._y) / spread, 0.0) if spread > 1e-9 * self._xx else 0.0
        return rtt_ms + max(self._y + slope * (tokens - self._x), 0.0)

    def learn(self, rtt_ms: float, tokens: float, ttft_ms: float) -> None:
        """Take what was seen."""
        self._count += 1
        alpha = max(ALPHA, 1.0 / self._count)  # plain averages until there are enough to forget some
        rest = max(ttft_ms - rtt_ms, 0.0)
        self._x += alpha * (tokens - self._x)
        self._y += alpha * (rest - self._y)
        self._xx += alpha * (tokens * tokens - self._xx)
        self._xy += alpha * (tokens * rest - self._xy)
