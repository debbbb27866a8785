"""What engines say that their KV caches hold, block by block.

An engine's names for blocks are handles: each block is hashed anew from its token ids, chained by the block
before, so that prompts are looked up by their own tokens whatever hash an engine uses. A cache is a
*replica*: an endpoint, or one data-parallel rank of it. Presence is one bit per replica, block, tier, group.

Owns the blocks, and those that are credited because a prompt was sent whose blocks no event has told yet.
Bounded by `max_blocks` over all replicas at 300 bytes each, and by `MAX_CREDITS` credited blocks of a replica
at as many. Changes come in slices of `SLICE` blocks, so that whoever applies them can pause.
"""

from __future__ import annotations

import math
from itertools import islice, takewhile
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

import xxhash

from epp.prefix_cache.kv_messages import MAX_GROUPS, TIERS, Cleared, Removed, Stored

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from epp.prefix_cache.kv_messages import Event

#: Blocks that are changed between two pauses.
SLICE = 256
#: Tokens of the smallest block that is followed: smaller ones cost more to look up than a hit is worth.
MIN_BLOCK_TOKENS = 8
#: Credited blocks of one replica.
MAX_CREDITS = 65_536
#: Blocks of one replica that are stored more than once, as far as that is counted.
_MAX_AGAIN = 65_536
#: Parts of each table, so that none grows by a copy that takes long.
_SHARDS = 64
_PLACES = MAX_GROUPS * len(TIERS)
_PLACES_MASK = (1 << _PLACES) - 1
#: Why blocks were not taken: their parent is not known, there is no room, they are too small; or were
#: forgotten: a group of smaller blocks came.
REFUSALS = ("unknown-parent", "full", "small", "smaller-group")


class ChainKey(NamedTuple):
    """What prompts are hashed by: the adapter's name, and tokens of a step."""

    lora: str
    step_tokens: int


class _Group(NamedTuple):
    block_tokens: int
    window_tokens: int


class _Replica:
    """One KV cache: its blocks by the engine's names, each with its key and where it lies."""

    __slots__ = ("again", "bit", "credits", "entries", "groups", "step_tokens")

    def __init__(self, bit: int) -> None:
        self.bit = bit
        self.step_tokens = 0
        self.entries = _table()  # name -> key << _PLACES | a bit for each tier and group
        self.again: dict[tuple[int, int], int] = {}  # (name, place) -> how often it is stored beyond once
        self.groups: dict[int, _Group] = {}
        self.credits: dict[int, Credit] = {}

    @property
    def simple(self) -> bool:
        """Whether every block of a prefix is needed, and all are of one size."""
        return self.groups == {0: _Group(self.step_tokens, 0)}


class Credit:
    """Blocks that a prompt brings to a replica, until events tell or it is settled."""

    __slots__ = ("keys", "replica")

    def __init__(self, replica: _Replica, keys: Sequence[int]) -> None:
        self.replica, self.keys = replica, keys

    @property
    def open(self) -> bool:
        """Whether a block of it was not told of."""
        return any(self.replica.credits.get(key) is self for key in self.keys)


