"""Which prompts share `RequestInfo.prefix_key`: those with the same blocks within the first 256 tokens."""

from __future__ import annotations

import pytest

from epp.policies.balancing import Random
from epp.prefix_cache.index import PrefixIndex
from epp.schedule.picker import Picker, PickerSettings
from epp.schedule.weights import WeightBook
from epp.signals.fleet import Fleet
from epp.types import Endpoint
from tests.kit.requests import asked, measured

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
    prompt = None if blocks is None else measured(1, 1000, blocks, block_tokens)
    return picker.pick(asked(prompt=prompt), 0.0, 0.0).request.prefix_key


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
