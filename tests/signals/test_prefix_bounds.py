"""Bounds of the prefix index: what it costs, what it never exceeds, and what evicting never breaks."""

from __future__ import annotations

import gc
import tracemalloc
from random import Random

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from epp.apis.types import MeasuredPrompt
from epp.prefix_cache.index import PrefixIndex
from epp.signals.endpoint import Endpoint
from epp.signals.fleet import Fleet


def blocks(random: Random, count: int) -> list[int]:
    return [random.getrandbits(64) for _ in range(count)]


def prompt(hashes: list[int], block_tokens: float = 64.0) -> MeasuredPrompt:
    return MeasuredPrompt(0, round(len(hashes) * block_tokens), hashes, block_tokens)


def cached(index: PrefixIndex, asked: MeasuredPrompt, slot: int) -> float:
    return float(index.match(asked).cached_tokens(np.array([slot], dtype=np.intp))[0])


def test_a_conversation_that_stays_on_one_endpoint_is_one_segment_however_many_turns() -> None:
    index, random = PrefixIndex(), Random(1)
    hashes = blocks(random, 20)
    for turn in range(50):
        # estimates of tokens per block wander a little, as they do when prompts are estimated one by one
        index.insert(0, prompt(hashes, 64.0 + random.uniform(-0.5, 0.5)))
        assert cached(index, prompt(hashes), 0) == len(hashes) * 64.0
        assert index.stats().segments == 1, turn
        hashes = hashes + blocks(random, 3)
    assert index.tokens(0) == pytest.approx(len(hashes[:-3]) * 64.0, rel=0.01)
    assert index.stats().tokens == pytest.approx(index.tokens(0))


def test_growing_in_place_moves_nobody_elses_presence() -> None:
    index, random = PrefixIndex(), Random(2)
    shared, mine, yours, more = (blocks(random, 4) for _ in range(4))
    index.insert(0, prompt(shared))
    index.insert(1, prompt(shared))
    index.insert(0, prompt(shared + mine))
    index.insert(1, prompt(shared + yours))
    index.insert(1, prompt(shared + yours + more))
    assert [cached(index, prompt(shared + mine), slot) for slot in (0, 1)] == [512.0, 256.0]
    assert [cached(index, prompt(shared + yours + more), slot) for slot in (0, 1)] == [256.0, 768.0]


def test_a_branch_off_a_grown_segment_keeps_its_own_time_of_use() -> None:
    index, random = PrefixIndex(capacity_tokens=12 * 64), Random(3)
    head, one, two = blocks(random, 4), blocks(random, 4), blocks(random, 4)
    index.insert(0, prompt(head))
    index.insert(0, prompt(head + one))
    index.insert(0, prompt(head + two))
    index.insert(0, prompt(head + blocks(random, 4)))
    assert cached(index, prompt(head + one), 0) == 256.0, "the oldest branch went, not the head"
    assert cached(index, prompt(head + two), 0) == 512.0


@pytest.mark.parametrize(
    ("turn_blocks", "turns", "conversations"), [(4, 20, 100), (16, 10, 60), (2, 1, 1000), (282, 1, 60)]
)
def test_memory_is_at_most_four_bytes_per_distinct_cached_token(
    turn_blocks: int, turns: int, conversations: int
) -> None:
    random = Random(4)
    system = blocks(random, 24)
    gc.collect()
    tracemalloc.start()
    try:
        index = PrefixIndex(capacity_tokens=100_000_000)
        for conversation in range(conversations):
            hashes = list(system)
            for _ in range(turns):
                hashes += blocks(random, turn_blocks)
                index.insert(conversation % 3, prompt(list(hashes)))
        del hashes
        gc.collect()
        used = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    stats = index.stats()
    assert used <= 4.0 * stats.tokens
    assert 0.5 * used <= stats.bytes <= 2.0 * used, "the index's own estimate is near the truth"


def test_evicting_what_many_hold_does_not_cut_it_to_pieces() -> None:
    index, random = PrefixIndex(capacity_tokens=64 * 64), Random(5)
    old = blocks(random, 64)
    for slot in range(100):
        index.insert(slot, prompt(old))
    for slot in range(100):
        for _ in range(3):
            index.insert(slot, prompt(blocks(random, 2)))
        assert index.tokens(slot) <= 64 * 64
    assert index.stats().segments <= 310, "three prompts a slot, and few pieces of the old one"
    assert index.stats().blocks <= 664


@pytest.mark.parametrize("block_tokens", [64.0, 63.7, 61.93, 0.37])
def test_a_capacity_of_nothing_holds_nothing(block_tokens: float) -> None:
    index, random = PrefixIndex(), Random(6)
    hashes = blocks(random, 30)
    for length in (5, 9, 30):
        index.insert(0, prompt(hashes[:length], block_tokens))
    index.set_capacity(0, 0)
    index.insert(0, prompt(hashes, block_tokens))
    assert index.tokens(0) == 0.0
    assert (index.stats().segments, index.stats().tokens, index.stats().bytes) == (0, 0.0, 0)


def test_an_answer_is_not_credited_where_the_known_conversation_went_another_way() -> None:
    index, random = PrefixIndex(), Random(7)
    first, on, other = blocks(random, 5), blocks(random, 20), blocks(random, 30)
    index.insert(0, prompt(first))
    index.insert(1, prompt(first))
    index.note_answer(0, prompt(first), 1000)
    index.note_answer(1, prompt(first), 1000)
    index.insert(0, prompt(first + on))
    asked = prompt(first + on[:2] + other)
    assert cached(index, asked, 0) == 7 * 64.0, "it knows how the answer went, and this is not it"
    assert cached(index, asked, 1) == 5 * 64.0 + 1000.0, "it knows of no other way"


