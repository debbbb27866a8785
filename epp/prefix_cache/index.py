"""The prefix index: which endpoint is believed to hold which prompt prefixes in its KV cache.

A path-compressed trie of chained block hashes. A hash covers everything before it, so a segment (a run of
blocks without a branch) is found by its first hash alone, and it matches wholly if and only if its last hash
does: a walk costs per segment, not per block. Presence is one bit per endpoint slot and segment; a segment is
split where its blocks stop being held, or continued, alike.

Owns the segments and, per slot, what it holds in order of use. Bounds: per slot in tokens, least recently
used first and leaves before what they hang on; over all slots in distinct tokens. Never sees text.
"""

from __future__ import annotations

import math
from array import array
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from epp.prefix_cache.holdings import SlotHoldings
from epp.prefix_cache.match import PrefixMatch
from epp.prefix_cache.prefix import BlockRun, Prefix

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from epp.prefix_cache.state_slots import StateSlots
    from epp.types import RequestInfo

    #: Whether blocks are held now or no more, and their hashes.
    HeldChange = tuple[bool, array[int]]

#: A segment held by more slots than this is evicted whole: to split it costs a step for each of them.
_MAX_SPLIT_HOLDERS = 16


class _Segment:
    """A run of blocks held alike, ``start`` blocks below the root."""

    __slots__ = ("above", "answers", "below", "block_tokens", "hashes", "holders", "key", "leaf", "start")

    def __init__(self, start: int, hashes: array[int], block_tokens: float, holders: int) -> None:
        self.start, self.hashes, self.block_tokens, self.holders = start, hashes, block_tokens, holders
        self.key = hashes[0]  # kept as one object: every reader of an array makes a new one
        self.leaf = True  # False once anything hung below it, even if that is gone by now
        self.above = 0  # key of what it hung below when it was made, 0 at the root
        self.below = 0  # key of what was cut from its end last, else of what hung below it first
        # slot -> (prompt tokens, prompt and answer tokens) of a request whose prompt ended here
        self.answers: dict[int, tuple[int, int]] | None = None

    @property
    def tokens(self) -> float:
        return len(self.hashes) * self.block_tokens


#: Distinct tokens that an index keeps, over all endpoints.
MAX_TOKENS = 200_000_000


