"""A what-if copy of a KV pool that costs what is done with it, not what is in the pool.

Owns the differences from its base. Valid as long as the base does not change. Keeps the rules of `KvCache`,
the order of eviction included: first the base's idle blocks that were not touched here, then those released
here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from epp.lab.sim.kv_cache import KvCache

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_GONE = -1


class ForkedKv(KvCache):
    """Reads through to ``base``, a `KvCache` or another fork, and never changes it."""

    __slots__ = ("_base", "_base_idle", "_blocks", "_idle_blocks", "_untouched")

    def __init__(self, base: KvCache) -> None:
        super().__init__(base.capacity_tokens, base.block_tokens)
        self.private_tokens = base.private_tokens
        self.evicted_blocks = base.evicted_blocks
        self._base = base
        self._blocks, self._idle_blocks = base.counts()
        self._untouched: Iterator[int] | None = None

    def counts(self) -> tuple[int, int]:
        """Blocks present, and those of them that nobody holds."""
        return self._blocks, self._idle_blocks

    def holders(self, block: int) -> int | None:
        """How many hold a block, None where it is not present."""
        count = self._holders.get(block)
        if count is None:
            return self._base.holders(block)
        return None if count == _GONE else count

    def idle_order(self) -> Iterator[int]:
        """Idle blocks, the next to evict first."""
        for block in self._base.idle_order():
            if block not in self._holders:
                yield block
        yield from self._idle

    @property
    def held_tokens(self) -> int:
        """See `KvCache`."""
        return (self._blocks - self._idle_blocks) * self.block_tokens + self.private_tokens

    @property
    def idle_tokens(self) -> int:
        """See `KvCache`."""
        return self._idle_blocks * self.block_tokens

    @property
    def used_tokens(self) -> int:
        """See `KvCache`."""
        return self._blocks * self.block_tokens + self.private_tokens

    def match(self, blocks: Sequence[int]) -> tuple[int, int]:
        """See `KvCache`."""
        present = idle = 0
        for block in blocks:
            held_by = self.holders(block)
            if held_by is None:
                break
            present += 1
            idle += not held_by
        return present, idle

    def hold(self, blocks: Iterable[int]) -> None:
        """See `KvCache`."""
        for block in blocks:
            held_by = self.holders(block)
            if held_by is None:
                self._blocks += 1
            elif not held_by:
                self._idle_blocks -= 1
                self._idle.pop(block, None)
            self._holders[block] = (held_by or 0) + 1

    def release(self, path: Sequence[int]) -> None:
        """See `KvCache`."""
        for block in reversed(path):
            held_by = (self.holders(block) or 0) - 1
            self._holders[block] = held_by
            if not held_by:
                self._idle[block] = None
                self._idle_blocks += 1

    def make_room(self, tokens: int = 0) -> None:
        """See `KvCache`."""
        excess = self.used_tokens + tokens - self.capacity_tokens
        while excess > 0:
            block = self._next_idle()
            if block is None:
                raise RuntimeError(f"KV pool over capacity by {excess} tokens that are all held")
            self._holders[block] = _GONE
            self._blocks -= 1
            self._idle_blocks -= 1
            self.evicted_blocks += 1
            excess -= self.block_tokens

    def _next_idle(self) -> int | None:
        """Take the next block to evict out of the idle ones."""
        if self._untouched is None:
            self._untouched = self._base.idle_order()
        for block in self._untouched:
            if block not in self._holders:
                return block
        return self._idle.popitem(last=False)[0] if self._idle else None
