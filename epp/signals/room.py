"""How many more requests an engine takes before they wait, learned from what it says of itself.

Owns the largest batch that each engine was seen to run, by slot. An engine whose queue was not empty at its
last scrape has no room. Of one that has never been seen to queue no batch is too large. What it ran while
something waited fades towards what it runs by now: long prompts fill its cache with fewer requests.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from epp.signals.slots import grown

if TYPE_CHECKING:
    from epp.signals.metrics_text import EngineSample
    from epp.signals.slots import Rows
    from epp.types import Floats

#: Places of an engine that was never seen to queue.
UNLIMITED = 1000.0
#: Time constant with which a larger batch is forgotten while requests wait beside a smaller one.
_FADING_S = 120.0


class Room:
    """Places by slot."""

    def __init__(self) -> None:
        self._largest: Floats = np.zeros(0, np.float64)  # NaN before anything waited
        self._seen_s: Floats = np.zeros(0, np.float64)
        self._waiting: Floats = np.zeros(0, np.float64)

    def resize(self, capacity: int) -> None:
        """Make room for slots below ``capacity``."""
        self._largest = grown(self._largest, capacity, math.nan)
        self._seen_s = grown(self._seen_s, capacity, 0.0)
        self._waiting = grown(self._waiting, capacity, 0.0)

    def forget(self, slot: int) -> None:
        """Forget the slot's engine."""
        self._largest[slot], self._waiting[slot] = math.nan, 0.0

    def observe(self, slot: int, sample: EngineSample, now_s: float) -> None:
        """Take what an engine says; nothing of one that does not tell its batch and its queue."""
        if sample.running is None or sample.waiting is None:
            return
        running, largest = sample.running, float(self._largest[slot])
        self._waiting[slot] = sample.waiting
        if sample.waiting > 0.0:
            left = math.exp(-max(now_s - self._seen_s[slot], 0.0) / _FADING_S)
            faded = running + (largest - running) * left if largest > running else running  # NaN is not
            self._largest[slot] = max(faded, 1.0)
        elif running > largest:
            self._largest[slot] = running
        self._seen_s[slot] = now_s

    def places(self, rows: Rows, promised: Floats) -> Floats:
        """Return how many more requests each takes, 0 for none.

        Args:
            rows: the slots.
            promised: unfinished requests of each (`Fleet.promised`).
        """
        largest = self._largest[rows]
        left = np.where(np.isnan(largest), UNLIMITED, largest - promised)
        return np.where(self._waiting[rows] > 0.0, 0.0, np.maximum(left, 0.0))
