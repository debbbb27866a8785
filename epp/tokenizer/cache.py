"""Counts of pieces that were tokenized before, within a bound of bytes.

Owns the memory of one tokenizer. Keeps hashes and numbers, never text. Hashes are XXH3 of 128 bits under a
seed of this process: good against chance, and nobody outside can search for collisions.
"""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

#: A slot of an ordered dictionary, its key (an integer of 128 bits) and the count; 181 bytes were measured
#: with CPython 3.11, some more while it grows.
ENTRY_BYTES = 220
#: Bytes of one kept id.
ID_BYTES = 4


class PieceCache:
    """The least recently used go first. Safe to use from several threads.

    Args:
        max_bytes: bound on the memory of all entries.
    """

    def __init__(self, max_bytes: int) -> None:
        if max_bytes < 1:
            raise ValueError(f"max_bytes {max_bytes} must be positive")
        self._max_bytes = max_bytes
        self._entries: OrderedDict[int, int | bytes] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()

    @property
    def used_bytes(self) -> int:
        """Memory taken."""
        return self._bytes

    def __len__(self) -> int:
        """Pieces known."""
        return len(self._entries)

    def find(self, keys: Sequence[int]) -> list[int | bytes | None]:
        """What is known of each piece: a count, packed ids, or None."""
        with self._lock:
            entries, refresh = self._entries, self._entries.move_to_end
            found = [entries.get(key) for key in keys]
            for key, entry in zip(keys, found, strict=True):
                if entry is not None:
                    refresh(key)
        return found

    def add(self, items: Iterable[tuple[int, int | bytes]]) -> None:
        """Remember pieces, replacing what was known of them."""
        with self._lock:
            for key, entry in items:
                before = self._entries.pop(key, None)
                if before is not None:
                    self._bytes -= _size(before)
                self._entries[key] = entry
                self._bytes += _size(entry)
            while self._bytes > self._max_bytes:
                self._bytes -= _size(self._entries.popitem(last=False)[1])

    def clear(self) -> None:
        """Forget all."""
        with self._lock:
            self._entries.clear()
            self._bytes = 0


def _size(entry: int | bytes) -> int:
    return ENTRY_BYTES + (len(entry) if isinstance(entry, bytes) else 0)
