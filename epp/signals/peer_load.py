"""What the other pickers of a pool have promised its endpoints, by slot.

Owns their gauges by origin and endpoint. A gauge replaces the one before, so losses heal with the next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from epp.signals.ledger import ROWS
from epp.signals.slots import grown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from epp.types import Floats


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
        self._add_up({address for gauges in self._gauges.values() for address in gauges})

    def update(self, origin: str, gauges: Mapping[str, Sequence[float]], *, whole: bool) -> None:
        """Take an origin's gauges: all of them, or those that changed."""
        before = self._gauges.get(origin, {})
        now = dict(gauges) if whole else {**before, **gauges}
        self._gauges[origin] = {address: row for address, row in now.items() if any(row)}
        self._add_up({*before, *gauges} if whole else gauges)

    def drop(self, origin: str) -> None:
        """Count an origin no more."""
        self._add_up(self._gauges.pop(origin, {}))

    def _add_up(self, addresses: Iterable[str]) -> None:
        for address in addresses:
            slot = self._slot_of(address)
            if slot is not None:
                rows = [gauges[address] for gauges in self._gauges.values() if address in gauges]
                self.block[:, slot] = np.sum(rows, axis=0) if rows else 0.0