class PrefixIndex:
    """Presence of prompt prefixes by slot.

    Args:
        capacity_tokens: tokens believed to fit a slot's cache until `set_capacity` says otherwise.
        max_tokens: distinct tokens indexed over all slots.
        states: where engines of hybrid models can take a prefix up, None for models that keep every token.
    """

    def __init__(
        self,
        capacity_tokens: int = 500_000,
        max_tokens: int = MAX_TOKENS,
        *,
        states: StateSlots | None = None,
    ) -> None:
        self._capacity_tokens, self._max_tokens = capacity_tokens, max_tokens
        #: As given.
        self.states = states
        self._segments: dict[int, _Segment] = {}
        self._slots: dict[int, SlotHoldings] = {}
        #: Called with each insertion.
        self.on_insert: dict[str, Callable[[int, Prefix], None]] = {}
        #: Bits of the slots whose blocks are logged: not those that stand for engines elsewhere.
        self.counted = -1
        self._log: list[HeldChange] | None = None
        self._log_stride = 1
        #: Distinct ones, over all slots.
        self.distinct_tokens, self.distinct_blocks = 0.0, 0

    def follow_held(self, stride: int) -> list[HeldChange]:
        """Log from now on what the counted slots come to hold, and hold no more; begin with all they hold.

        Args:
            stride: of every so many blocks from the root on one is logged.

        Returns:
            The log, whose reader takes out what it has read.
        """
        self._log, self._log_stride = [], stride
        for segment in self._segments.values():
            if segment.holders & self.counted:
                self._note(held=True, start=segment.start, hashes=segment.hashes)
        return self._log

    def unfollow_held(self) -> None:
        """Log no more."""
        self._log = None

    def match(self, prompt: RequestInfo) -> PrefixMatch:
        """Walk the prompt's blocks; changes nothing."""
        blocks, steps, answered = prompt.blocks, list[tuple[int, float]](), dict[int, int]()
        position, alive, parted = 0, -1, False
        while position < len(blocks):
            segment = self._segments.get(blocks[position])
            if segment is None:
                break
            alive &= segment.holders
            if not alive:
                break
            if answered:  # known blocks below an answer's prompt: they show how it went on for these slots
                answered = {slot: covered for slot, covered in answered.items() if not alive >> slot & 1}
            matched = _matched(segment.hashes, blocks, position)
            parted = matched < len(segment.hashes) or not segment.leaf
            position += matched
            tokens = prompt.tokens_before(position)
            if steps and steps[-1][0] == alive:
                steps[-1] = (alive, tokens)
            else:
                steps.append((alive, tokens))
            if matched < len(segment.hashes):
                break
            if segment.answers:
                for slot, (before, covered) in segment.answers.items():
                    if prompt.prompt_tokens > before and alive >> slot & 1:
                        answered[slot] = covered
        limit = None if self.states is None else partial(self.states.reusable, prompt)
        return PrefixMatch(steps, answered, prompt.prompt_tokens, position, limit, parted=parted)

    def insert(self, slot: int, prompt: RequestInfo) -> float:
        """Make the whole prompt the slot's most recently used path.

        Returns:
            Tokens that the slot used since it last used the longest prefix of this prompt that it held, NaN
            when it held none.
        """
        if self.states is not None:
            row = np.array([slot])
            self.states.insert(slot, prompt, float(self.match(prompt).cached_tokens(row)[0]))
        blocks, holdings = prompt.blocks, self._holdings(slot)
        before_tokens, known = holdings.clock_tokens, list[BlockRun]()
        holdings.clock_tokens = before_tokens + len(blocks) * prompt.block_tokens
        used_tokens = self._use(slot, None, blocks, prompt.block_tokens, known)
        if self.on_insert:
            start = sum(run.blocks for run in known)
            inserted = Prefix(known, start, array("Q", blocks[start:]), prompt.block_tokens)
            for listener in self.on_insert.values():
                listener(slot, inserted)
        return before_tokens - used_tokens

    def apply_remote(self, slot: int, prefix: Prefix) -> bool:
        """Insert what another index inserted; False, and nothing, where runs are not known here."""
        path, end = list[_Segment](), 0
        for run in prefix.known:
            found = self._segments_of(run)
            if not found:
                return False
            path += found
            end += run.blocks
        # Hashes of another process may be no chain.
        if end != prefix.start or not all(map(self._hangs_below, path, [None, *path])):
            return False
        holdings, blocks = self._holdings(slot), prefix.blocks
        holdings.clock_tokens += (end + len(blocks)) * prefix.block_tokens
        for segment in path:
            self._take(slot, holdings, segment)
        self._use(slot, path[-1] if path else None, blocks, prefix.block_tokens, [])
        return True

    def _use(
        self,
        slot: int,
        above: _Segment | None,
        blocks: Sequence[int],
        block_tokens: float,
        known: list[BlockRun],
    ) -> float:
        """Let the slot hold and use a chain of blocks now, and evict what it has no room for.

        Args:
            slot: the endpoint's.
            above: where the chain hangs, None at the root.
            blocks: hashes of the chain.
            block_tokens: tokens of a block.
            known: is given the runs that anybody held before.

        Returns:
            When the slot used the longest prefix of it before, in tokens; NaN when it held none.
        """
        holdings, bit, position, used_tokens = self._slots[slot], 1 << slot, 0, math.nan
        start = 0 if above is None else above.start + len(above.hashes)
        while position < len(blocks):
            segment = self._segments.get(blocks[position])
            if segment is None:
                self._hang(slot, above, start + position, array("Q", blocks[position:]), block_tokens)
                break
            if segment.start != start + position or not self._hangs_below(segment, above):
                break  # no chain of hashes
            matched = _matched(segment.hashes, blocks, position)
            if matched < len(segment.hashes) and self._split(segment, matched) is None:
                break
            if above is not None:
                above.leaf = False
            if segment.holders & bit:
                used_tokens = holdings.used_at_tokens(segment.key)
            self._take(slot, holdings, segment)
            known.append(BlockRun(segment.key, segment.hashes[-1], matched))
            position += matched
            above = segment
        self._shrink(slot, holdings)
        return used_tokens

    def whole(self, prefix: Prefix) -> Prefix | None:
        """Return a prefix with all its hashes, for an index that misses runs; None where they are gone."""
        blocks = array("Q")
        for run in prefix.known:
            found = self._segments_of(run)
            if not found:
                return None
            blocks += _hashes(found)
        return Prefix([], 0, blocks + prefix.blocks, prefix.block_tokens)

    def prefixes(self, slot: int) -> Iterator[Prefix]:
        """Yield what the slot holds, the least recently used first, for `hold` of another index."""
        holdings, sent = self._slots.get(slot), set[int]()
        for key in () if holdings is None else holdings.in_order():
            segment = self._segments.get(key)
            if key in sent or segment is None or not segment.holders >> slot & 1:
                continue
            path = self._path(segment)
            known = [
                BlockRun(part.key, part.hashes[-1], len(part.hashes)) for part in path if part.key in sent
            ]
            sent.update(part.key for part in path)
            start, blocks = sum(run.blocks for run in known), _hashes(path[len(known) :])
            yield Prefix(known, start, blocks, segment.block_tokens)

    def _path(self, segment: _Segment) -> list[_Segment]:
        """List the segments from the root to this one."""
        path = [segment]
        while path[-1].start:
            path.append(self._above(path[-1]))
        return path[::-1]

    def _above(self, segment: _Segment) -> _Segment:
        """Find the segment that another one, not at the root, hangs below."""
        # Where it hung when it was made; that may have been cut since.
        above = self._segments[segment.above]
        while above.start + len(above.hashes) < segment.start:
            above = self._segments[above.below]
        return above

    def _hangs_below(self, segment: _Segment, above: _Segment | None) -> bool:
        """Tell whether a segment hangs below another, None for the root."""
        if above is None or not segment.start:
            return above is None and not segment.start
        return self._above(segment) is above

    def _segments_of(self, run: BlockRun) -> list[_Segment]:
        """Find the segments that a run of another index consists of here; none where a block is missing."""
        found, key, left = list[_Segment](), run.key, run.blocks
        while left > 0:
            segment = self._segments.get(key)
            if segment is None:
                return []
            if len(segment.hashes) > left and (
                segment.hashes[left - 1] != run.last or self._split(segment, left) is None
            ):
                return []
            found.append(segment)
            left -= len(segment.hashes)
            key = segment.below
        return found if found and found[-1].hashes[-1] == run.last else []

    def _take(self, slot: int, holdings: SlotHoldings, segment: _Segment) -> None:
        """Let the slot hold and use a segment now."""
        if not segment.holders >> slot & 1:
            if self._log is not None and not segment.holders & self.counted and self.counted >> slot & 1:
                self._note(held=True, start=segment.start, hashes=segment.hashes)
            segment.holders |= 1 << slot
            holdings.tokens += segment.tokens
        holdings.touch(segment.key, segment.start, holdings.clock_tokens)

    def _hang(
        self, slot: int, above: _Segment | None, start: int, blocks: array[int], block_tokens: float
    ) -> None:
        """Let the slot hold blocks that nobody held, below a segment or at the root."""
        holdings = self._slots[slot]
        if above is not None and above.leaf and above.holders == 1 << slot:
            self._extend(above, blocks, block_tokens, holdings)
            return
        segment = self._add(start, blocks, block_tokens)
        if above is not None:
            above.leaf = False
            above.below = above.below or segment.key
            segment.above = above.key
        self._take(slot, holdings, segment)

    def note_answer(self, slot: int, prompt: RequestInfo, answer_tokens: int) -> None:
        """Note an answer that the slot generated: a prompt that continues it finds its tokens cached."""
        if self.states is not None:
            self.states.note_answer(slot, prompt, answer_tokens)
        segment = self._last_segment(prompt)
        if segment is None or answer_tokens <= 0 or not segment.holders >> slot & 1:
            return
        if segment.answers is None:
            segment.answers = {}
        segment.answers[slot] = (prompt.prompt_tokens, prompt.prompt_tokens + answer_tokens)

    def confirm(
        self, slot: int, expected_tokens: float, cached_tokens: int, distance_tokens: float = math.nan
    ) -> None:
        """Compare the tokens that an engine served from its cache with those that were expected.

        The prompt itself is in the cache by now, whatever was missing before. Misses show, by what
        `insert` returned, how much the engine keeps: see `SlotHoldings`.
        """
        holdings = self._holdings(slot)
        holdings.confirm(expected_tokens, cached_tokens, distance_tokens)
        self._shrink(slot, holdings)

    def set_capacity(self, slot: int, tokens: int | None) -> None:
        """State how many tokens the slot's cache holds, None to state nothing."""
        holdings = self._slots.get(slot) if tokens is None else self._holdings(slot)
        if holdings is not None:
            assumed = self._capacity_tokens
            holdings.state_capacity(assumed if tokens is None else tokens, stated=tokens is not None)
            self._shrink(slot, holdings)

    def capacity(self, slot: int) -> int:
        """Return the tokens that the slot is believed to keep."""
        holdings = self._slots.get(slot)
        return self._capacity_tokens if holdings is None else holdings.capacity_tokens

    def tokens(self, slot: int) -> float:
        """Return the tokens that the slot is believed to hold."""
        holdings = self._slots.get(slot)
        return 0.0 if holdings is None else holdings.tokens

    def forget(self, slot: int) -> None:
        """Forget what the slot holds, and its capacity."""
        if self.states is not None:
            self.states.forget(slot)
        holdings = self._slots.pop(slot, None)
        if holdings is not None:
            for key in holdings.held():
                self._drop(slot, holdings, self._segments[key])

    def _holdings(self, slot: int) -> SlotHoldings:
        holdings = self._slots.get(slot)
        if holdings is None:
            holdings = self._slots[slot] = SlotHoldings(self._capacity_tokens)
        return holdings

    def _add(self, start: int, hashes: array[int], block_tokens: float, holders: int = 0) -> _Segment:
        segment = _Segment(start, hashes, block_tokens, holders)
        self._segments[segment.key] = segment
        self.distinct_blocks += len(hashes)
        self.distinct_tokens += segment.tokens
        return segment

    def _extend(
        self, segment: _Segment, hashes: array[int], block_tokens: float, holdings: SlotHoldings
    ) -> None:
        """Let a leaf that one slot holds grow in place, as a conversation does: one segment, not one a turn.

        Estimates of tokens per block differ a little from prompt to prompt; the segment keeps their mean.
        """
        added = len(hashes) * block_tokens
        whole = segment.tokens + added
        if self._log is not None and segment.holders & self.counted:
            self._note(held=True, start=segment.start + len(segment.hashes), hashes=hashes)
        segment.hashes += hashes
        segment.block_tokens = whole / len(segment.hashes)
        segment.answers = None  # the prompt goes on: from here on its blocks say
        self.distinct_blocks += len(hashes)
        self.distinct_tokens += added
        holdings.tokens += added

    def _split(self, segment: _Segment, at: int) -> _Segment | None:
        """Cut a segment in two, each held as before; returns the lower part.

        None, and nothing is cut, where its first hash begins another segment: another process sent no chain.
        """
        if segment.hashes[at] in self._segments:
            return None
        lower = self._add(segment.start + at, segment.hashes[at:], segment.block_tokens, segment.holders)
        self.distinct_blocks -= len(lower.hashes)
        self.distinct_tokens -= lower.tokens
        segment.hashes = segment.hashes[:at]
        lower.answers, segment.answers = segment.answers, None
        lower.leaf, segment.leaf = segment.leaf, False
        lower.below, segment.below, lower.above = segment.below, lower.key, segment.key
        for slot in _bits(segment.holders):
            self._slots[slot].copy_use(segment.key, lower.key, lower.start)
        return lower

    def _shrink(self, slot: int, holdings: SlotHoldings) -> None:
        """Evict until the slot holds no more than its capacity: whole leaves, then the tail of one.

        The whole index is kept within its bound at the expense of whoever holds most.
        """
        while (over := holdings.tokens - holdings.capacity_tokens) > 1e-6 and len(holdings):
            self._evict_leaf(slot, holdings, over)
        while (over := self.distinct_tokens - self._max_tokens) > 1e-6 and self._segments:
            slot, holdings = max(self._slots.items(), key=lambda item: item[1].tokens)
            self._evict_leaf(slot, holdings, over)

    def _evict_leaf(self, slot: int, holdings: SlotHoldings, wanted_tokens: float) -> None:
        segment = self._segments[holdings.oldest()]
        keep = len(segment.hashes) - math.ceil(wanted_tokens / segment.block_tokens - 1e-9)
        if keep <= 0 or segment.holders.bit_count() > _MAX_SPLIT_HOLDERS:
            self._drop(slot, holdings, segment)
            return
        if segment.holders == 1 << slot:
            before_tokens, cut = segment.tokens, len(segment.hashes) - keep
            if self._log is not None and segment.holders & self.counted:
                self._note(held=False, start=segment.start + keep, hashes=segment.hashes[keep:])
            segment.hashes, segment.answers = segment.hashes[:keep], None
            self.distinct_blocks -= cut
            self.distinct_tokens -= before_tokens - segment.tokens
            holdings.tokens -= before_tokens - segment.tokens
            return
        self._drop(slot, holdings, self._split(segment, keep) or segment)

    def _drop(self, slot: int, holdings: SlotHoldings, segment: _Segment) -> None:
        """Take a segment from the slot; one without holders is gone."""
        if self._log is not None and segment.holders & self.counted == 1 << slot:
            self._note(held=False, start=segment.start, hashes=segment.hashes)
        segment.holders &= ~(1 << slot)
        holdings.tokens -= segment.tokens
        holdings.discard(segment.key)
        if segment.answers:
            segment.answers.pop(slot, None)
        if not segment.holders:
            del self._segments[segment.key]
            self.distinct_blocks -= len(segment.hashes)
            self.distinct_tokens -= segment.tokens
        if not len(holdings):
            holdings.tokens = 0.0  # sums of fractions drift; an empty cache is the time to start anew
        if not self._segments:
            self.distinct_tokens = 0.0

    def _note(self, *, held: bool, start: int, hashes: array[int]) -> None:
        """Log blocks ``start`` blocks below the root."""
        sampled = hashes[-(start + 1) % self._log_stride :: self._log_stride]
        if self._log is not None and sampled:
            self._log.append((held, sampled))

    def _last_segment(self, prompt: RequestInfo) -> _Segment | None:
        """Find the segment that ends exactly where the prompt's blocks end."""
        blocks, position = prompt.blocks, 0
        while position < len(blocks):
            segment = self._segments.get(blocks[position])
            if segment is None or _matched(segment.hashes, blocks, position) < len(segment.hashes):
                return None
            position += len(segment.hashes)
            if position == len(blocks):
                return segment
        return None


def _hashes(segments: Iterable[_Segment]) -> array[int]:
    """Join the hashes of segments."""
    return array("Q", chain.from_iterable(segment.hashes for segment in segments))


def _matched(hashes: array[int], blocks: Sequence[int], start: int) -> int:
    """Count the leading hashes of a segment that the blocks from ``start`` on repeat; at least one.

    Hashes are chained, so what matches is a prefix, and its end can be searched for.
    """
    most = min(len(hashes), len(blocks) - start)
    if hashes[most - 1] == blocks[start + most - 1]:
        return most
    low, high = 1, most - 1  # hashes[low - 1] matches, hashes[high] does not
    while low < high:
        middle = (low + high + 1) // 2
        if hashes[middle - 1] == blocks[start + middle - 1]:
            low = middle
        else:
            high = middle - 1
    return low


def _bits(mask: int) -> list[int]:
    """List the positions of the set bits."""
    found = []
    while mask:
        low = mask & -mask
        found.append(low.bit_length() - 1)
        mask ^= low
    return found
