"""Which prompts share `RequestView.prefix_key`: those with the same blocks within the first 256 tokens."""

from __future__ import annotations

import pytest

from epp.apis.types import MeasuredPrompt
from epp.policies.random import Random
from epp.prefix_cache.index import PrefixIndex
from epp.schedule.picker import Ask, Picker, PickerSettings
from epp.schedule.weights import WeightBook
from epp.signals.endpoint import Endpoint
from epp.signals.fleet import Fleet

BLOCKS = [11, 22, 33, 44, 55, 66]


def key(blocks: list[int] | None, block_tokens: float = 64.0) -> str:
    book = WeightBook(policy="random", specs={}, configured={}, bounds={}, source="test")
    picker = Picker(
        fleet=Fleet(PrefixIndex()),
        policy=Random(),
        balance=Random(),
        weights=book,
        settings=PickerSettings(),
        new_id=lambda: "d",
    )
    picker.set_pool([Endpoint("10.0.0.1:8000")], 0.0)
    prompt = None if blocks is None else MeasuredPrompt(1, 1000, blocks, block_tokens)
    return picker.pick(Ask(prompt=prompt), 0.0, 0.0).request.prefix_key


@pytest.mark.parametrize(
    ("block_tokens", "covered"),
    [
        (64.0, 4),  # four blocks of 64 tokens are 256
        (60.5, 4),  # what does not fit whole does not count
        (512.0, 1),  # a block larger than 256 tokens: the first alone
        (40.0, 6),  # six of 40 are 240
    ],
)
def test_covers_the_first_256_tokens(block_tokens: float, covered: int) -> None:
    assert key([*BLOCKS[:covered], 77, 88], block_tokens) == key([*BLOCKS[:covered], 99], block_tokens)
    other = [*BLOCKS[: covered - 1], 7 * covered]
    assert key([*other, 88], block_tokens) != key([*BLOCKS[:covered], 88], block_tokens)


def test_is_empty_without_a_full_block() -> None:
    assert not key([])
    assert not key(None)
    assert key([11])


def test_covers_all_of_a_shorter_prompt() -> None:
    assert key([11, 22]) == key([11, 22])
    assert key([11, 22]) != key([11, 33])
