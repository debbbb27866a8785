"""What one endpoint's KV cache is believed to hold: segments in order of use, and how many tokens fit.

Owns the order and the belief about the capacity.
"""

from __future__ import annotations

import heapq
import math

#: Weight left of an observation after one more: the last hundred or so count.
_FADING = 0.99
#: Misses, beyond hits at as long distances, before the belief shrinks; more against an engine's own word.
_EVIDENCE, _EVIDENCE_STATED = 6.0, 12.0
#: Smallest belief, as a share of what was stated.
_LEAST_SHARE = 0.25
#: Two buckets for a doubling, up to a billion tokens.
_BUCKETS_PER_DOUBLING, _BUCKETS = 2, 60


#: A hit below this share of what was expected is a miss; expectations below `_MIN_EXPECTED` say nothing.
_SHORT = 0.5
_MIN_EXPECTED = 512
#: Moment, -depth, key.
_Use = tuple[float, int, int]


class SlotHoldings:
    """One slot's segments by key, with the moment of their last use, and what it is believed to keep.

    Time is counted in tokens: every prompt moves it on by its length, so the time since a use bounds what
    was used in between. A path is used from its leaf to its root at one moment; among equals the deeper one
    counts as older, so the oldest segment never has a held one below it.

    How much the engine keeps shows by how long ago what it lost was used. Under LRU a prefix is kept while
    less has been used since than fits (Mattson's stack distance). So hits at a distance say that at least so
    much fits, and misses that no more does. One miss says nothing, and too small a belief costs every request
    behind it: the belief shrinks only where misses outweigh hits by far at all distances beyond a point, and
    then to the far side of that point. Old evidence fades, and with it the smaller belief.

    Args:
        capacity_tokens: tokens believed to fit.

    Attributes:
        tokens: tokens held.
        capacity_tokens: tokens believed to fit by now.
        clock_tokens: the time, in tokens.
    """

    __slots__ = ("_balance", "_believed", "_heap", "_stated", "_uses", "capacity_tokens", "clock_tokens",
                 "tokens")  # fmt: skip

    def __init__(self, capacity_tokens: int) -> None:
        self.tokens = 0.0
        self.clock_tokens = 0.0
        self.capacity_tokens = self._believed = capacity_tokens
        # key -> (moment, -depth, key); the heap holds the same tuples, and others that are stale
        self._uses: dict[int, _Use] = {}
        self._heap: list[_Use] = []
        self._stated = False
        self._balance: list[float] | None = None  # misses less hits by distance; made when first needed

    def __len__(self) -> int:
        """Segments held."""
        return len(self._uses)

    def held(self) -> tuple[int, ...]:
        """Keys of all segments held, safe to change while looking."""
        return tuple(self._uses)

    def in_order(self) -> list[int]:
        """List the keys of all segments held, the least recently used first."""
        return [key for _, _, key in sorted(self._uses.values())]

    def used_at_tokens(self, key: int) -> float:
        """Return when a segment that is held was used last."""
        moment: float = self._uses[key][0]
        return moment

    def touch(self, key: int, depth: int, at_tokens: float) -> None:
        """Note a use of a segment."""
        use: _Use = (at_tokens, -depth, key)
        self._uses[key] = use
        heapq.heappush(self._heap, use)
        if len(self._heap) > 2 * len(self._uses) + 64:
            self._heap = list(self._uses.values())
            heapq.heapify(self._heap)

    def copy_use(self, key: int, lower: int, depth: int) -> None:
        """Note the lower part of a segment that was split: it was used when the whole was."""
        self.touch(lower, depth, self._uses[key][0])

    def discard(self, key: int) -> None:
        """Forget a segment."""
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
        """Take the capacity that the engine or the operator states, or that is assumed."""
        self.capacity_tokens = self._believed = tokens
        self._stated, self._balance = stated, None

    def confirm(self, expected_tokens: float, cached_tokens: int, distance_tokens: float) -> None:
        """Compare a reported hit with what was expected of a prefix that was last used so long ago."""
        if expected_tokens < _MIN_EXPECTED or not distance_tokens >= 0.0:
            return
        hit = cached_tokens >= _SHORT * expected_tokens
        if self._balance is None:
            if hit:
                return  # nothing speaks against what is believed
            self._balance = [0.0] * _BUCKETS
        at = int(_BUCKETS_PER_DOUBLING * math.log2(max(distance_tokens, 1.0)))
        self._balance = [weight * _FADING for weight in self._balance]
        self._balance[min(at, _BUCKETS - 1)] += -1.0 if hit else 1.0
        self.capacity_tokens = self._fitting(self._balance)

    def _fitting(self, balance: list[float]) -> int:
        """Estimate the tokens that fit, at most what is believed."""
        best, most, beyond = _BUCKETS, 0.0, 0.0
        for at in range(_BUCKETS - 1, -1, -1):
            beyond += balance[at]
            if beyond > most:
                best, most = at, beyond
        if most < (_EVIDENCE_STATED if self._stated else _EVIDENCE):
            return self._believed
        fits = int(2.0 ** ((best + 1) / _BUCKETS_PER_DOUBLING))
        return min(self._believed, max(fits, int(self._believed * _LEAST_SHARE), 1))
