"""Endpoints as small integers, so that every signal is a column.

Owns the map from address to slot and the size of all columns. A slot freed by an endpoint that left is given
to the next one that joins, lowest first, so columns stay as short as the pool ever was; whoever frees a slot
has made every store forget it before.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, TypeVar

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from epp.types import Slots

    Rows = slice | Slots

_FIRST_CAPACITY = 8
_Number = TypeVar("_Number", np.float64, np.int8, np.intp, np.bool_)


def grown(block: NDArray[_Number], capacity: int, fill: float) -> NDArray[_Number]:
    """Copy a block to at least ``capacity`` values on the last axis, new ones set to ``fill``."""
    old = block.shape[-1]
    if capacity <= old:
        return block
    larger = np.full((*block.shape[:-1], capacity), fill, block.dtype)
    larger[..., :old] = block
    return larger


def rows_of(slots: Slots) -> Rows:
    """Return where the columns of these slots are: a slice where they follow each other."""
    numbers = slots.tolist()
    first = numbers[0] if numbers else 0
    following = range(first, first + len(numbers))
    return slice(following.start, following.stop) if numbers == list(following) else slots


class SlotMap:
    """Slots and who has them.

    Args:
        grow: called with the capacity of all columns, now and before a slot beyond it is given out.
    """

    def __init__(self, grow: Callable[[int], None]) -> None:
        self._addresses: list[str | None] = []
        self._free: list[int] = []
        self._capacity = _FIRST_CAPACITY
        self._grow = grow
        grow(self._capacity)

    def address_of(self, slot: int) -> str | None:
        """Return the address in the slot, None when it is free."""
        return self._addresses[slot] if 0 <= slot < len(self._addresses) else None

    def take(self, address: str) -> int:
        """Give an address that has none a slot."""
        if self._free:
            slot = heapq.heappop(self._free)
        else:
            slot = len(self._addresses)
            if slot >= self._capacity:
                self._capacity *= 2
                self._grow(self._capacity)
            self._addresses.append(None)
        self._addresses[slot] = address
        return slot

    def release(self, slot: int) -> None:
        """Free the slot."""
        self._addresses[slot] = None
        heapq.heappush(self._free, slot)
