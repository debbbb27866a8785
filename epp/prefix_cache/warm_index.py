"""A prefix index that starts with what an earlier process knew.

What was on record of an endpoint are names of coarse prefixes (`BlockHasher.coarse_ids`), from which the
block hashes of the index cannot be had. They are kept beside it as seeds. When a prompt goes further than
the index knows, its own coarse names are looked up among the seeds, and what is found there is inserted as
blocks of this prompt, which by then are known; a seed is used once. So a lookup costs names only while there
are seeds, and one name where they know nothing. Seeds count as older than anything that the index holds and
give way to it within the endpoint's capacity.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from epp.prefix_cache.index import MAX_TOKENS, PrefixIndex

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from epp.prefix_cache.match import PrefixMatch
    from epp.prefix_cache.state_slots import StateSlots
    from epp.types import RequestInfo

#: Seeds over all endpoints, some 300 bytes each: a bound on memory, not on what is useful.
MAX_SEEDS = 300_000


class Seeds:
    """Names of coarse prefixes and who held them.

    Args:
        capacities: tokens that fit each slot's cache; other slots have no seeds.
        limit: seeds in all.
    """

    def __init__(self, capacities: Mapping[int, float], limit: int = MAX_SEEDS) -> None:
        self._free = limit
        self._room = dict(capacities)  # tokens by slot, negative once something did not fit
        # slot -> name -> (Unix time of use, tokens); the latest first, a prefix before what extends it
        self._held: dict[int, dict[str, tuple[float, float]]] = {slot: {} for slot in capacities}
        self._tokens = dict.fromkeys(capacities, 0.0)

    def __len__(self) -> int:
        """Count the seeds."""
        return sum(map(len, self._held.values()))

    @property
    def slots(self) -> list[int]:
        """Slots that may have seeds."""
        return list(self._held)

    @property
    def full(self) -> bool:
        """Whether nothing can be added any more."""
        return self._free <= 0 or all(room < 0.0 for room in self._room.values())

    def add(self, slot: int, used_wall_s: float, names: Sequence[str], tokens_each: float) -> None:
        """Add a prompt that a slot held, the latest use first; what does not fit is left out.

        Args:
            slot: who held it.
            used_wall_s: Unix time of the use.
            names: the prompt's coarse names, shortest prefix first.
            tokens_each: tokens from one to the next.
        """
        held = self._held.get(slot, {})
        for name in names if slot in self._held else ():
            if name in held:
                continue
            if self._free <= 0 or self._room[slot] < 0.0:
                return
            self._room[slot] -= tokens_each
            if self._room[slot] >= 0.0:
                held[name] = (used_wall_s, tokens_each)
                self._tokens[slot] += tokens_each
                self._free -= 1

    def take(self, name: str) -> list[int]:
        """Take the slots that held a prefix; it is no seed of theirs any more."""
        slots = [slot for slot, held in self._held.items() if name in held]
        for slot in slots:
            self._tokens[slot] -= self._held[slot].pop(name)[1]
        return slots

    def forget(self, slot: int) -> None:
        """Forget the slot's seeds."""
        self.forget_before(slot, math.inf)

    def forget_before(self, slot: int, wall_s: float) -> None:
        """Forget what the slot used before a time."""
        held = self._held.get(slot, {})
        while held and next(reversed(held.values()))[0] < wall_s:
            self._tokens[slot] -= held.popitem()[1][1]

    def shrink(self, slot: int, tokens: float) -> None:
        """Keep at most so many tokens of a slot, those used last."""
        held = self._held.get(slot, {})
        while held and self._tokens[slot] > tokens:
            self._tokens[slot] -= held.popitem()[1][1]


class WarmIndex(PrefixIndex):
    """`PrefixIndex` with seeds.

    Args:
        capacity_tokens: as there.
        max_tokens: as there.
        name_block: a block's name outside of the process, `BlockHasher.export_id`.
        coarse_blocks: blocks from one coarse name to the next.
        states: as there. Seeds know no copies: until a prompt was seen again, nothing of it can be taken up.
    """

    def __init__(
        self,
        capacity_tokens: int = 500_000,
        max_tokens: int = MAX_TOKENS,
        *,
        name_block: Callable[[int], str],
        coarse_blocks: int,
        states: StateSlots | None = None,
    ) -> None:
        super().__init__(capacity_tokens, max_tokens, states=states)
        self._name_block, self._coarse_blocks = name_block, coarse_blocks
        self._seeds: Seeds | None = None
        self._seeded = np.zeros(0, np.intp)
        #: Slots that were forgotten while seeds were read; None while none are.
        self._lost: set[int] | None = None

    def expect_seeds(self) -> None:
        """Note from now on which slots lose what they hold, until the seeds are here."""
        self._lost = set()

    def seed(self, seeds: Seeds) -> None:
        """Begin to use these; they replace any that are left."""
        for slot in self._lost or ():
            seeds.forget(slot)
        self._lost = None
        self._seeds = seeds if len(seeds) else None
        self._seeded = np.array(seeds.slots, np.intp)

    def drop_seeds(self) -> None:
        """Forget the seeds that are left."""
        self._seeds = None

    def process_started(self, slot: int, wall_s: float) -> None:
        """Forget what the slot held before its engine's process started; called at every scrape."""
        if self._seeds is not None:
            self._seeds.forget_before(slot, wall_s)

    def match(self, prompt: RequestInfo) -> PrefixMatch:
        """Walk the prompt's blocks; seeds that know more than the index are made part of it first."""
        found = super().match(prompt)
        if self._seeds is not None and self._recall(prompt, self._seeds, found):
            return super().match(prompt)
        return found

    def insert(self, slot: int, prompt: RequestInfo) -> float:
        """Insert as `PrefixIndex.insert`; the oldest seeds make room."""
        distance_tokens = super().insert(slot, prompt)
        if self._seeds is not None:
            self._seeds.shrink(slot, self.capacity(slot) - self.tokens(slot))
        return distance_tokens

    def forget(self, slot: int) -> None:
        """Forget what the slot holds."""
        super().forget(slot)
        if self._lost is not None:
            self._lost.add(slot)
        if self._seeds is not None:
            self._seeds.forget(slot)

    def _recall(self, prompt: RequestInfo, seeds: Seeds, found: PrefixMatch) -> bool:
        """Insert what the seeds know of a prompt beyond what was found; return whether they know anything."""
        if not len(seeds):
            self._seeds = None
            return False
        step, blocks = self._coarse_blocks, prompt.blocks
        known = float(found.cached_tokens(self._seeded).max(initial=0.0)) / prompt.block_tokens
        depths: dict[int, int] = {}
        # From the first coarse prefix that is longer than what is known; half a block is rounding.
        for end in range((int(known + 0.5) // step + 1) * step, len(blocks) + 1, step):
            slots = seeds.take(self._name_block(blocks[end - 1]))
            if not slots:
                break
            depths.update(dict.fromkeys(slots, end))
        for slot, end in depths.items():
            tokens = round(end * prompt.block_tokens)
            self.insert(slot, replace(prompt, blocks=blocks[:end], prompt_tokens=tokens))
        return bool(depths)
