"""What the other pickers of a pool have promised its endpoints, by slot.

Owns their gauges by origin and endpoint. A gauge replaces the one before, so losses heal with the next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from epp.signals.ledger import ROWS
from epp.signals.slots import grown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from epp.types import Floats

_NONE = (0.0,) * ROWS


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

    def resize(self, capacity: int) -> None:
        """Make room for slots below ``capacity``."""
        self.block = grown(self.block, capacity, 0.0)

    def recount(self) -> None:
        """Add up anew: the endpoints of the pool or their slots have changed."""
        self.block[:] = 0.0
        for gauges in self._gauges.values():
            for address, row in gauges.items():
                self._add(address, row)

    def update(self, origin: str, gauges: Mapping[str, Sequence[float]], *, whole: bool) -> None:
        """Take an origin's gauges: all of them, or those that changed."""
        held = self._gauges.setdefault(origin, {})
        if whole:
            gauges = {**dict.fromkeys(held, _NONE), **gauges}
        for address, row in gauges.items():
            self._add(address, np.subtract(row, held.pop(address, _NONE)))
            if any(row):
                held[address] = row

    def drop(self, origin: str) -> None:
        """Count an origin no more."""
        self.update(origin, {}, whole=True)
        del self._gauges[origin]

    def _add(self, address: str, row: Sequence[float] | Floats) -> None:
        # Gauges are whole numbers: differences sum up exactly, and at one cost beside any number of peers.
        slot = self._slot_of(address)
        if slot is not None:
            self.block[:, slot] += row
