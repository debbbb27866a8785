from __future__ import annotations

import numpy as np
import pytest

from epp.signals.slots import SlotMap, grown


def test_slots_are_small_and_freed_ones_are_used_again_lowest_first() -> None:
    slots = SlotMap()
    assert [slots.take(name) for name in "abcd"] == [0, 1, 2, 3]
    slots.release("c")
    slots.release("a")
    assert slots.slot_of("a") is None
    assert slots.address_of(0) is None
    assert slots.take("e") == 0
    assert slots.take("f") == 2
    assert slots.take("g") == 4
    assert slots.address_of(2) == "f"
    assert len(slots) == 5


def test_listeners_hear_the_capacity_before_a_slot_beyond_it_is_given_out() -> None:
    slots, heard = SlotMap(), list[int]()
    slots.on_grow(heard.append)
    for i in range(100):
        assert slots.take(f"e{i}") < heard[-1] == slots.capacity
    assert heard == sorted(set(heard))
    assert len(heard) < 8, "columns double, they do not creep"


def test_a_pool_that_turns_over_does_not_grow() -> None:
    slots = SlotMap()
    for i in range(1000):
        slots.take(f"e{i}")
        if i >= 3:
            slots.release(f"e{i - 3}")
    assert slots.capacity == SlotMap().capacity


def test_misuse_is_an_error() -> None:
    slots = SlotMap()
    slots.take("a")
    with pytest.raises(ValueError, match="has a slot"):
        slots.take("a")
    with pytest.raises(KeyError):
        slots.release("b")
    assert slots.address_of(99) is None
    assert slots.address_of(-1) is None


def test_growing_keeps_values_and_fills_the_rest() -> None:
    block = grown(np.array([[1.0, 2.0], [3.0, 4.0]]), 4, -1.0)
    assert block.tolist() == [[1, 2, -1, -1], [3, 4, -1, -1]]
    assert grown(block, 2, 0.0) is block
