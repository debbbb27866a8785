"""Prefixes as one index hands them to another."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from array import array


class BlockRun(NamedTuple):
    """Blocks that follow each other, without their hashes: the first one's, the last one's, how many."""

    key: int
    last: int
    blocks: int


class Prefix(NamedTuple):
    """What an index inserted for a slot, as others can insert it.

    Attributes:
        known: runs from the root on that somebody held before.
        start: blocks of these.
        blocks: hashes of those below, which nobody held.
        block_tokens: tokens of a block.
    """

    known: list[BlockRun]
    start: int
    blocks: array[int]
    block_tokens: float
