"""How often a prefix is what several prompts part from: a shared context, not a conversation.

Owns the counts. A conversation's next turn goes on beyond the end of the last, so each of its prefixes is the
deepest match once; of a context that many prompts share, every one of them has the same deepest match. Counts
fade, and the least recently used go first.
"""

from __future__ import annotations

import math
from collections import OrderedDict

#: Seconds after which a count weighs 1/e (source [P]).
FADE_S = 60.0
_MAX_PREFIXES = 20_000


class Popularity:
    """Fading counts by block id."""

    def __init__(self) -> None:
        self._seen: OrderedDict[int, tuple[float, float]] = OrderedDict()

    def touch(self, block: int, now_s: float) -> float:
        """Count a prompt whose deepest match this is; how many did so in the last `FADE_S`, without it."""
        count, seen_s = self._seen.get(block, (0.0, now_s))
        count *= math.exp((seen_s - now_s) / FADE_S)
        self._seen[block] = (count + 1.0, now_s)
        self._seen.move_to_end(block)
        if len(self._seen) > _MAX_PREFIXES:
            self._seen.popitem(last=False)
        return count
