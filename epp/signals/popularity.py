"""How often a prefix is what several prompts part from: a shared context, not a conversation.

Owns the counts. A conversation's next turn goes on beyond the end of the last, so each of its prefixes is the
deepest match once; of a context that many prompts share, every one of them has the same deepest match. Counts
fade, and the least recently used go first.

Bursts count once: what comes within `BURST_S` of the last one counts by its share of it. A copy pays for
itself by who comes later; a planner's siblings ask for one context within a third of a second, and when the
last of them counts the others nobody is left who would use a further copy. So no prefix counts more than
``FADE_S / BURST_S``, which many a minute reach too.
"""

from __future__ import annotations

import math
from collections import OrderedDict

#: Seconds after which a count weighs 1/e (source [P]).
FADE_S = 60.0
#: Seconds within which requests of one prefix are one burst: siblings start within 0.3 s, and what uses a
#: copy has to come after it was made, some 0.1 to 1 s for a prefix of 1,000 to 10,000 tokens.
BURST_S = 2.0
_MAX_PREFIXES = 20_000


class Popularity:
    """Fading counts by block id."""

    def __init__(self) -> None:
        self._seen: OrderedDict[int, tuple[float, float]] = OrderedDict()

    def touch(self, block: int, now_s: float) -> float:
        """Count a prompt whose deepest match this is.

        Returns:
            How many did so in the last `FADE_S`, fading, without it, a burst being one.
        """
        count, seen_s = self._seen.get(block, (0.0, -math.inf))
        since_s = now_s - seen_s
        count *= math.exp(-since_s / FADE_S)
        self._seen[block] = (count + min(since_s / BURST_S, 1.0), now_s)
        self._seen.move_to_end(block)
        if len(self._seen) > _MAX_PREFIXES:
            self._seen.popitem(last=False)
        return count
