"""A replica's KV pool, and where a hybrid model's prefixes can be taken up.

Owns which blocks are present, who holds them and which goes next. Must not know requests, time or batches.
Rules: a block's hash chains its parent's, so a path is looked up, held and released from the root; a held
block is never evicted; of the idle ones the least recently used goes first, and a leaf before its parent;
held plus idle plus private tokens never exceed the capacity.
"""

from __future__ import annotations

from bisect import bisect_right
from copy import copy
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    #: What became of a block, "stored", "removed" or "cleared"; of a state, after how many tokens, else 0.
    Change = tuple[str, int, int]
    Tell = Callable[[Change], None]


class KvCache:
    """Blocks of ``block_tokens`` tokens each, and private tokens of requests; ``capacity_tokens`` in all."""

    __slots__ = ("_holders", "_idle", "block_tokens", "capacity_tokens", "private_tokens", "tell")

    def __init__(self, capacity_tokens: int, block_tokens: int) -> None:
        self.capacity_tokens = capacity_tokens
        self.block_tokens = block_tokens
        self.private_tokens = 0
        self.tell: Tell | None = None
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
                elif self.tell is not None:
                    self.tell(("stored", block, 0))
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
            self._evict(next(iter(self._idle)))
            excess -= self.block_tokens

    def clear(self) -> None:
        """Evict all idle blocks."""
        if self.tell is not None and len(self._idle) == len(self._holders):
            self.tell(("cleared", 1, 0))
            self._idle.clear()
            self._holders.clear()
        for block in list(self._idle):
            self._evict(block)

    def _evict(self, block: int) -> None:
        del self._idle[block], self._holders[block]
        if self.tell is not None:
            self.tell(("removed", block, 0))

    def __deepcopy__(self, memo: object) -> KvCache:
        """Return an independent copy."""
        twin = copy(self)
        twin.tell = None
        twin._holders, twin._idle = self._holders.copy(), self._idle.copy()  # noqa: SLF001 - of the same class
        return twin


class Checkpoints:
    """Kept states of a hybrid model: one at ``tokens`` belongs to the block that its last token stands in.

    Attention layers keep one entry per token; recurrent layers keep one state per sequence, overwritten by
    every token, so a prefix is reusable only at positions where a copy was made. Copies and running requests
    share a fixed number of slots (source [G]: about 225 on the published replicas). A copy is made where a
    prefill chunk ends and where an answer ends. An equal prompt sent again cannot use the copy at its own
    end, because its last token must be computed: it falls back to the copy before that.

    Args:
        slots: states kept, those of running requests included.
        block_tokens: tokens per hashed block.
        step_tokens: a copy is made at multiples of it alone.
    """

    def __init__(self, slots: int, block_tokens: int, step_tokens: int = 1) -> None:
        self.slots, self.block_tokens, self.step_tokens = slots, block_tokens, step_tokens
        self.tell: Tell | None = None
        # Plain dicts and tuples: forks copy them at once.
        self._order: dict[tuple[int, int], None] = {}  # the least recently used first
        self._by_block: dict[int, tuple[int, ...]] = {}  # ascending

    def deepest(self, block_of: Callable[[int], int | None], limit_tokens: int) -> int:
        """Find the deepest position up to ``limit_tokens`` that has a copy, 0 for none; mark it as used.

        Args:
            block_of: the prompt's block hash by block number, None where the prompt has none.
            limit_tokens: last position that may be used.
        """
        by_block = self._by_block
        for number in range((limit_tokens - 1) // self.block_tokens, -1, -1):
            block = block_of(number)
            if block is not None and (positions := by_block.get(block)):
                place = bisect_right(positions, limit_tokens)
                if place:
                    self._touch((block, positions[place - 1]))
                    return positions[place - 1]
        return 0

    def keep(self, block: int, tokens: int, running: int) -> None:
        """Copy the state at a position; ``running`` requests hold a slot each."""
        if (block, tokens) not in self._order:
            self._by_block[block] = tuple(sorted((*self._by_block.get(block, ()), tokens)))
            if self.tell is not None:
                self.tell(("stored", block, tokens))
        self._touch((block, tokens))
        self.make_room(running)

    def make_room(self, running: int) -> None:
        """Drop copies, the least recently used first, until the running requests have their slots."""
        self._drop_to(max(self.slots - running, 0))

    def clear(self) -> None:
        """Drop all copies."""
        self._drop_to(0)

    def _drop_to(self, most: int) -> None:
        while len(self._order) > most:
            block, tokens = key = next(iter(self._order))
            del self._order[key]
            if self.tell is not None:
                self.tell(("removed", block, tokens))
            positions = tuple(kept for kept in self._by_block[block] if kept != tokens)
            if positions:
                self._by_block[block] = positions
            else:
                del self._by_block[block]

    def __deepcopy__(self, memo: object) -> Checkpoints:
        """Return an independent copy."""
        twin = copy(self)
        twin.tell = None
        twin._order, twin._by_block = self._order.copy(), self._by_block.copy()  # noqa: SLF001 - the same class
        return twin

    def _touch(self, key: tuple[int, int]) -> None:
        """Make a copy the last one to go."""
        self._order.pop(key, None)
        self._order[key] = None
