from __future__ import annotations

from epp.signals.slots import SlotMap


def test_slots_are_small_and_freed_ones_are_used_again_lowest_first() -> None:
    slots = SlotMap(lambda _: None)
    assert [slots.take(name) for name in "abcd"] == [0, 1, 2, 3]
    slots.release(2)
    slots.release(0)
    assert slots.address_of(0) is None
    assert slots.take("e") == 0
    assert slots.take("f") == 2
    assert slots.take("g") == 4
    assert slots.address_of(2) == "f"
