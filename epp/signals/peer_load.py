"""The in-flight load of the other pickers of a pool, by slot.

Owns their gauges by origin and endpoint. A gauge replaces the one before, so losses heal with the next.

What others place before they tell it is expected: in a burst each gets as much as this picker, so what
this one has placed on an endpoint since it heard of them counts once more for each, but for
`SINGLE_REQUESTS`, which are no burst. Requests alone: of a burst's prompt an endpoint computes one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from epp.signals.ledger import QUEUED, ROWS, RUNNING
from epp.signals.slots import grown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from epp.signals.slots import Rows
    from epp.types import Floats

_NONE = (0.0,) * ROWS
_EXPECTED = [QUEUED, RUNNING]
#: Requests to one endpoint between two messages that are no burst: calls that one conversation makes at once.
SINGLE_REQUESTS = 1.0


class PeerLoad:
    """Gauges of others and their sums.

    Args:
        slot_of: finds the slot of an endpoint of the pool.
    """

    def __init__(self, slot_of: Callable[[str], int | None]) -> None:
        #: By slot, the rows of `LoadLedger.block`, not to be written.
        self.block: Floats = np.zeros((ROWS, 0), np.float64)
        self._slot_of = slot_of
        self._gauges: dict[str, dict[str, Sequence[float]]] = {}
        #: What this picker had placed when it heard of each, `_EXPECTED` by slot, and the sum.
        self._own: dict[str, Floats] = {}
        self._own_sum: Floats = np.zeros((len(_EXPECTED), 0), np.float64)
        self._sent, self._heard = self._own_sum.copy(), set[str]()

    def resize(self, capacity: int) -> None:
        """Make room for slots below ``capacity``."""
        self.block = grown(self.block, capacity, 0.0)
        self._own_sum, self._sent = grown(self._own_sum, capacity, 0.0), grown(self._sent, capacity, 0.0)
        self._own = {origin: grown(own, capacity, 0.0) for origin, own in self._own.items()}

    def recount(self) -> None:
        """Add up anew: the endpoints of the pool or their slots have changed."""
        self.block[:] = 0.0
        for gauges in self._gauges.values():
            for address, row in gauges.items():
                self._add(address, row)

    def in_flight_tokens(self, rows: Rows, own: Floats) -> Floats:
        """Return what the others have placed on these slots, or are expected to.

        Args:
            rows: the slots.
            own: what this picker has placed on these slots, rows of `LoadLedger.block`.
        """
        found: Floats = self.block[:, rows]
        if peers := len(self._own):
            since = peers * own[_EXPECTED] - self._own_sum[:, rows]
            burst = since[1] > SINGLE_REQUESTS * peers
            if burst.any():
                found = found.copy()
                share = np.where(burst, 1.0 - SINGLE_REQUESTS * peers / np.where(burst, since[1], 1.0), 0.0)
                found[_EXPECTED] += share * np.maximum(since, 0.0)
        return found

    def update(self, origin: str, gauges: Mapping[str, Sequence[float]], own: Floats, *, whole: bool) -> None:
        """Take an origin's gauges, all of them, or those that changed; ``own`` is this picker's block."""
        self._heard.add(origin)
        self._know(origin, own[_EXPECTED])
        self._replace(origin, gauges, whole=whole)

    def sent(self, own: Floats) -> None:
        """Note that this picker tells its load.

        A picker that told nothing since the last time had nothing to tell, and counts as heard then.
        """
        for origin in self._own.keys() - self._heard:
            self._know(origin, self._sent)
        self._heard.clear()
        self._sent = own[_EXPECTED]

    def _know(self, origin: str, own: Floats) -> None:
        self._own_sum += own - self._own.get(origin, 0.0)
        self._own[origin] = own

    def _replace(self, origin: str, gauges: Mapping[str, Sequence[float]], *, whole: bool) -> None:
        held = self._gauges.setdefault(origin, {})
        if whole:
            gauges = {**dict.fromkeys(held, _NONE), **gauges}
        for address, row in gauges.items():
            self._add(address, np.subtract(row, held.pop(address, _NONE)))
            if any(row):
                held[address] = row

    def drop(self, origin: str) -> None:
        """Count an origin no more."""
        self._replace(origin, {}, whole=True)
        del self._gauges[origin]
        self._own_sum -= self._own.pop(origin, 0.0)

    def _add(self, address: str, row: Sequence[float] | Floats) -> None:
        # Gauges are whole numbers: differences sum up exactly, and at one cost beside any number of peers.
        slot = self._slot_of(address)
        if slot is not None:
            self.block[:, slot] += row
