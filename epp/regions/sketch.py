"""A sketch of the prefixes that a region holds: an additive cuckoo filter that others keep a copy of.

Owns the cells and which of them changed since they were sent last. An entry is one of every `STRIDE` blocks
of a prefix, known by its chained hash, so a prompt's depth is found by bisection. It is a fingerprint in one
of two buckets, whose numbers add up to a number made of the fingerprint: either leads to the other, with any
number of buckets. A change on the wire is the position of a cell and what it holds now.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Blocks of a prefix for one entry.
STRIDE = 4
BUCKETS, PER_BUCKET, FINGERPRINT_BITS = 31_250, 4, 15
CELLS = BUCKETS * PER_BUCKET
#: Bytes of the whole content, and of a change.
CONTENT_BYTES, CHANGE_BYTES = 2 * CELLS, 4
_FINGERPRINT = (1 << FINGERPRINT_BITS) - 1
#: Shares no factor with the number of buckets.
_MIX = 0x5BD1E995
#: Entries above which no more are taken: searches for a free cell get long, and find none.
MOST_ENTRIES = int(0.95 * CELLS)
_MAX_KICKS = 200


def are_changes(changes: bytes) -> bool:
    """Tell whether bytes are changes of a sketch."""
    if len(changes) % CHANGE_BYTES:
        return False
    packed = np.frombuffer(changes, "<u4")
    return not len(packed) or int(packed.max()) >> FINGERPRINT_BITS < CELLS


class Sketch:
    """Which blocks are held, with few false hits and no false miss while it is not full.

    Attributes:
        entries: blocks in it.
    """

    def __init__(self) -> None:
        self._cells = array("H", bytes(CONTENT_BYTES))
        self._view = np.frombuffer(self._cells, np.uint16)
        self._dirty: set[int] = set()
        self.entries = 0

    def insert(self, block: int) -> bool:
        """Add a block that is not in it; False, and nothing, where there is no room."""
        fingerprint, first, second = _places(block)
        if self.entries < MOST_ENTRIES and (
            self._put(first, fingerprint) or self._put(second, fingerprint) or self._kick(first, fingerprint)
        ):
            self.entries += 1
            return True
        return False

    def delete(self, block: int) -> bool:
        """Take out a block that was inserted; False where it is not in it."""
        fingerprint, first, second = _places(block)
        at = self._find(first, fingerprint)
        if at < 0:
            at = self._find(second, fingerprint)
        if at < 0:
            return False
        self._set(at, 0)
        self.entries -= 1
        return True

    def __contains__(self, block: int) -> bool:
        """Tell whether a block is held; wrong for one in thousands of those that are not."""
        fingerprint, first, second = _places(block)
        return self._find(first, fingerprint) >= 0 or self._find(second, fingerprint) >= 0

    def depth(self, blocks: Sequence[int]) -> int:
        """Count the leading blocks of a prompt that are held, in whole strides."""
        low, high = 0, len(blocks) // STRIDE  # entries: `low` are held, those beyond `high` are not
        while low < high:
            middle = (low + high + 1) // 2
            if blocks[middle * STRIDE - 1] in self:
                low = middle
            else:
                high = middle - 1
        return low * STRIDE

    @property
    def changed(self) -> bool:
        """Whether there are changes to send."""
        return bool(self._dirty)

    def changes(self, most: int) -> bytes:
        """Take the changes since they were taken last, four bytes each; at most so many, the rest stay."""
        taken = [self._dirty.pop() for _ in range(min(most, len(self._dirty)))]
        at = np.array(taken, np.uint32)
        return (at << FINGERPRINT_BITS | self._view[at]).astype("<u4").tobytes()

    def apply(self, changes: bytes) -> None:
        """Take changes of the sketch that this one is a copy of, which `are_changes` has passed."""
        packed = np.frombuffer(changes, "<u4")
        self._view[packed >> FINGERPRINT_BITS] = packed & _FINGERPRINT

    def content(self) -> bytes:
        """Return all cells, `CONTENT_BYTES`."""
        return self._view.astype("<u2").tobytes()

    def load(self, content: bytes) -> None:
        """Become a copy of the sketch whose content this is.

        Raises:
            ValueError: it is none.
        """
        self._view[:] = np.frombuffer(content, "<u2")

    def _put(self, bucket: int, fingerprint: int) -> bool:
        at = self._find(bucket, 0)
        if at >= 0:
            self._set(at, fingerprint)
        return at >= 0

    def _kick(self, bucket: int, fingerprint: int) -> bool:
        """Move entries to their other buckets until one finds a free cell; else move all back."""
        path: list[int] = []
        cells = self._cells
        for kick in range(_MAX_KICKS):
            at = bucket * PER_BUCKET + (fingerprint + kick) % PER_BUCKET
            path.append(at)
            cells[at], fingerprint = fingerprint, cells[at]
            bucket = (fingerprint * _MIX - bucket) % BUCKETS
            if self._put(bucket, fingerprint):
                self._dirty.update(path)
                return True
        for at in reversed(path):
            cells[at], fingerprint = fingerprint, cells[at]
        return False

    def _find(self, bucket: int, fingerprint: int) -> int:
        """Return the position of a fingerprint in a bucket, -1 where it has none."""
        first = bucket * PER_BUCKET
        try:
            return self._cells.index(fingerprint, first, first + PER_BUCKET)
        except ValueError:
            return -1

    def _set(self, at: int, fingerprint: int) -> None:
        self._cells[at] = fingerprint
        self._dirty.add(at)


def _places(block: int) -> tuple[int, int, int]:
    """Return a block's fingerprint, never 0, and its two buckets."""
    fingerprint = (block & _FINGERPRINT) or 1
    first = (block >> FINGERPRINT_BITS) % BUCKETS
    return fingerprint, first, (fingerprint * _MIX - first) % BUCKETS
