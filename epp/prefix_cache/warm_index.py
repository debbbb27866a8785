"""A prefix index that starts with what an earlier process knew.

What was on record of an endpoint are names of coarse prefixes (`BlockHasher.coarse_ids`), from which the
block hashes of the index cannot be had. They are kept beside it as seeds. When a prompt goes further than
the index knows, its own coarse names are looked up among the seeds, and what is found there is inserted as
blocks of this prompt, which by then are known; a seed is used once. So a lookup costs names only while there
are seeds, and one name where they tell nothing. Seeds count as older than anything that the index holds and
give way to it within the endpoint's capacity.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from epp.prefix_cache.index import PrefixIndex

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from epp.apis.types import MeasuredPrompt
    from epp.prefix_cache.index import PrefixMatch
    from epp.prefix_cache.state_slots import StateSlots

#: Seeds over all endpoints, some 300 bytes each: a bound on memory, not on what is useful.
MAX_SEEDS = 300_000


@dataclass(slots=True)
class _Held:
    """One slot's seeds, the most recently used first, a prefix before what extends it."""

    capacity_tokens: float
    tokens: float = 0.0
    full: bool = False
    entries: list[tuple[float, str]] = field(default_factory=list)  # (Unix time of use, name)


class Seeds:
    """Names of coarse prefixes and who held them.

    Args:
        capacities: tokens that fit each slot's cache; other slots have no seeds.
        limit: distinct names in all.
    """

    def __init__(self, capacities: Mapping[int, float], limit: int = MAX_SEEDS) -> None:
        self._limit = limit
        self._held = {slot: _Held(tokens) for slot, tokens in capacities.items()}
        self._holders: dict[str, tuple[int, float]] = {}  # name -> (bit set of slots, tokens it stands for)

    def __len__(self) -> int:
        """Distinct names."""
        return len(self._holders)

    @property
    def slots(self) -> list[int]:
        """Slots that may have seeds."""
        return list(self._held)

    @property
    def full(self) -> bool:
        """Whether nothing can be added any more."""
        return len(self._holders) >= self._limit or all(held.full for held in self._held.values())

    def add(self, slot: int, used_wall_s: float, names: Sequence[str], tokens_each: float) -> None:
        """A slot held a prompt. To be called with the latest use first; what does not fit is left out.

        Args:
            slot: who held it.
            used_wall_s: Unix time of the use.
            names: the prompt's coarse names, shortest prefix first.
            tokens_each: tokens from one to the next.
        """
        held, bit = self._held.get(slot), 1 << slot
        if held is None or held.full:
            return
        for name in names:
            mask, tokens = self._holders.get(name, (0, tokens_each))
            if mask & bit:
                continue
            if held.tokens + tokens > held.capacity_tokens:
                held.full = True
                return
            if not mask and len(self._holders) >= self._limit:
                return
            self._holders[name] = (mask | bit, tokens)
            held.tokens += tokens
            held.entries.append((used_wall_s, name))

    def take(self, name: str) -> list[int]:
        """The slots that held a prefix; it is no seed of theirs any more."""
        mask, tokens = self._holders.pop(name, (0, 0.0))
        slots = []
        while mask:
            low = mask & -mask
            slots.append(low.bit_length() - 1)
            self._held[slots[-1]].tokens -= tokens
            mask ^= low
        return slots

    def forget(self, slot: int) -> None:
        """The slot holds nothing."""
        held = self._held.get(slot)
        while held is not None and held.entries:
            self._drop_oldest(slot, held)

    def forget_before(self, slot: int, wall_s: float) -> None:
        """What the slot held was lost then."""
        held = self._held.get(slot)
        while held is not None and held.entries and held.entries[-1][0] < wall_s:
            self._drop_oldest(slot, held)

    def shrink(self, slot: int, tokens: float) -> None:
        """Keep at most so many tokens of a slot, those used last."""
        held = self._held.get(slot)
        while held is not None and held.entries and held.tokens > tokens:
            self._drop_oldest(slot, held)

    def _drop_oldest(self, slot: int, held: _Held) -> None:
        _, name = held.entries.pop()
        mask, tokens = self._holders.get(name, (0, 0.0))
        if not mask >> slot & 1:
            return  # it was taken
        held.tokens -= tokens
        mask &= ~(1 << slot)
        if mask:
            self._holders[name] = (mask, tokens)
        else:
            del self._holders[name]


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
        max_tokens: int = 200_000_000,
        *,
        name_block: Callable[[int], str],
        coarse_blocks: int,
        states: StateSlots | None = None,
    ) -> None:
        super().__init__(capacity_tokens, max_tokens, states=states)
        self._name_block, self._coarse_blocks = name_block, coarse_blocks
        self._seeds: Seeds | None = None
        self._seeded = np.zeros(0, np.intp)
        #: What happened to slots while their seeds were read; None while nobody reads any.
        self._lost: set[int] | None = None
        self._started: dict[int, float] = {}

    @property
    def seeds(self) -> int:
        """Seeds left."""
        return len(self._seeds) if self._seeds is not None else 0

    def expect_seeds(self) -> None:
        """From now on seeds are being read, for slots that may lose what they hold before these are here."""
        self._lost, self._started = set(), {}

    def seed(self, seeds: Seeds) -> None:
        """Begin to use these; they replace any that are left."""
        for slot in self._lost or ():
            seeds.forget(slot)
        for slot, wall_s in self._started.items():
            seeds.forget_before(slot, wall_s)
        self._lost, self._started = None, {}
        self._seeds = seeds if len(seeds) else None
        self._seeded = np.array(seeds.slots, np.intp)

    def drop_seeds(self) -> None:
        """Do without what is left of them."""
        self._seeds = None

    def process_started(self, slot: int, wall_s: float) -> None:
        """The slot's engine runs since then: what it held before is gone."""
        if self._lost is not None:
            self._started[slot] = wall_s
        if self._seeds is not None:
            self._seeds.forget_before(slot, wall_s)

    def match(self, prompt: MeasuredPrompt) -> PrefixMatch:
        """Walk the prompt's blocks; seeds that tell more than the index are made part of it first."""
        found = super().match(prompt)
        if self._seeds is not None and self._recall(prompt, self._seeds, found):
            return super().match(prompt)
        return found

    def insert(self, slot: int, prompt: MeasuredPrompt) -> float:
        """As `PrefixIndex.insert`; the oldest seeds make room."""
        distance_tokens = super().insert(slot, prompt)
        if self._seeds is not None:
            self._seeds.shrink(slot, self.capacity(slot) - self.tokens(slot))
        return distance_tokens

    def forget(self, slot: int) -> None:
        """The slot holds nothing, and nothing is known of its capacity."""
        super().forget(slot)
        if self._lost is not None:
            self._lost.add(slot)
        if self._seeds is not None:
            self._seeds.forget(slot)

    def _recall(self, prompt: MeasuredPrompt, seeds: Seeds, found: PrefixMatch) -> bool:
        """Insert what the seeds tell of a prompt beyond what was found; whether they told anything."""
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
