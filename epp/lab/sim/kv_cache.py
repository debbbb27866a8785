"""A replica's KV pool: shared prefix blocks by hash, private tokens of running requests, one capacity.

Owns which blocks are present, who holds them and which goes next. Must not know requests, time or batches.
Rules: a block's hash chains its parent's, so a path is looked up, held and released from the root; a held
block is never evicted; of the idle ones the least recently used goes first, and a leaf before its parent;
held plus idle plus private tokens never exceed the capacity.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


class KvCache:
    """Blocks of ``block_tokens`` tokens each, counted in tokens against ``capacity_tokens``."""

    __slots__ = ("_holders", "_idle", "block_tokens", "capacity_tokens", "evicted_blocks", "private_tokens")

    def __init__(self, capacity_tokens: int, block_tokens: int) -> None:
        if block_tokens < 1 or capacity_tokens < block_tokens:
            raise ValueError(f"a pool of {capacity_tokens} tokens holds no block of {block_tokens}")
        self.capacity_tokens = capacity_tokens
        self.block_tokens = block_tokens
        self.private_tokens = 0
        self.evicted_blocks = 0
        self._holders: dict[int, int] = {}
        # Released paths enter leaf first. Whoever holds a child holds its parents, so a parent is always
        # released with or after its children and plain least-recently-used order is leaf first.
        self._idle: OrderedDict[int, None] = OrderedDict()

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

    def counts(self) -> tuple[int, int]:
        """Blocks present, and those of them that nobody holds."""
        return len(self._holders), len(self._idle)

    def holders(self, block: int) -> int | None:
        """How many hold a block, None where it is not present."""
        return self._holders.get(block)

    def idle_order(self) -> Iterator[int]:
        """Idle blocks, the next to evict first."""
        return iter(self._idle)

    def match(self, blocks: Sequence[int]) -> tuple[int, int]:
        """Leading blocks of a path that are present, and how many of those nobody holds yet."""
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
            block, _ = self._idle.popitem(last=False)
            del self._holders[block]
            self.evicted_blocks += 1
            excess -= self.block_tokens
