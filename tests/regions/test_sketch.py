"""The sketch against a set, and its copy against it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from epp.regions.sketch import CELLS, CONTENT_BYTES, MOST_ENTRIES, STRIDE, Sketch
from epp_lab.experiments import sketch as experiment

if TYPE_CHECKING:
    import pytest

#: Blocks of which many share a fingerprint, or a bucket.
BLOCKS = st.builds(lambda high, low: high << 15 | low, st.integers(0, 6), st.integers(0, 40))


def blocks(count: int, seed: int = 1) -> list[int]:
    found: list[int] = np.random.default_rng(seed).integers(2**63, size=count).tolist()
    return found


@given(steps=st.lists(st.tuples(st.booleans(), BLOCKS, st.booleans()), max_size=300))
def test_what_is_held_is_found_and_a_copy_that_gets_changes_is_equal(
    steps: list[tuple[bool, int, bool]],
) -> None:
    sketch, copy, held = Sketch(), Sketch(), set[int]()
    for insert, block, sends in steps:
        if insert and block not in held and sketch.insert(block):
            held.add(block)
        elif not insert and block in held:
            assert sketch.delete(block)
            held.discard(block)
        assert all(each in sketch for each in held)
        assert sketch.entries == len(held)
        if sends:
            copy.apply(sketch.changes(2))
    while sketch.changed:
        copy.apply(sketch.changes(1000))
    assert copy.content() == sketch.content()
    for block in held:
        sketch.delete(block)
    assert not any(sketch.content())


def test_100000_prefixes_fit_with_few_false_hits() -> None:
    sketch = Sketch()
    held = blocks(100_000)
    assert all(map(sketch.insert, held))
    assert all(block in sketch for block in held)
    assert len(sketch.content()) == CONTENT_BYTES <= 256_000
    assert sum(block in sketch for block in blocks(100_000, seed=2)) < 100


def test_a_full_sketch_takes_no_more_and_loses_nothing() -> None:
    sketch, many = Sketch(), blocks(CELLS)
    taken = [block for block in many if sketch.insert(block)]
    assert 0.9 * CELLS < len(taken) == sketch.entries <= MOST_ENTRIES
    assert all(block in sketch for block in taken)
    for block in taken[:5000]:
        sketch.delete(block)
    assert sketch.insert(blocks(1, seed=3)[0]), "there is room again"


def test_the_depth_of_a_prompt_is_what_is_held_of_it() -> None:
    sketch, prompt = Sketch(), blocks(103)
    for depth in range(0, 96, STRIDE):
        assert sketch.depth(prompt) == depth
        sketch.insert(prompt[depth + STRIDE - 1])
    assert sketch.depth(prompt[:50]) == 48
    assert sketch.depth(prompt[:3]) == 0


def test_a_peer_is_sent_few_bytes_and_finds_what_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiment, "_REQUESTS", 4000)
    found = experiment.run("agents", "8 engines", 0)
    assert found["KB/s to a peer"] < 20.0
    assert found["false hits %"] < 1.0
    assert found["depth right %"] > 98.0