class EngineBlocks:
    """The blocks of all engines.

    Args:
        seed: of the hashes, a secret of this process.
        max_blocks: blocks over all replicas.
        tier_prices: what a block in each of `TIERS` is worth of one on the accelerator, 0..1.

    Attributes:
        refused: blocks that were not taken, by one of `REFUSALS`.
        blocks: held, over all replicas.
        counts: blocks stored, removed, and kept as they had been stored twice.
    """

    def __init__(
        self, seed: int, max_blocks: int = 1_000_000, tier_prices: Sequence[float] = (1.0, 0.8, 0.5)
    ) -> None:
        self._seed, self._max_blocks, self._prices = seed & (1 << 64) - 1, max_blocks, tier_prices
        self._layers = [_table() for _ in range(_PLACES)]  # key -> bits of replicas
        self._credited = _table()
        self._replicas: dict[int, dict[int, _Replica]] = {}  # slot -> rank -> replica
        self._ranks: dict[int, int] = {}
        self._leaving: list[_Replica] = []
        self._bits = 0  # in use
        self.refused = dict.fromkeys(REFUSALS, 0)
        self.blocks = 0
        self.counts = {"stored": 0, "removed": 0, "kept": 0}

    def held(self, slot: int) -> int:
        """Count the blocks that a slot is said to hold."""
        return sum(sum(map(len, each.entries)) for each in self._replicas.get(slot, {}).values())

    def expect_ranks(self, slot: int, ranks: int) -> None:
        """State how many data-parallel ranks answer at a slot."""
        self._ranks[slot] = ranks

    def apply(self, slot: int, rank: int, event: Event) -> Iterator[str]:
        """Apply an event, pausing after every `SLICE` blocks.

        Yields:
            ``""``, or at the end why the rest is not taken, or blocks were forgotten, one of `REFUSALS`.
        """
        if isinstance(event, Cleared):
            before = self._replica(slot, rank)
            self.clear(slot, rank)
            after = self._replica(slot, rank)
            after.step_tokens, after.groups = before.step_tokens, before.groups
        elif isinstance(event, Removed):
            yield from self._remove(self._replica(slot, rank), event)
        else:
            yield from self._store(slot, rank, event)

    def clear(self, slot: int, rank: int) -> None:
        """Forget what one rank of a slot holds; `tidy` frees the memory."""
        replica = self._replicas.get(slot, {}).pop(rank, None)
        if replica is not None:
            self._leaving.append(replica)

    def forget(self, slot: int) -> None:
        """Forget what a slot holds."""
        for rank in list(self._replicas.get(slot, ())):
            self.clear(slot, rank)
        self._replicas.pop(slot, None)
        self._ranks.pop(slot, None)

    def uncount_repeats(self, slot: int, rank: int) -> None:
        """Take the next removal of every block for its last: messages were lost, and removals among them."""
        if (replica := self._replicas.get(slot, {}).get(rank)) is not None:
            replica.again.clear()

    def tidy(self, most: int = SLICE) -> bool:
        """Free up to so many blocks of what was forgotten; False when nothing is left."""
        while self._leaving:
            replica = self._leaving[-1]
            for part in replica.entries:
                while part and most > 0:
                    _, entry = part.popitem()
                    self._unmark(replica, entry >> _PLACES, entry & _PLACES_MASK)
                    self.blocks -= 1
                    most -= 1
            while replica.credits and most > 0:
                self._uncredit(replica, next(iter(replica.credits)))
                most -= 1
            if any(replica.entries) or replica.credits:
                return True
            self._bits &= ~replica.bit
            self._leaving.pop()
        return False

    def chains(self, loras: Mapping[int, str], tokens: bytes, salt: str) -> dict[ChainKey, list[int]]:
        """Hash a prompt's whole steps, in every way that engines ask for; nothing can be read back from that.

        Args:
            loras: slot -> the adapter's name there, ``""`` for the base model.
            tokens: token ids, 4 bytes each.
            salt: the client's, ``""`` for none.
        """
        found, digest = dict[ChainKey, list[int]](), xxhash.xxh3_64_intdigest
        for slot, lora in loras.items() if tokens else ():
            for replica in self._replicas.get(slot, {}).values():
                key = ChainKey(lora, replica.step_tokens)
                if key.step_tokens and key not in found:
                    step, value = Struct(f"{4 * key.step_tokens}s"), self._root(lora, salt)
                    whole = memoryview(tokens)[: len(tokens) - len(tokens) % step.size]
                    found[key] = [value := digest(part, value) for (part,) in step.iter_unpack(whole)]
        return found

    def held_tokens(
        self, slots: Iterable[int], chains: Mapping[ChainKey, Sequence[int]], loras: Mapping[int, str]
    ) -> dict[int, float]:
        """Count the tokens of a prompt that can be read from each slot's cache, credited blocks included.

        Of several ranks it is the mean: nobody here knows which of them will answer.

        Returns:
            By slot; those of which nothing was told are left out.
        """
        walks: dict[ChainKey, int] = {}
        found: dict[int, float] = {}
        by_bit: dict[int, float] = {}
        asked = list[tuple[int, _Replica, ChainKey]]()
        for slot in slots:
            for replica in self._replicas.get(slot, {}).values():
                key = ChainKey(loras.get(slot, ""), replica.step_tokens)
                if key not in chains:
                    continue  # it was hashed before the first event came
                asked.append((slot, replica, key))
                if replica.simple:
                    walks[key] = walks.get(key, 0) | replica.bit
        for key, mask in walks.items():
            self._walk(chains[key], mask, key.step_tokens, by_bit)
        for slot, replica, key in asked:
            if replica.simple:
                tokens = by_bit.get(replica.bit, 0.0)
            else:
                tokens = self._walk_groups(replica, chains[key])
            found[slot] = found.get(slot, 0.0) + tokens
        for slot in found:
            found[slot] /= max(self._ranks.get(slot, 1), len(self._replicas[slot]))
        return found

    def credit(self, slot: int, chains: Mapping[ChainKey, Sequence[int]], lora: str) -> Credit | None:
        """Credit a slot with what a prompt brings; None where that is nothing, or ranks share the slot."""
        replicas = self._replicas.get(slot, {})
        if len(replicas) != 1 or self._ranks.get(slot, 1) > 1:
            return None
        (replica,) = replicas.values()
        layer, bit, credited = self._layers[0], replica.bit, replica.credits
        keys = [
            key
            for key in chains.get(ChainKey(lora, replica.step_tokens), ())
            if not layer[key % _SHARDS].get(key, 0) & bit
        ]
        if not keys or len(credited) + len(keys) > MAX_CREDITS:
            return None
        credit = Credit(replica, keys)
        for key in keys:
            credited[key] = credit  # the last prompt that brings it
            _mark(self._credited, key, bit)
        return credit

    def settle(self, credit: Credit) -> None:
        """Take back what is left of a credit: events had the time to tell."""
        for key in credit.keys:
            if credit.replica.credits.get(key) is credit:
                self._uncredit(credit.replica, key)

    def _uncredit(self, replica: _Replica, key: int) -> None:
        del replica.credits[key]
        _clear(self._credited, key, replica.bit)

    def _root(self, lora: str, salt: str) -> int:
        names = b"".join(len(name).to_bytes(4) + name for name in (lora.encode(), salt.encode()))
        return xxhash.xxh3_64_intdigest(names, self._seed)

    def _replica(self, slot: int, rank: int) -> _Replica:
        ranks = self._replicas.setdefault(slot, {})
        if rank not in ranks:
            free = ~self._bits & (self._bits + 1)
            self._bits |= free
            ranks[rank] = _Replica(free)
        return ranks[rank]

    def _store(self, slot: int, rank: int, event: Stored) -> Iterator[str]:
        replica, forgotten = self._replica(slot, rank), 0
        step_tokens = math.gcd(replica.step_tokens, event.block_tokens)
        if step_tokens < MIN_BLOCK_TOKENS:
            yield self._refuse("small", len(event.hashes))
            return
        if step_tokens != replica.step_tokens:
            if forgotten := sum(map(len, replica.entries)):  # all is hashed in other steps
                self.clear(slot, rank)
                replica = self._replica(slot, rank)
            replica.step_tokens = step_tokens
        known = replica.groups.get(event.group)
        block_tokens = max(event.block_tokens, known.block_tokens if known else 0)  # a part of one may come
        replica.groups[event.group] = _Group(block_tokens, event.window_tokens)
        if event.parent is None:
            value = self._root(event.lora, event.salt)
        elif (entry := replica.entries[event.parent % _SHARDS].get(event.parent)) is not None:
            value = entry >> _PLACES
        else:
            yield self._refuse("unknown-parent", len(event.hashes))
            return
        yield from self._store_behind(value, (slot, rank), replica, event)
        if forgotten:
            yield self._refuse("smaller-group", forgotten)

    def _store_behind(
        self, value: int, place: tuple[int, int], replica: _Replica, event: Stored
    ) -> Iterator[str]:
        """Store an event's blocks behind the block of this hash."""
        digest = xxhash.xxh3_64_intdigest
        step, steps = Struct(f"{4 * replica.step_tokens}s"), event.block_tokens // replica.step_tokens
        parts, names, extra = step.iter_unpack(event.tokens), event.hashes, event.extra
        for start in range(0, len(names), SLICE):
            if start:
                yield ""
                if self._replicas.get(place[0], {}).get(place[1]) is not replica:
                    return  # forgotten meanwhile
            if self.blocks + SLICE > self._max_blocks:
                yield self._refuse("full", len(names) - start)
                return
            for number in range(start, min(start + SLICE, len(names))):
                if extra and number < len(extra) and extra[number]:
                    value = digest(extra[number], value)
                for _ in range(steps):
                    (part,) = next(parts)
                    value = digest(part, value)
                self._put(replica, names[number], value, event)
        yield ""

    def _put(self, replica: _Replica, name: int, key: int, event: Stored) -> None:
        place = event.tier * MAX_GROUPS + event.group
        part = replica.entries[name % _SHARDS]
        entry = part.get(name)
        if entry is None:
            entry = key << _PLACES
            self.blocks += 1
        elif entry >> _PLACES != key:  # another block of the same name
            self._unmark(replica, entry >> _PLACES, entry & _PLACES_MASK)
            entry = key << _PLACES
        if entry >> place & 1:
            if len(replica.again) < _MAX_AGAIN:
                replica.again[name, place] = replica.again.get((name, place), 0) + 1
            return
        self.counts["stored"] += 1
        part[name] = entry | 1 << place
        _mark(self._layers[place], key, replica.bit)
        if key in replica.credits:
            self._uncredit(replica, key)

    def _remove(self, replica: _Replica, event: Removed) -> Iterator[str]:
        place = event.tier * MAX_GROUPS + event.group
        for number, name in enumerate(event.hashes, 1):
            part = replica.entries[name % _SHARDS]
            entry = part.get(name, 0)
            if repeats := replica.again.pop((name, place), 0) if replica.again else 0:
                self.counts["kept"] += 1
                if repeats > 1:
                    replica.again[name, place] = repeats - 1
            elif entry >> place & 1:
                self.counts["removed"] += 1
                _clear(self._layers[place], entry >> _PLACES, replica.bit)
                entry &= ~(1 << place)
                if entry & _PLACES_MASK:
                    part[name] = entry
                else:
                    del part[name]
                    self.blocks -= 1
            if not number % SLICE:
                yield ""
        yield ""

    def _unmark(self, replica: _Replica, key: int, places: int) -> None:
        while places:
            low = places & -places
            _clear(self._layers[low.bit_length() - 1], key, replica.bit)
            places ^= low

    def _refuse(self, why: str, blocks: int) -> str:
        self.refused[why] += blocks
        return why

    def _walk(self, chain: Sequence[int], alive: int, step_tokens: int, found: dict[int, float]) -> None:
        """Follow a prompt through simple replicas at once; adds tokens by bit."""
        near, credited = self._layers[0], self._credited
        lower = [
            (self._layers[tier * MAX_GROUPS], (1.0 - self._prices[tier]) * step_tokens)
            for tier in range(1, len(TIERS))
            if any(self._layers[tier * MAX_GROUPS])
        ]
        discount: dict[int, float] = {}
        position = 0
        for key in chain:
            part = key % _SHARDS
            held = (near[part].get(key, 0) | credited[part].get(key, 0)) & alive
            for layer, price in lower:
                for bit in _bits(layer[part].get(key, 0) & alive & ~held):
                    discount[bit] = discount.get(bit, 0.0) + price
                    held |= bit
            if held != alive:
                for bit in _bits(alive & ~held):
                    found[bit] = position * step_tokens - discount.get(bit, 0.0)
                alive = held
                if not alive:
                    return
            position += 1
        for bit in _bits(alive):
            found[bit] = position * step_tokens - discount.get(bit, 0.0)

    def _walk_groups(self, replica: _Replica, chain: Sequence[int]) -> float:
        """Count the tokens that every group of a hybrid model can go on from; lower tiers count in full."""
        steps, most, before = replica.step_tokens, len(chain), -1
        for number, group in replica.groups.items():
            if not group.window_tokens:
                size, held = group.block_tokens // steps, self._held_in(replica, number)
                most = size * sum(1 for _ in takewhile(held, islice(chain, size - 1, most, size)))
        while most != before:  # until the end that one group takes suits them all
            before = most
            for number, group in replica.groups.items():
                if group.window_tokens:
                    size, held = group.block_tokens // steps, self._held_in(replica, number)
                    needed = max(-(-(group.window_tokens - 1) // group.block_tokens), 1)
                    end = block = most // size
                    while block and end - block < needed:
                        if not held(chain[block * size - 1]):
                            end = block - 1
                        block -= 1
                    most = end * size
        return float(steps * most)

    def _held_in(self, replica: _Replica, group: int) -> Callable[[int], bool]:
        """Return what tells whether a group holds a block in any tier."""
        layers = [layer for layer in self._layers[group::MAX_GROUPS] if any(layer)]
        bit, credited = replica.bit, replica.credits
        is_state = replica.groups[group].window_tokens == 1

        def held(key: int) -> bool:
            part = key % _SHARDS
            for layer in layers:  # any() with a generator takes several times as long
                if layer[part].get(key, 0) & bit:
                    return True
            credit = credited.get(key)
            # Of a prompt's states the last one is kept for sure.
            return credit is not None and (not is_state or key == credit.keys[-1])

        return held


def _table() -> list[dict[int, int]]:
    return [{} for _ in range(_SHARDS)]


def _mark(layer: list[dict[int, int]], key: int, bit: int) -> None:
    part = layer[key % _SHARDS]
    part[key] = part.get(key, 0) | bit


def _clear(layer: list[dict[int, int]], key: int, bit: int) -> None:
    part = layer[key % _SHARDS]
    left = part.get(key, 0) & ~bit
    if left:
        part[key] = left
    else:
        part.pop(key, None)


def _bits(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low
        mask ^= low
