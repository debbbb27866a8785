"""Keyed randomness: each number is a pure function of (seed, key, salt).

There is no stream to get out of step: the same decision draws the same numbers live, replayed and in the
simulator, whatever else was drawn in between.
"""

from __future__ import annotations

import xxhash

_TO_UNIT = 2.0**-53


def keyed_uniform(seed: int, key: str, salt: str) -> float:
    """Draw a number in [0, 1), uniform over keys: a decision's id, say, and the purpose as salt."""
    digest = xxhash.xxh3_64_intdigest(f"{key}\x00{salt}".encode(), seed & 0xFFFF_FFFF_FFFF_FFFF)
    return (digest >> 11) * _TO_UNIT
