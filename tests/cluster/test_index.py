"""Indexes that insert what others inserted, with prompts that branch, slots that forget, and messages that are lost."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import TYPE_CHECKING

import numpy as np
import pytest

from epp.prefix_cache.index import PrefixIndex
from tests.kit.requests import measured

if TYPE_CHECKING:
    from epp.prefix_cache.prefix import Prefix
    from epp.types import RequestInfo

SLOTS = np.arange(3)


def prompt(random: Random) -> RequestInfo:
    """A prompt that shares a beginning with others: a path in a tree of some thousand blocks."""
    path, blocks = 0, list[int]()
    for _ in range(random.randrange(1, 60)):
        path = path * 2 + (random.random() < 0.1)
        blocks.append(hash((len(blocks), path)) & (2**64 - 1))
    return measured(0, 64 * len(blocks), blocks, 64.0)


def sound(index: PrefixIndex) -> None:
    """Each block is in one segment, and each slot holds what it counts."""
    hashes = [block for segment in index._segments.values() for block in segment.hashes]
    assert len(hashes) == len(set(hashes)) == index.distinct_blocks
    for slot, holdings in index._slots.items():
        held = {key: segment for key, segment in index._segments.items() if segment.holders >> slot & 1}
        assert set(holdings.held()) == set(held)
        assert holdings.tokens == pytest.approx(sum(segment.tokens for segment in held.values()))


@pytest.mark.parametrize("loss", [0.0, 0.3])
@pytest.mark.parametrize("seed", range(5))
def test_indexes_stay_sound_and_without_losses_equal(loss: float, seed: int) -> None:
    random = Random(seed)
    indexes = [PrefixIndex(capacity_tokens=40_000) for _ in range(3)]
    sent: list[tuple[int, int, Prefix]] = []

    def tell(number: int, slot: int, prefix: Prefix) -> None:
        sent.append((number, slot, prefix))

    for number, index in enumerate(indexes):
        index.on_insert["test"] = partial(tell, number)
    for step in range(400):
        index = random.choice(indexes)
        asked = prompt(random)
        index.insert(random.randrange(3), asked)
        while sent:
            number, slot, prefix = sent.pop()
            for other, index in enumerate(indexes):
                if other != number and random.random() >= loss and not index.apply_remote(slot, prefix):
                    whole = indexes[number].whole(prefix)
                    assert whole is None or index.apply_remote(slot, whole)
        if step % 50 == 49:
            for index in indexes:
                sound(index)
                copy = PrefixIndex(capacity_tokens=40_000)
                assert all(copy.apply_remote(0, prefix) for prefix in index.prefixes(0))
                assert copy.match(asked).cached_tokens(SLOTS)[0] == index.match(asked).cached_tokens(SLOTS)[0]
                assert copy.tokens(0) == index.tokens(0)
                index.forget(step % 3)
        if not loss:
            found = [index.match(asked).cached_tokens(SLOTS).tolist() for index in indexes]
            assert found[0] == found[1] == found[2]
