"""Bounds of the prefix index: what it costs, what it never exceeds, and what evicting never breaks."""

from __future__ import annotations

import gc
import tracemalloc
from random import Random

import numpy as np
import pytest

from epp.apis.types import MeasuredPrompt
from epp.prefix_cache.index import PrefixIndex


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
