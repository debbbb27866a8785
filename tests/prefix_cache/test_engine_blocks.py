"""What engines say that they hold, and what of a prompt is found in it."""

from __future__ import annotations

import random
import tracemalloc
from array import array
from typing import TYPE_CHECKING

import pytest

from epp.prefix_cache.engine_blocks import SLICE, EngineBlocks
from epp.prefix_cache.kv_messages import Cleared, Removed, Stored

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epp.prefix_cache.kv_messages import Event

IDS = list(range(1000, 1160))  # ten blocks of 16 tokens
NAMES = list(range(1, 11))


def tokens_of(ids: Sequence[int]) -> bytes:
    return array("I", ids).tobytes()


def stored(first: int, end: int, **fields: object) -> Stored:
    """Blocks of `IDS` from one on to another, named by their places."""
    parent = NAMES[first - 1] if first else None
    return Stored(
        NAMES[first:end],
        fields.pop("parent", parent),  # type: ignore[arg-type]
        tokens_of(IDS[16 * first : 16 * end]),
        16,
        **fields,  # type: ignore[arg-type]
    )


def apply(index: EngineBlocks, *events: Event, slot: int = 0, rank: int = 0) -> list[str]:
    return [why for event in events for why in index.apply(slot, rank, event) if why]


def held(
    index: EngineBlocks, ids: Sequence[int] = IDS, *, slot: int = 0, lora: str = "", salt: str = ""
) -> float | None:
    loras = {slot: lora}
    return index.held_tokens([slot], index.chains(loras, tokens_of(ids), salt), loras).get(slot)


@pytest.fixture
def index() -> EngineBlocks:
    return EngineBlocks(seed=7)


def test_a_prompt_finds_the_blocks_that_its_tokens_share_with_stored_ones(index: EngineBlocks) -> None:
    apply(index, stored(0, 4), stored(4, 6))
    assert held(index) == 96
    assert held(index, IDS[:40]) == 32
    assert held(index, [*IDS[:16], 5, *IDS[17:]]) == 16
    assert held(index, IDS[16:]) == 0


def test_a_slot_of_which_nothing_was_told_is_left_out(index: EngineBlocks) -> None:
    apply(index, stored(0, 4))
    assert held(index, slot=1) is None


def test_a_prompt_that_was_hashed_before_the_first_event_is_not_looked_up(index: EngineBlocks) -> None:
    early = index.chains({0: ""}, tokens_of(IDS), "")
    apply(index, stored(0, 4))
    assert index.held_tokens([0], early, {0: ""}) == {}


def test_what_is_removed_ends_the_prefix_there_and_is_found_again_once_stored(index: EngineBlocks) -> None:
    apply(index, stored(0, 6), Removed([3]))
    assert held(index) == 32
    apply(index, stored(2, 3))
    assert held(index) == 96


def test_a_block_that_is_stored_twice_goes_with_its_second_removal(index: EngineBlocks) -> None:
    apply(index, stored(0, 2), stored(0, 2), Removed([2]))
    assert held(index) == 32
    apply(index, Removed([2]))
    assert held(index) == 16
    assert index.counts == {"stored": 2, "removed": 1, "kept": 1}


def test_lost_messages_let_the_next_removal_of_a_block_count(index: EngineBlocks) -> None:
    apply(index, stored(0, 2), stored(0, 2))
    index.uncount_repeats(0, 0)
    apply(index, Removed([2]))
    assert held(index) == 16


def test_a_cleared_cache_holds_nothing_and_its_memory_is_freed(index: EngineBlocks) -> None:
    apply(index, stored(0, 6), Cleared())
    assert held(index) == 0
    assert index.blocks == 6
    while index.tidy(most=2):
        pass
    assert index.blocks == 0
    apply(index, stored(0, 1))
    assert held(index) == 16


def test_a_forgotten_slot_says_nothing_any_more(index: EngineBlocks) -> None:
    apply(index, stored(0, 6))
    index.forget(0)
    assert held(index) is None
    assert not index.tidy()
    assert index.blocks == 0


def test_blocks_behind_an_unknown_parent_are_refused_and_counted(index: EngineBlocks) -> None:
    assert apply(index, stored(2, 5)) == ["unknown-parent"]
    assert index.refused["unknown-parent"] == 3
    assert held(index) == 0


def test_adapters_and_salts_keep_equal_tokens_apart(index: EngineBlocks) -> None:
    apply(index, stored(0, 2, lora="law", salt="s"), stored(2, 3, lora="law"))
    assert held(index, lora="law", salt="s") == 48
    assert held(index, lora="law") == held(index, salt="s") == 0


def test_a_piece_of_media_makes_a_block_another(index: EngineBlocks) -> None:
    apply(index, stored(0, 3, extra=(b"", b"image", b"")))
    assert held(index) == 16


def test_lower_tiers_count_by_their_price(index: EngineBlocks) -> None:
    apply(index, stored(0, 4), stored(0, 4, tier=1), Removed([3, 4]), stored(4, 5, tier=2))
    assert held(index) == pytest.approx(16 * (2 + 2 * 0.8 + 0.5))


def test_a_hit_of_a_hybrid_model_needs_every_group(index: EngineBlocks) -> None:
    window = {"group": 1, "window_tokens": 33}  # the two blocks before the next token
    apply(index, stored(0, 8), stored(0, 8, **window))
    assert held(index) == 128
    apply(index, Removed([1, 2, 3, 4, 5], group=1))
    assert held(index) == 128
    apply(index, Removed([8], group=1))
    assert held(index) == 112
    apply(index, Removed([6], group=1))
    assert held(index) == 0


