"""Seeds: what an earlier process knew, used once, older than anything new."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.prefix_cache.warm_index import Seeds, WarmIndex
from tests.kit.requests import measured
from tests.prefix_cache.test_prefix_index import cached

if TYPE_CHECKING:
    from epp.types import RequestInfo

STEP, BLOCK_TOKENS = 6, 64.0
COARSE_TOKENS = STEP * BLOCK_TOKENS
SLOTS = range(3)


def chain(*runs: tuple[int, int]) -> RequestInfo:
    """A prompt of runs of blocks: (seed, count); hashes depend on all that comes before."""
    blocks, value = [], 0
    for seed, count in runs:
        for _ in range(count):
            value = hash((value, seed)) & 0xFFFF_FFFF_FFFF_FFFF
            blocks.append(value)
    return measured(0, round(len(blocks) * BLOCK_TOKENS), blocks, BLOCK_TOKENS)


def name(block: int) -> str:
    return f"<{block:x}>"


def names(prompt: RequestInfo) -> list[str]:
    return [name(block) for block in prompt.blocks[STEP - 1 :: STEP]]


def index(**settings: Any) -> WarmIndex:
    return WarmIndex(**settings, name_block=name, coarse_blocks=STEP)


def seeded(*held: tuple[int, RequestInfo], capacity_tokens: float = 1e6) -> WarmIndex:
    """An index with seeds, the first given being the latest used."""
    warm = index()
    seeds = Seeds(dict.fromkeys(range(3), capacity_tokens))
    for age, (slot, prompt) in enumerate(held):
        seeds.add(slot, 1000.0 - age, names(prompt), COARSE_TOKENS)
    warm.seed(seeds)
    return warm


def test_a_prompt_is_found_where_it_was_at_the_grain_of_its_names() -> None:
    prompt = chain((1, 20))
    warm = seeded((1, prompt))
    assert cached(warm, prompt, *SLOTS) == [0, 3 * COARSE_TOKENS, 0]
    assert cached(warm, chain((1, 20), (2, 9)), *SLOTS) == [0, 3 * COARSE_TOKENS, 0], "and what continues it"
    assert cached(warm, chain((7, 20)), *SLOTS) == [0, 0, 0]


def test_a_shared_beginning_is_found_everywhere_and_each_goes_its_way() -> None:
    system = (9, 12)
    one, two = chain(system, (1, 12)), chain(system, (2, 24))
    warm = seeded((0, one), (2, two))
    assert cached(warm, chain(system, (3, 12)), *SLOTS) == [2 * COARSE_TOKENS, 0, 2 * COARSE_TOKENS]
    assert cached(warm, one, *SLOTS) == [4 * COARSE_TOKENS, 0, 2 * COARSE_TOKENS]
    assert cached(warm, two, *SLOTS) == [2 * COARSE_TOKENS, 0, 6 * COARSE_TOKENS]


def test_what_was_sent_before_the_engine_started_is_gone() -> None:
    new, old = chain((1, 12)), chain((2, 12))
    warm = seeded((0, new), (0, old), (1, old))  # used at 1000, 999 and 998
    warm.process_started(0, 999.5)
    assert cached(warm, new, *SLOTS) == [2 * COARSE_TOKENS, 0, 0]
    assert cached(warm, old, *SLOTS) == [0, 2 * COARSE_TOKENS, 0]


def test_no_more_is_taken_than_fits_the_latest_first() -> None:
    prompts = [chain((number, 12)) for number in range(1, 5)]
    seeds = Seeds({0: 4 * COARSE_TOKENS})
    for prompt in prompts:
        seeds.add(0, 0.0, names(prompt), COARSE_TOKENS)
    assert (len(seeds), seeds.full) == (4, True)
    seeds.add(7, 0.0, names(prompts[0]), COARSE_TOKENS)
    assert len(seeds) == 4, "a slot that is not in the pool"
    bounded = Seeds({0: 1e9}, limit=5)
    for prompt in prompts:
        bounded.add(0, 0.0, names(prompt), COARSE_TOKENS)
    assert (len(bounded), bounded.full) == (5, True)


_PATHS = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9)), min_size=1, max_size=4)


@given(st.lists(st.tuples(st.integers(0, 2), _PATHS), max_size=8), _PATHS)
def test_it_knows_what_an_index_that_lived_through_it_would_know(
    history: list[tuple[int, list[tuple[int, int]]]], asked: list[tuple[int, int]]
) -> None:
    lived, warm, prompt = index(), seeded(*((s, chain(*p)) for s, p in reversed(history))), chain(*asked)
    for slot, path in history:
        lived.insert(slot, chain(*path))
    known = [value // COARSE_TOKENS * COARSE_TOKENS for value in cached(lived, prompt, *SLOTS)]
    assert cached(warm, prompt, *SLOTS) == pytest.approx(known)
    assert cached(warm, prompt, *SLOTS) == pytest.approx(known), "again: nothing is lost by being asked for"
