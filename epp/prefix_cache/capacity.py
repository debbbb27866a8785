"""How many tokens an engine's cache keeps, from how long ago what it lost was used.

Under LRU a prefix is kept while less has been used since than fits (Mattson's stack distance). So hits at a
distance say that at least so much fits, and misses that no more does. One miss says nothing - an engine drops
its cache for reasons of its own - and too small a belief costs every request behind it, so the belief shrinks
only where misses outweigh hits by far at all distances beyond a point, and then to the far side of that
point. Old evidence fades, and with it the smaller belief: the larger one is tried again.
"""

from __future__ import annotations

import math

#: Weight left of an observation after one more: the last hundred or so count.
_FADING = 0.99
#: Misses, beyond hits at as long distances, before the belief shrinks; more against an engine's own word.
_EVIDENCE, _EVIDENCE_STATED = 6.0, 12.0
#: Smallest belief, as a share of what was stated.
_LEAST_SHARE = 0.25
#: Two buckets for a doubling, up to a billion tokens.
_BUCKETS_PER_DOUBLING, _BUCKETS = 2, 60


class CapacityEstimate:
    """Evidence about one cache. Distances are in tokens used since, by whatever request."""

    __slots__ = ("_balance",)

    def __init__(self) -> None:
        self._balance: list[float] | None = None  # misses less hits by distance; made when first needed

    def observe(self, distance_tokens: float, *, hit: bool) -> None:
        """What was last used so long ago was found, or not. Distances that are no number are ignored."""
        if not distance_tokens >= 0.0:
            return
        if self._balance is None:
            if hit:
                return  # nothing speaks against what is believed
            self._balance = [0.0] * _BUCKETS
        at = int(_BUCKETS_PER_DOUBLING * math.log2(max(distance_tokens, 1.0)))
        self._balance = [weight * _FADING for weight in self._balance]
        self._balance[min(at, _BUCKETS - 1)] += -1.0 if hit else 1.0

    def capacity_tokens(self, believed_tokens: int, *, stated: bool) -> int:
        """What fits, at most what is believed.

        Args:
            believed_tokens: what was assumed, or stated.
            stated: whether the engine or the operator said so.
        """
        if self._balance is None:
            return believed_tokens
        best, most, beyond = _BUCKETS, 0.0, 0.0
        for at in range(_BUCKETS - 1, -1, -1):
            beyond += self._balance[at]
            if beyond > most:
                best, most = at, beyond
        if most < (_EVIDENCE_STATED if stated else _EVIDENCE):
            return believed_tokens
        fits = int(2.0 ** ((best + 1) / _BUCKETS_PER_DOUBLING))
        return min(believed_tokens, max(fits, int(believed_tokens * _LEAST_SHARE), 1))
