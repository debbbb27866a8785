from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from epp.keyed_uniform import keyed_uniform
from epp.prefix_cache.index import PrefixIndex
from tests.kit.requests import measured

if TYPE_CHECKING:
    from epp.types import RequestInfo

BLOCK = 10.0


def chain(path: tuple[int, ...]) -> list[int]:
    """A chained hash per prefix of the path, as the hasher makes them."""
    return [int(keyed_uniform(0, str(path[: end + 1]), "") * 2**63) for end in range(len(path))]


def prompt(*path: int, tail: int = 0) -> RequestInfo:
    return measured(0, int(len(path) * BLOCK) + tail, chain(path), BLOCK)


def cached(index: PrefixIndex, asked: RequestInfo, *slots: int) -> list[float]:
    found: list[float] = index.match(asked).cached_tokens(np.array(slots, dtype=np.intp)).tolist()
    return found


def test_the_longest_common_prefix_is_found_for_all_slots_at_once() -> None:
    index = PrefixIndex()
    index.insert(0, prompt(1, 2, 3, 4))
    index.insert(1, prompt(1, 2, 9))
    index.insert(2, prompt(7))
    assert cached(index, prompt(1, 2, 3, 4, 5), 0, 1, 2, 3) == [40.0, 20.0, 0.0, 0.0]
    assert cached(index, prompt(1, 2, 9, 9), 0, 1, 2, 3) == [20.0, 30.0, 0.0, 0.0]


def test_the_least_recently_used_path_goes_first_leaf_before_root() -> None:
    index = PrefixIndex(capacity_tokens=60)
    index.insert(0, prompt(1, 2, 3, 4))
    index.insert(0, prompt(1, 9))
    index.insert(0, prompt(5, 6, 7))  # 80 tokens with it: two blocks too many
    assert cached(index, prompt(1, 2, 3, 4), 0) == [20.0]
    assert cached(index, prompt(1, 9), 0) == [20.0]
    assert cached(index, prompt(5, 6, 7), 0) == [30.0]


def test_the_bound_over_all_slots_counts_distinct_tokens() -> None:
    index = PrefixIndex(capacity_tokens=1000, max_tokens=100)
    for slot in range(5):
        index.insert(slot, prompt(1, 2, 3))
    assert index.distinct_tokens == 30.0
    for number in range(50):
        index.insert(number % 5, prompt(100 + number, 2, 3, 4))
        assert index.distinct_tokens <= 100.0


def test_an_answer_is_credited_to_who_gave_it_when_the_prompt_goes_on() -> None:
    index = PrefixIndex()
    first = prompt(1, 2, 3, tail=4)
    index.insert(0, first)
    index.insert(1, first)
    index.note_answer(0, first, 25)
    assert cached(index, prompt(1, 2, 3, 4, 5, 6, 7), 0, 1) == [59.0, 30.0]
    assert cached(index, prompt(1, 2, 3, 4, 5), 0, 1) == [50.0, 30.0], "never more than the prompt has"
    assert cached(index, first, 0, 1) == [30.0, 30.0], "the same prompt again does not go on"
    assert cached(index, prompt(1, 2, 8, 8, 8, 8), 0, 1) == [20.0, 20.0], "another branch"
    index.forget(0)
    index.insert(0, first)
    assert cached(index, prompt(1, 2, 3, 4, 5, 6), 0) == [30.0], "an answer goes with what it hangs on"


def test_single_misses_change_nothing_and_misses_of_what_is_old_shrink_the_belief() -> None:
    index = PrefixIndex(capacity_tokens=100_000)
    for turn in range(200):
        for number in range(40):
            index.confirm(0, 5000, 5000, 1000.0 * number)
        if turn < 5:
            index.confirm(0, 5000, 0, 60_000.0)
            index.confirm(0, 5000, 5000, 60_000.0)
            assert index.capacity(0) == 100_000, "as many hits as misses"
    for number in range(40):
        index.confirm(0, 5000, 0, 50_000.0 + 1000 * number)
        index.confirm(0, 5000, 5000, 20_000.0)
        if number < 3:
            assert index.capacity(0) == 100_000
    assert 50_000 <= index.capacity(0) <= 70_000, "rather too large than too small"
    for _ in range(300):
        index.confirm(0, 5000, 0, 100.0)
    assert index.capacity(0) == 25_000, "never below a quarter"
    for _ in range(400):
        index.confirm(0, 5000, 5000, 10_000.0)
    assert index.capacity(0) == 100_000, "old evidence fades, and the larger belief is tried again"
    for _ in range(50):
        index.confirm(0, 100, 0, 50_000.0)
    assert index.capacity(0) == 100_000, "small expectations say nothing"


@pytest.mark.parametrize("slots", [3, 1000])
def test_few_and_many_slots_answer_alike(slots: int) -> None:
    index = PrefixIndex()
    for slot in range(0, slots, 2):
        index.insert(slot, prompt(1, 2, *([3] if slot % 4 else [])))
    found = cached(index, prompt(1, 2, 3), *range(slots))
    assert found == [0.0 if slot % 2 else 30.0 if slot % 4 else 20.0 for slot in range(slots)]


class AgainstAPlainModel(RuleBasedStateMachine):
    """The index against one ordered dictionary of blocks per slot: same hits, same evictions."""

    CAPACITY = 80
    paths = st.lists(st.integers(0, 2), min_size=1, max_size=10)

    def __init__(self) -> None:
        super().__init__()
        self.index = PrefixIndex(capacity_tokens=self.CAPACITY)
        self.model: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(4)]
        self.index.counted = ~(1 << 3)
        self.log = self.index.follow_held(2)
        self.logged: set[int] = set()
        self.even: set[int] = set()

    @rule(slot=st.integers(0, 3), path=paths)
    def insert(self, slot: int, path: list[int]) -> None:
        asked = prompt(*path)
        self.index.insert(slot, asked)
        held = self.model[slot]
        self.even.update(asked.blocks[1::2])
        for block in reversed(asked.blocks):  # leaf first: the root is the most recently used
            held[block] = None
            held.move_to_end(block)
        while len(held) * BLOCK > self.CAPACITY:
            held.popitem(last=False)

    @rule(slot=st.integers(0, 3))
    def forget(self, slot: int) -> None:
        self.index.forget(slot)
        self.model[slot].clear()

    @rule(path=paths)
    def match(self, path: list[int]) -> None:
        asked = prompt(*path)
        expected = []
        for held in self.model:
            depth = 0
            while depth < len(asked.blocks) and asked.blocks[depth] in held:
                depth += 1
            expected.append(depth * BLOCK)
        assert cached(self.index, asked, 0, 1, 2, 3) == expected

    @invariant()
    def the_log_says_which_blocks_of_every_second_are_held_where_it_counts(self) -> None:
        for held, blocks in self.log:
            assert self.logged.isdisjoint(blocks) if held else self.logged.issuperset(blocks)
            (self.logged.update if held else self.logged.difference_update)(blocks)
        self.log.clear()
        assert self.logged == self.even.intersection(*[set().union(*self.model[:3])])

    @invariant()
    def sizes_agree(self) -> None:
        for slot, held in enumerate(self.model):
            assert self.index.tokens(slot) == pytest.approx(len(held) * BLOCK)
        distinct = set().union(*self.model)
        assert self.index.distinct_blocks == len(distinct)


TestAgainstAPlainModel = AgainstAPlainModel.TestCase
TestAgainstAPlainModel.settings = settings(max_examples=30, stateful_step_count=40)
