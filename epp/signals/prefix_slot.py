"""One slot's share of the prefix index: what it holds, in order of use, and what it is believed to keep."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

#: A hit below this share of what was expected is a shortfall; expectations below `_MIN_EXPECTED` say nothing.
_SHORT = 0.5
_MIN_EXPECTED = 512
#: Shortfalls in a row before the capacity is believed smaller: single misses are noise, distrust is dear.
_PATIENCE = 8
_SHRINK, _GROW = 0.9, 1.02
_LEAST_SHARE = 0.25


class SlotHoldings:
    """Segments held, by key, with the tick of their last use.

    A path is used from its leaf to its root at one tick; among equals the deeper one counts as older, so the
    oldest segment never has a held one below it.

    Args:
        capacity_tokens: tokens believed to fit.
    """

    __slots__ = ("_heap", "_short", "_stated", "_uses", "capacity_tokens", "tokens")

    def __init__(self, capacity_tokens: int) -> None:
        self.tokens = 0.0
        self.capacity_tokens = self._stated = capacity_tokens
        # key -> (tick, -depth, key); the heap holds the same tuples, and others that are stale
        self._uses: dict[int, tuple[int, int, int]] = {}
        self._heap: list[tuple[int, int, int]] = []
        self._short = 0

    def __len__(self) -> int:
        """Segments held."""
        return len(self._uses)

    def held(self) -> Iterable[int]:
        """Keys of all segments held, safe to change while looking."""
        return tuple(self._uses)

    def touch(self, key: int, depth: int, tick: int) -> None:
        """A segment was used."""
        use = self._uses[key] = (tick, -depth, key)
        heapq.heappush(self._heap, use)
        if len(self._heap) > 2 * len(self._uses) + 64:
            self._heap = list(self._uses.values())
            heapq.heapify(self._heap)

    def copy_use(self, key: int, lower: int, depth: int) -> None:
        """The lower part of a segment that was split was used when the whole was."""
        self.touch(lower, depth, self._uses[key][0])

    def discard(self, key: int) -> None:
        """A segment is not held any more."""
        self._uses.pop(key, None)

    def oldest(self) -> int:
        """Key of the least recently used segment.

        Raises:
            IndexError: nothing is held.
        """
        while True:
            use = self._heap[0]
            if self._uses.get(use[2]) is use:
                return use[2]
            heapq.heappop(self._heap)

    def state_capacity(self, tokens: int) -> None:
        """The engine or the operator says what fits."""
        self.capacity_tokens = self._stated = tokens
        self._short = 0

    def confirm(self, expected_tokens: float, cached_tokens: int) -> None:
        """Compare a reported hit with what was expected.

        A run of shortfalls shrinks the believed capacity by a tenth, down to a quarter of what was stated;
        each hit as expected lets it grow back by a fiftieth.
        """
        if expected_tokens < _MIN_EXPECTED:
            return
        if cached_tokens >= _SHORT * expected_tokens:
            self._short = 0
            self.capacity_tokens = min(self._stated, int(self.capacity_tokens * _GROW) + 1)
            return
        self._short += 1
        if self._short >= _PATIENCE:
            self._short = 0
            self.capacity_tokens = max(
                int(self._stated * _LEAST_SHARE), int(self.capacity_tokens * _SHRINK), 1
            )
