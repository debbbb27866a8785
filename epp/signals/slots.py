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

    Rows = slice | NDArray[np.intp]

_FIRST_CAPACITY = 8
_Number = TypeVar("_Number", np.float64, np.int8)


def grown(block: NDArray[_Number], capacity: int, fill: float) -> NDArray[_Number]:
    """A copy with at least ``capacity`` values on the last axis, new ones set to ``fill``."""
    old = block.shape[-1]
    if capacity <= old:
        return block
    larger = np.full((*block.shape[:-1], capacity), fill, block.dtype)
    larger[..., :old] = block
    return larger


def row(block: NDArray[np.float64], index: int) -> NDArray[np.float64]:
    """One column of a block ``[columns, capacity]``, without a copy."""
    column: NDArray[np.float64] = block[index]
    return column


def rows_of(slots: NDArray[np.intp]) -> Rows:
    """Where the columns of these slots are: a slice where they follow each other, as a whole pool's do."""
    numbers = slots.tolist()
    first = numbers[0] if numbers else 0
    following = range(first, first + len(numbers))
    return slice(following.start, following.stop) if numbers == list(following) else slots


def taken(block: NDArray[_Number], rows: Rows) -> NDArray[_Number]:
    """A copy of some slots' values, of one column or of a block of them."""
    return block[..., rows].copy() if isinstance(rows, slice) else block[..., rows]


class SlotMap:
    """Addresses to slots and back."""

    def __init__(self) -> None:
        self._slots: dict[str, int] = {}
        self._addresses: list[str | None] = []
        self._free: list[int] = []
        self._capacity = _FIRST_CAPACITY
        self._listeners: list[Callable[[int], None]] = []

    def __len__(self) -> int:
        """Number of addresses."""
        return len(self._slots)

    @property
    def capacity(self) -> int:
        """Length of every column; slots are below it."""
        return self._capacity

    def on_grow(self, listener: Callable[[int], None]) -> None:
        """Tell ``listener`` the capacity now and each time before a slot beyond it is given out."""
        self._listeners.append(listener)
        listener(self._capacity)

    def slot_of(self, address: str) -> int | None:
        """Slot of the address, None when it has none."""
        return self._slots.get(address)

    def address_of(self, slot: int) -> str | None:
        """Address in the slot, None when it is free."""
        return self._addresses[slot] if 0 <= slot < len(self._addresses) else None

    def take(self, address: str) -> int:
        """Give the address a slot.

        Raises:
            ValueError: it has one.
        """
        if address in self._slots:
            raise ValueError(f"{address} has a slot already")
        if self._free:
            slot = heapq.heappop(self._free)
        else:
            slot = len(self._addresses)
            if slot >= self._capacity:
                self._capacity *= 2
                for listener in self._listeners:
                    listener(self._capacity)
            self._addresses.append(None)
        self._slots[address] = slot
        self._addresses[slot] = address
        return slot

    def release(self, address: str) -> int:
        """Free the slot of the address and return it.

        Raises:
            KeyError: it has none.
        """
        slot = self._slots.pop(address)
        self._addresses[slot] = None
        heapq.heappush(self._free, slot)
        return slot
