"""Where hybrid models can take a prefix up: at few positions, of which an engine keeps few.

Attention layers keep an entry for each token; recurrent layers keep a state for each sequence, so a prefix is
reusable only where a copy of the state was made: where a chunk of a prefill ended, and where an answer did.
Copies share a fixed number of slots with running requests, the least recently used goes first (source [G]:
about 225 a replica on the published fleet).

Owns the copies believed to be kept, by endpoint slot. Never sees text. A copy within a block counts for the
last whole block before it, so predictions err to the small side by less than a block.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from epp.types import Floats, RequestInfo, Slots

#: Tokens by which two counts of one copy may be apart.
_SAME_TOKENS = 0.5


class StateSlots:
    """Copies by endpoint slot.

    Args:
        count: states that an engine keeps.
        chunk_tokens: most tokens of one prefill; a copy is made at the end of each.

    Attributes:
        most_tokens: the most tokens of prompts that can be taken up: a copy for each chunk.
    """

    def __init__(self, count: int, chunk_tokens: int) -> None:
        self.most_tokens = count * chunk_tokens
        self._count, self._chunk_tokens = count, chunk_tokens
        # slot -> block that a copy ends in -> the tokens that it covers; the least recently used first. The
        # copy at an answer's end goes by the complement of its prompt's last block.
        self._kept: dict[int, OrderedDict[int, float]] = {}
        self._holders: dict[int, int] = {}  # block -> bit set of the slots with a copy there

    @classmethod
    def of(cls, count: int, chunk_tokens: int) -> StateSlots | None:
        """Make the slots of a configuration, None for models that keep every token."""
        return cls(count, chunk_tokens) if count else None

    def reusable(self, prompt: RequestInfo, slots: Slots, cached_tokens: Floats) -> Floats:
        """Return, of the tokens believed cached by candidate, those up to the deepest copy."""
        result = np.zeros(len(slots))
        left = {slot: row for row, slot in enumerate(slots.tolist()) if cached_tokens[row] > 0.0}
        if not left:
            return result
        # Where blocks differ in tokens the mean misses by a few.
        deepest = int(float(cached_tokens.max()) / prompt.block_tokens) + 2
        for number in range(min(deepest, len(prompt.blocks)), 0, -1):
            block = prompt.blocks[number - 1]
            holders = self._holders.get(block, 0)
            if not holders:
                continue
            for slot in [slot for slot in left if holders >> slot & 1]:
                covered = self._covered(slot, block, float(cached_tokens[left[slot]]))
                if covered:
                    result[left.pop(slot)] = covered
            if not left:
                break
        return result

    def insert(self, slot: int, prompt: RequestInfo, reused_tokens: float) -> None:
        """Note that the slot computes what is left of a prompt, and copies its state on the way."""
        kept = self._kept.setdefault(slot, OrderedDict())
        position = reused_tokens
        self._use(kept, prompt, reused_tokens)
        while position < prompt.prompt_tokens:
            position = min(position + self._chunk_tokens, float(prompt.prompt_tokens))
            number = min(int(position / prompt.block_tokens + 1e-6), len(prompt.blocks))
            if number:
                self._keep(slot, kept, prompt.blocks[number - 1], prompt.tokens_before(number))

    def note_answer(self, slot: int, prompt: RequestInfo, answer_tokens: int) -> None:
        """Note that the slot's state was copied where the answer to this prompt ended."""
        kept = self._kept.get(slot)
        if kept is not None and prompt.blocks and answer_tokens > 0:
            self._keep(slot, kept, ~prompt.blocks[-1], float(prompt.prompt_tokens + answer_tokens))

    def forget(self, slot: int) -> None:
        """Forget the slot's copies."""
        for key in list(self._kept.pop(slot, ())):
            self._unmark(slot, key)

    def __len__(self) -> int:
        """Count the copies of all slots."""
        return sum(map(len, self._kept.values()))

    def _covered(self, slot: int, block: int, cached_tokens: float) -> float:
        kept = self._kept[slot]
        for key in (~block, block):
            tokens = kept.get(key, 0.0)
            if 0.0 < tokens <= cached_tokens + 1e-6:
                return tokens
        return 0.0

    def _use(self, kept: OrderedDict[int, float], prompt: RequestInfo, reused_tokens: float) -> None:
        """Mark the copy that was taken up as used last; an answer's goes by a block before its end."""
        last = int(reused_tokens / prompt.block_tokens + 1e-6)
        for block in reversed(prompt.blocks[:last]):
            for key in (~block, block):
                if abs(kept.get(key, 0.0) - reused_tokens) < _SAME_TOKENS:
                    kept.move_to_end(key)
                    return

    def _keep(self, slot: int, kept: OrderedDict[int, float], key: int, tokens: float) -> None:
        kept[key] = tokens
        kept.move_to_end(key)
        block = max(key, ~key)
        self._holders[block] = self._holders.get(block, 0) | 1 << slot
        while len(kept) > self._count:
            gone, _ = kept.popitem(last=False)
            if ~gone not in kept:
                self._unmark(slot, gone)

    def _unmark(self, slot: int, key: int) -> None:
        block = max(key, ~key)
        left = self._holders.get(block, 0) & ~(1 << slot)
        if left:
            self._holders[block] = left
        else:
            self._holders.pop(block, None)
