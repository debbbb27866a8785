"""One slot's share of the prefix index: what it holds, in order of use, and what it is believed to keep."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from epp.prefix_cache.capacity import CapacityEstimate

if TYPE_CHECKING:
    from collections.abc import Iterable

#: A hit below this share of what was expected is a miss; expectations below `_MIN_EXPECTED` say nothing.
_SHORT = 0.5
_MIN_EXPECTED = 512
#: Moment, -depth, key.
_Use = tuple[float, int, int]


class SlotHoldings:
    """Segments held, by key, with the moment of their last use.

    Time is counted in tokens: every prompt moves it on by its length, so the time since a use bounds what
    was used in between. A path is used from its leaf to its root at one moment; among equals the deeper one
    counts as older, so the oldest segment never has a held one below it.

    Args:
        capacity_tokens: tokens believed to fit.

    Attributes:
        tokens: tokens held.
        capacity_tokens: tokens believed to fit by now.
        clock_tokens: the time, in tokens.
    """

    __slots__ = ("_believed", "_estimate", "_heap", "_stated", "_uses", "capacity_tokens", "clock_tokens",
                 "tokens")  # fmt: skip

    def __init__(self, capacity_tokens: int) -> None:
        self.tokens = 0.0
        self.clock_tokens = 0.0
        self.capacity_tokens = self._believed = capacity_tokens
        # key -> (moment, -depth, key); the heap holds the same tuples, and others that are stale
        self._uses: dict[int, _Use] = {}
        self._heap: list[_Use] = []
        self._stated = False
        self._estimate = CapacityEstimate()

    def __len__(self) -> int:
        """Segments held."""
        return len(self._uses)

    def held(self) -> Iterable[int]:
        """Keys of all segments held, safe to change while looking."""
        return tuple(self._uses)

    def used_at_tokens(self, key: int) -> float:
        """When a segment that is held was used last."""
        moment: float = self._uses[key][0]
        return moment

    def touch(self, key: int, depth: int, at_tokens: float) -> None:
        """A segment was used."""
        use: _Use = (at_tokens, -depth, key)
        self._uses[key] = use
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
            key: int = use[2]
            if self._uses.get(key) == use:
                return key
            heapq.heappop(self._heap)

    def state_capacity(self, tokens: int, *, stated: bool) -> None:
        """The engine or the operator says what fits; or neither does any more, and this is assumed."""
        self.capacity_tokens = self._believed = tokens
        self._stated = stated
        self._estimate = CapacityEstimate()

    def confirm(self, expected_tokens: float, cached_tokens: int, distance_tokens: float) -> None:
        """Compare a reported hit with what was expected of a prefix that was last used so long ago."""
        if expected_tokens < _MIN_EXPECTED:
            return
        self._estimate.observe(distance_tokens, hit=cached_tokens >= _SHORT * expected_tokens)
        self.capacity_tokens = self._estimate.capacity_tokens(self._believed, stated=self._stated)
