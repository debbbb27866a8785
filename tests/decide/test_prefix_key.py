from __future__ import annotations

import pytest

from epp.decide.picker import _prefix_key
from epp.prompt.types import MeasuredPrompt

BLOCKS = [11, 22, 33, 44, 55, 66]


@pytest.mark.parametrize(
    ("blocks", "block_tokens", "last"),
    [
        (BLOCKS, 64.0, 44),  # four blocks of 64 tokens are 256
        (BLOCKS, 60.5, 44),  # what does not fit whole does not count
        (BLOCKS, 512.0, 11),  # a block larger than 256 tokens: the first alone
        (BLOCKS[:2], 64.0, 22),  # a shorter prompt: all of it
    ],
)
def test_covers_the_first_256_tokens(blocks: list[int], block_tokens: float, last: int) -> None:
    assert _prefix_key(MeasuredPrompt(1, 1000, blocks, block_tokens)) == f"{last:016x}"


def test_is_empty_without_a_full_block() -> None:
    assert not _prefix_key(MeasuredPrompt(1, 10, [], 64.0))
    assert not _prefix_key(None)
