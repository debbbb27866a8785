"""Hybrid models: a prefix counts as far as a state was copied, and copies are few."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.apis.types import MeasuredPrompt
from epp.prefix_cache.index import PrefixIndex
from epp.prefix_cache.state_slots import StateSlots

BLOCK = 10


def prompt(tokens: int, *, family: int = 1, own: int = 0, shared: int = 0) -> MeasuredPrompt:
    """A prompt whose first ``shared`` tokens are the family's, the rest its own."""
    blocks = [
        family * 10**6 + number if (number + 1) * BLOCK <= shared or not own else own * 10**9 + number
        for number in range(tokens // BLOCK)
    ]
    return MeasuredPrompt(0, tokens, blocks, float(BLOCK))


def cached(index: PrefixIndex, asked: MeasuredPrompt, *slots: int) -> list[float]:
    tokens: list[float] = index.match(asked).cached_tokens(np.array(slots or (0,), np.intp)).tolist()
    return tokens


def hybrid(count: int = 100, chunk_tokens: int = 400) -> PrefixIndex:
    return PrefixIndex(states=StateSlots(count, chunk_tokens))


def test_without_a_copy_nothing_can_be_taken_up() -> None:
    index = hybrid()
    index.insert(0, prompt(1000))
    branch = prompt(1000, own=7, shared=300)
    assert cached(PrefixIndex(), branch) == [0.0]
    assert cached(index, branch) == [0.0], "300 tokens are there, and no copy within them"


def test_a_prefix_counts_up_to_the_end_of_a_chunk_or_of_a_prompt() -> None:
    index = hybrid()
    index.insert(0, prompt(1000))
    assert cached(index, prompt(1000, own=7, shared=950)) == [800.0]
    assert cached(index, prompt(1300)) == [1000.0]
    assert cached(index, prompt(1300), 0, 1) == [1000.0, 0.0]


def test_chunks_are_counted_from_where_a_prefill_began() -> None:
    index = hybrid()
    index.insert(0, prompt(500))
    index.insert(0, prompt(1000))  # computes 500 to 1000: a chunk ends at 900
    assert cached(index, prompt(1000, own=7, shared=950)) == [900.0]


def test_an_answer_that_the_next_prompt_goes_on_from_counts() -> None:
    index = hybrid()
    first = prompt(500)
    index.insert(0, first)
    index.note_answer(0, first, 60)
    assert cached(index, prompt(800)) == [560.0]


def test_the_least_recently_used_copy_goes_first() -> None:
    index = hybrid(count=3, chunk_tokens=10_000)
    prompts = [prompt(500, family=family) for family in range(1, 4)]
    for each in prompts:
        index.insert(0, each)
    longer = prompt(700, family=1)
    assert cached(index, longer) == [500.0]
    index.insert(0, longer)  # uses the first family's copy and makes a fourth: the second family's goes
    assert cached(index, prompt(700, family=2)) == [0.0]
    assert cached(index, prompt(700, family=3)) == [500.0]
    assert cached(index, prompt(900, family=1)) == [700.0]


def test_taking_up_an_answers_copy_is_using_it() -> None:
    index = hybrid(count=3, chunk_tokens=10_000)
    first = prompt(500)
    index.insert(0, first)
    index.note_answer(0, first, 60)
    index.insert(0, prompt(500, family=2))
    index.insert(0, prompt(800))  # goes on from the answer, and makes a fourth copy: the first prompt's goes
    index.insert(0, prompt(500, family=3))  # and now the second family's
    assert cached(index, prompt(700, own=9, shared=700)) == [560.0]
    assert cached(index, prompt(700, family=2)) == [0.0]


def test_a_restart_forgets_the_copies_of_that_slot_alone() -> None:
    index = hybrid()
    for slot in (0, 1):
        index.insert(slot, prompt(500))
    index.forget(0)
    assert cached(index, prompt(700), 0, 1) == [0.0, 500.0]


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


@pytest.mark.parametrize(("count", "chunk"), [(0, 100), (10, 0)])
def test_bounds(count: int, chunk: int) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        StateSlots(count, chunk)
