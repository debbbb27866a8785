"""Hybrid models: a prefix counts as far as a state was copied, and copies are few."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from epp.prefix_cache.index import PrefixIndex
from epp.prefix_cache.state_slots import StateSlots
from tests.kit.requests import measured
from tests.prefix_cache.test_prefix_index import cached

if TYPE_CHECKING:
    from epp.types import RequestInfo

BLOCK = 10


def prompt(tokens: int, *, family: int = 1, own: int = 0, shared: int = 0) -> RequestInfo:
    """A prompt whose first ``shared`` tokens are the family's, the rest its own."""
    blocks = [
        family * 10**6 + number if (number + 1) * BLOCK <= shared or not own else own * 10**9 + number
        for number in range(tokens // BLOCK)
    ]
    return measured(0, tokens, blocks, float(BLOCK))


def hybrid(count: int = 100, chunk_tokens: int = 400) -> PrefixIndex:
    return PrefixIndex(states=StateSlots(count, chunk_tokens))


def test_a_prefix_counts_up_to_the_end_of_a_chunk_or_of_a_prompt() -> None:
    index = hybrid()
    index.insert(0, prompt(1000))
    assert cached(index, prompt(1000, own=7, shared=950), 0) == [800.0]
    assert cached(index, prompt(1300), 0) == [1000.0]
    assert cached(index, prompt(1300), 0, 1) == [1000.0, 0.0]


def test_the_least_recently_used_copy_goes_first() -> None:
    index = hybrid(count=3, chunk_tokens=10_000)
    prompts = [prompt(500, family=family) for family in range(1, 4)]
    for each in prompts:
        index.insert(0, each)
    longer = prompt(700, family=1)
    assert cached(index, longer, 0) == [500.0]
    index.insert(0, longer)  # uses the first family's copy and makes a fourth: the second family's goes
    assert cached(index, prompt(700, family=2), 0) == [0.0]
    assert cached(index, prompt(700, family=3), 0) == [500.0]
    assert cached(index, prompt(900, family=1), 0) == [700.0]


@settings(max_examples=100)  # fewer do not always come to a copy beyond what is cached
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(1, 3), st.integers(5, 200), st.integers(0, 3)), max_size=30
    ),
    st.integers(1, 8),
)
def test_never_more_than_an_index_of_every_token_and_never_more_copies_than_slots(
    steps: list[tuple[int, int, int, int]], count: int
) -> None:
    states = StateSlots(count, 300)
    index, whole = PrefixIndex(states=states), PrefixIndex()
    for slot, family, blocks, answer in steps:
        asked = prompt(blocks * BLOCK, family=family)
        limited, unlimited = cached(index, asked, 0, 1, 2), cached(whole, asked, 0, 1, 2)
        assert all(few <= many for few, many in zip(limited, unlimited, strict=True))
        for one in (index, whole):
            one.insert(slot, asked)
            one.note_answer(slot, asked, answer)
        assert len(states) <= 3 * count
    for slot in range(3):
        index.forget(slot)
    assert len(states) == 0