def test_a_capacity_that_nobody_states_any_more_is_the_assumed_one() -> None:
    fleet = Fleet(PrefixIndex(capacity_tokens=5000))
    fleet.apply([Endpoint("a:1", kv_capacity_tokens=1000)], 0.0)
    assert fleet.index.capacity(0) == 1000
    fleet.apply([Endpoint("a:1")], 1.0)
    assert fleet.index.capacity(0) == 5000
    for _ in range(8):  # less evidence than against somebody's word
        fleet.index.confirm(0, 2000.0, 0, 1500.0)
    assert fleet.index.capacity(0) < 5000
    fleet.learn_capacity(0, 3000)
    assert fleet.index.capacity(0) == 3000
    fleet.apply([Endpoint("a:1", kv_capacity_tokens=1000)], 2.0)
    fleet.apply([Endpoint("a:1")], 3.0)
    assert fleet.index.capacity(0) == 3000, "the engine's word goes before what is assumed"


def test_asking_about_a_slot_remembers_nothing() -> None:
    index = PrefixIndex(capacity_tokens=7)
    assert (index.capacity(3), index.tokens(3)) == (7, 0.0)
    index.forget(3)
    index.note_answer(3, prompt([1, 2]), 5)
    assert index.stats().bytes == 0


class UnderPressure(RuleBasedStateMachine):
    """Any sequence of operations, with uneven blocks and tight bounds: what must hold after each."""

    CAPACITY, MAX_TOKENS, SLOTS = 900, 1500, 3
    paths = st.lists(st.integers(1, 3), min_size=1, max_size=12)
    slots = st.integers(0, SLOTS - 1)

    def __init__(self) -> None:
        super().__init__()
        self.index = PrefixIndex(self.CAPACITY, self.MAX_TOKENS)
        self.capacity = [self.CAPACITY] * self.SLOTS
        self.seen: list[MeasuredPrompt] = []

    def asked(self, path: list[int], block_tokens: float) -> MeasuredPrompt:
        hashes = [hash(tuple(path[: end + 1])) & 0xFFFF_FFFF_FFFF_FFFF for end in range(len(path))]
        self.seen.append(prompt(hashes, block_tokens))
        return self.seen[-1]

    @rule(slot=slots, path=paths, block_tokens=st.floats(40, 80))
    def insert(self, slot: int, path: list[int], block_tokens: float) -> None:
        self.index.insert(slot, self.asked(path, block_tokens))

    @rule(slot=slots, path=paths, answer=st.integers(-5, 500))
    def answer(self, slot: int, path: list[int], answer: int) -> None:
        self.index.note_answer(slot, self.asked(path, 64.0), answer)

    @rule(slot=slots, expected=st.floats(0, 5000), reported=st.integers(0, 5000))
    def confirm(self, slot: int, expected: float, reported: int) -> None:
        self.index.confirm(slot, expected, reported)

    @rule(slot=slots, tokens=st.integers(0, 1200))
    def resize(self, slot: int, tokens: int) -> None:
        self.capacity[slot] = tokens
        self.index.set_capacity(slot, tokens)

    @rule(slot=slots)
    def forget(self, slot: int) -> None:
        self.capacity[slot] = self.CAPACITY
        self.index.forget(slot)
        assert self.index.tokens(slot) == 0.0
        for seen in self.seen[-20:]:
            assert cached(self.index, seen, slot) == 0.0

    @invariant()
    def bounds_hold(self) -> None:
        for slot in range(self.SLOTS):
            assert self.index.capacity(slot) <= max(self.capacity[slot], 1)
            assert self.index.tokens(slot) <= self.index.capacity(slot) + 1e-5
        stats = self.index.stats()
        assert -1e-6 <= stats.tokens <= self.MAX_TOKENS + 1e-5

    @invariant()
    def presence_has_no_holes(self) -> None:
        """Whoever holds a segment holds all above it, so no eviction ever strands what hangs below."""
        segments = self.index._segments
        for seen in self.seen[-20:]:
            position, holders = 0, -1
            while position < len(seen.blocks) and (found := segments.get(seen.blocks[position])) is not None:
                assert found.start == position
                assert found.holders
                assert found.holders & holders == found.holders
                holders, same = found.holders, 0
                while (
                    same < len(found.hashes)
                    and position + same < len(seen.blocks)
                    and found.hashes[same] == seen.blocks[position + same]
                ):
                    same += 1
                if same < len(found.hashes):
                    break
                position += same

    @invariant()
    def sums_agree(self) -> None:
        segments = self.index._segments.values()
        assert self.index.stats().blocks == sum(len(segment.hashes) for segment in segments)
        assert self.index.stats().tokens == pytest.approx(
            sum(segment.tokens for segment in segments), abs=1e-5
        )
        for slot in range(self.SLOTS):
            held = sum(segment.tokens for segment in segments if segment.holders >> slot & 1)
            assert self.index.tokens(slot) == pytest.approx(held, abs=1e-5)
        assert all(key == segment.hashes[0] for key, segment in self.index._segments.items())

    def teardown(self) -> None:
        for slot in range(self.SLOTS):
            self.index.forget(slot)
        stats = self.index.stats()
        assert (stats.segments, stats.blocks, stats.tokens, stats.bytes) == (0, 0, 0.0, 0)


TestUnderPressure = UnderPressure.TestCase
TestUnderPressure.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
