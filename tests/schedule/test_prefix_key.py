"""Which prompts share `RequestInfo.prefix_key`: those with the same blocks within the first 256 tokens."""

from __future__ import annotations

import pytest

from tests.kit.records import picker_of
from tests.kit.requests import measured

BLOCKS = [11, 22, 33, 44, 55, 66]


def key(blocks: list[int], block_tokens: float) -> str:
    return picker_of().decide(measured(1, 1000, blocks, block_tokens), 0.0, 0.0).request.prefix_key


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
