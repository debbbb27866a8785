"""A replica's KV pool: shared prefix blocks by hash, private tokens of running requests, one capacity.

Owns which blocks are present, who holds them and which goes next. Must not know requests, time or batches.
Rules: a block's hash chains its parent's, so a path is looked up, held and released from the root; a held
block is never evicted; of the idle ones the least recently used goes first, and a leaf before its parent;
held plus idle plus private tokens never exceed the capacity.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class KvCache:
    """Blocks of ``block_tokens`` tokens each, counted in tokens against ``capacity_tokens``."""

    __slots__ = ("_holders", "_idle", "block_tokens", "capacity_tokens", "evicted_blocks", "private_tokens")

    def __init__(self, capacity_tokens: int, block_tokens: int) -> None:
        self.capacity_tokens = capacity_tokens
        self.block_tokens = block_tokens
        self.private_tokens = 0
        self.evicted_blocks = 0
        self._holders: dict[int, int] = {}
        # Released paths enter leaf first. Whoever holds a child holds its parents, so a parent is always
        # released with or after its children and plain least-recently-used order is leaf first.
        self._idle: dict[int, None] = {}

    @property
    def held_tokens(self) -> int:
        """Tokens that cannot be evicted: held blocks and private tokens."""
        return (len(self._holders) - len(self._idle)) * self.block_tokens + self.private_tokens

    @property
    def idle_tokens(self) -> int:
        """Tokens of blocks that nobody holds: what the next prompts may find, and what eviction takes."""
        return len(self._idle) * self.block_tokens

    @property
    def used_tokens(self) -> int:
        """Held and idle tokens together."""
        return len(self._holders) * self.block_tokens + self.private_tokens

    def match(self, blocks: Sequence[int]) -> tuple[int, int]:
        """Return leading blocks of a path that are present, and how many of those nobody holds yet."""
        holders = self._holders
        present = idle = 0
        for block in blocks:
            held_by = holders.get(block)
            if held_by is None:
                break
            present += 1
            if not held_by:
                idle += 1
        return present, idle

    def hold(self, blocks: Iterable[int]) -> None:
        """Hold each block, creating those that are missing; the caller has made room (`make_room`)."""
        holders, idle = self._holders, self._idle
        for block in blocks:
            held_by = holders.get(block)
            if held_by:
                holders[block] = held_by + 1
            else:
                if held_by == 0:
                    del idle[block]
                holders[block] = 1

    def release(self, path: Sequence[int]) -> None:
        """Give back a whole path, root first as it was held; it stays present until evicted."""
        holders, idle = self._holders, self._idle
        for block in reversed(path):
            held_by = holders[block] - 1
            holders[block] = held_by
            if not held_by:
                idle[block] = None

    def make_room(self, tokens: int = 0) -> None:
        """Evict idle blocks until ``tokens`` more fit.

        Raises:
            RuntimeError: held tokens leave no such room; whoever admits must not let that happen.
        """
        excess = self.used_tokens + tokens - self.capacity_tokens
        while excess > 0:
            if not self._idle:
                raise RuntimeError(f"KV pool over capacity by {excess} tokens that are all held")
            block = next(iter(self._idle))
            del self._idle[block], self._holders[block]
            self.evicted_blocks += 1
            excess -= self.block_tokens

    def __deepcopy__(self, memo: object) -> KvCache:
        """Return an independent copy."""
        twin = copy(self)
        twin._holders, twin._idle = self._holders.copy(), self._idle.copy()  # noqa: SLF001 - of the same class
        return twin