@pytest.mark.parametrize(
    ("full", "narrow", "wide", "tokens"),
    [  # places of the blocks, of ten, that are missing in groups of all, of a window of two and of three blocks
        ([], [], [], 160),
        ([5], [], [], 64),
        ([1], [], [], 0),
        ([5], [3], [], 32),  # after two blocks even the wide window has all that there is
        ([], [9], [], 128),
        ([], [4], [8], 112),
        ([], [7], [9, 4], 48),  # one window's end moves the other's, twice
        ([], [10, 8], [4], 112),
        ([], [1, 3, 5, 7, 9], [], 0),
        ([], [2], [2], 160),
    ],
)
def test_a_hit_of_a_hybrid_model_ends_where_all_windows_are_whole(
    index: EngineBlocks, full: list[int], narrow: list[int], wide: list[int], tokens: int
) -> None:
    apply(index, stored(0, 10))
    apply(index, stored(0, 10, group=1, window_tokens=33), stored(0, 10, group=2, window_tokens=49, tier=1))
    apply(index, Removed(full), Removed(narrow, group=1), Removed(wide, group=2, tier=1))
    assert held(index) == tokens


def test_a_group_of_larger_blocks_is_matched_by_the_same_tokens(index: EngineBlocks) -> None:
    large = Stored([2, 4], None, tokens_of(IDS[:64]), 32, group=1, window_tokens=1)
    apply(index, stored(0, 3), large)
    assert held(index) == 32
    apply(index, stored(3, 4))
    assert held(index) == 64


def test_a_group_of_smaller_blocks_begins_the_index_anew(index: EngineBlocks) -> None:
    large = Stored([9], None, tokens_of(IDS[:32]), 32)
    assert apply(index, large, stored(0, 2, group=1)) == ["smaller-group"]
    assert held(index) == 32  # of group 1, the only one of which blocks are known in these steps


def test_ranks_behind_one_address_count_by_their_mean(index: EngineBlocks) -> None:
    index.expect_ranks(0, 2)
    apply(index, stored(0, 4))
    assert held(index) == 32
    apply(index, stored(0, 2), rank=1)
    assert held(index) == 48


def test_a_prompt_that_was_sent_is_credited_until_it_is_settled(index: EngineBlocks) -> None:
    apply(index, stored(0, 2))
    credit = index.credit(0, index.chains({0: ""}, tokens_of(IDS), ""), "")
    assert credit is not None
    assert held(index) == 160
    apply(index, stored(2, 5))
    assert credit.open
    index.settle(credit)
    assert held(index) == 80
    assert not credit.open


def test_of_the_states_that_a_prompt_makes_the_last_alone_is_credited(index: EngineBlocks) -> None:
    apply(index, stored(0, 1), stored(0, 1, group=1, window_tokens=1))
    index.credit(0, index.chains({0: ""}, tokens_of(IDS), ""), "")
    assert held(index) == 160
    assert held(index, tokens_of(IDS[:-16])) == 16


def test_of_two_prompts_that_bring_a_block_the_later_one_keeps_it_credited(index: EngineBlocks) -> None:
    apply(index, stored(0, 1))
    chains = index.chains({0: ""}, tokens_of(IDS), "")
    first, second = index.credit(0, chains, ""), index.credit(0, chains, "")
    assert first is not None
    assert second is not None
    index.settle(first)
    assert held(index) == 160
    index.settle(second)
    assert held(index) == 16


def test_the_bound_on_blocks_refuses_the_rest() -> None:
    index = EngineBlocks(seed=7, max_blocks=SLICE)
    assert apply(index, stored(0, 5)) == []
    assert apply(index, stored(5, 8)) == ["full"]
    assert index.blocks == 5


def test_tiny_blocks_are_refused(index: EngineBlocks) -> None:
    assert apply(index, Stored([1], None, tokens_of([5]), 1)) == ["small"]


def test_long_events_are_applied_in_slices(index: EngineBlocks) -> None:
    ids = list(range(16 * 3 * SLICE))
    event = Stored(list(range(1, 3 * SLICE + 1)), None, tokens_of(ids), 16)
    assert len(list(index.apply(0, 0, event))) == 3
    assert held(index, ids) == len(ids)
    assert len(list(index.apply(0, 0, Removed(event.hashes)))) == 4
    assert index.blocks == 0


def test_a_slot_that_is_forgotten_between_slices_takes_no_more(index: EngineBlocks) -> None:
    ids = list(range(16 * 2 * SLICE))
    slices = index.apply(0, 0, Stored(list(range(1, 2 * SLICE + 1)), None, tokens_of(ids), 16))
    next(slices)
    index.forget(0)
    assert list(slices) == []
    assert held(index, ids) is None


@pytest.mark.parametrize("count", [20_000, 43_700, 44_000])
def test_a_block_takes_at_most_300_bytes(count: int) -> None:
    random.seed(5)
    index, ids = EngineBlocks(seed=7), [random.randrange(1 << 17) for _ in range(16 * count)]
    tokens = tokens_of(ids)
    tracemalloc.start()
    try:
        names = [random.getrandbits(64) for _ in range(count)]
        apply(index, Stored(names, None, tokens, 16))
        del names
        used = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert used / count <= 300
