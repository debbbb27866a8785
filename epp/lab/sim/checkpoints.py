"""The cache of a hybrid model: a prefix can be taken up only where a state of the recurrent layers was kept.

Owns the kept states: which positions of which prompts, and who goes first. Must not know requests or time.
Attention layers keep one entry per token; recurrent layers keep one state per sequence, overwritten by every
token, so a prefix is reusable only at positions where a copy was made. Copies and running requests share a
fixed number of slots (source [G]: about 225 on the published replicas). A copy is made where a
prefill chunk ends and where an answer ends. An equal prompt sent again cannot use the copy at its own end,
because its last token must be computed: it falls back to the copy before that.
"""

from __future__ import annotations

from bisect import bisect_right
from copy import copy
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Checkpoints:
    """Positions by block: a copy at ``tokens`` belongs to the block that its last token stands in.

    Args:
        slots: states kept, those of running requests included.
        block_tokens: tokens per hashed block.
    """

    __slots__ = ("_by_block", "_order", "block_tokens", "slots")

    def __init__(self, slots: int, block_tokens: int) -> None:
        self.slots, self.block_tokens = slots, block_tokens
        # Plain dicts and tuples: forks copy them at once.
        self._order: dict[tuple[int, int], None] = {}  # the least recently used first
        self._by_block: dict[int, tuple[int, ...]] = {}  # ascending

    def __len__(self) -> int:
        """Copies kept."""
        return len(self._order)

    def deepest(self, block_of: Callable[[int], int | None], limit_tokens: int) -> int:
        """The deepest position at or before ``limit_tokens`` that has a copy, 0 for none; marks it as used.

        Args:
            block_of: the prompt's block hash by block number, None where the prompt has none.
            limit_tokens: last position that may be used.
        """
        by_block = self._by_block
        for number in range((limit_tokens - 1) // self.block_tokens, -1, -1):
            block = block_of(number)
            positions = by_block.get(block) if block is not None else None
            if positions is not None and block is not None:
                place = bisect_right(positions, limit_tokens)
                if place:
                    self._touch((block, positions[place - 1]))
                    return positions[place - 1]
        return 0

    def keep(self, block: int, tokens: int, running: int) -> None:
        """Copy the state at a position; ``running`` requests hold a slot each."""
        key = (block, tokens)
        if key in self._order:
            self._touch(key)
        else:
            self._order[key] = None
            self._by_block[block] = tuple(sorted((*self._by_block.get(block, ()), tokens)))
        self.make_room(running)

    def make_room(self, running: int) -> None:
        """Drop copies, the least recently used first, until the running requests have their slots."""
        while self._order and len(self._order) + running > self.slots:
            key = next(iter(self._order))
            del self._order[key]
            block, tokens = key
            positions = tuple(kept for kept in self._by_block[block] if kept != tokens)
            if positions:
                self._by_block[block] = positions
            else:
                del self._by_block[block]

    def fork(self) -> Checkpoints:
        """An independent copy."""
        twin = copy(self)
        twin._detach()  # noqa: SLF001 - of the same class
        return twin

    def _detach(self) -> None:
        self._order = self._order.copy()
        self._by_block = self._by_block.copy()

    def _touch(self, key: tuple[int, int]) -> None:
        """Make a copy the last one to go."""
        del self._order[key]
        self._order[key] = None
