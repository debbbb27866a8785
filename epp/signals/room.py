"""How many more requests an engine takes, learned from what it says of itself.

Owns the largest batch that each engine was seen to run, by slot. An engine is full with `BATCHES` times as
many requests: then as many wait as it runs. That something waits says little: it does at moments on every
engine that prefills one prompt at a time. An engine that has never been seen to queue is never full. What it
ran while something waited fades towards what it runs by now: long prompts fill its cache with fewer requests.
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
#: Requests of a full engine, as a multiple of its largest batch.
BATCHES = 2.0
#: Time constant with which a larger batch is forgotten while requests wait beside a smaller one.
_FADING_S = 120.0


class Room:
    """Places by slot."""

    def __init__(self) -> None:
        #: Largest batch by slot, NaN before anything waited. Not to be written.
        self.largest: Floats = np.zeros(0, np.float64)
        self._seen_s: Floats = np.zeros(0, np.float64)

    def resize(self, capacity: int) -> None:
        """Make room for slots below ``capacity``."""
        self.largest = grown(self.largest, capacity, math.nan)
        self._seen_s = grown(self._seen_s, capacity, 0.0)

    def forget(self, slot: int) -> None:
        """Forget the slot's engine."""
        self.largest[slot] = math.nan

    def observe(self, slot: int, sample: EngineSample, now_s: float) -> None:
        """Take what an engine says; nothing of one that does not tell its batch and its queue."""
        if sample.running is None or sample.waiting is None:
            return
        running, largest = sample.running, float(self.largest[slot])
        if sample.waiting > 0.0:
            left = math.exp(-max(now_s - self._seen_s[slot], 0.0) / _FADING_S)
            faded = running + (largest - running) * left if largest > running else running  # NaN is not
            self.largest[slot] = max(faded, 1.0)
        elif running > largest:
            self.largest[slot] = running
        self._seen_s[slot] = now_s

    def places(self, rows: Rows, promised: Floats) -> Floats:
        """Return how many more requests each takes, 0 for none.

        Args:
            rows: the slots.
            promised: unfinished requests of each (`Datastore.in_flight_tokens`).
        """
        largest = self.largest[rows]
        return np.where(np.isnan(largest), UNLIMITED, np.maximum(BATCHES * largest - promised, 0.0))
