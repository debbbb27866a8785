"""Values of the request path: slots, equal and hashed by their fields, and changed only by `replace`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from epp.fast_dataclass import fast_dataclass


@fast_dataclass(frozen=True, slots=True)
class Point:
    """Two numbers."""

    x: int
    y: int = 0


def test_equal_values_are_one_key() -> None:
    assert {Point(1, 2): "a"}[Point(1, 2)] == "a"
    assert Point(1) != Point(1, 1)
    assert repr(Point(1)) == "Point(x=1, y=0)"


def test_values_have_slots_and_are_replaced() -> None:
    assert not hasattr(Point(1), "__dict__")
    assert replace(Point(1), y=3) == Point(1, 3)


@pytest.mark.parametrize(("frozen", "slots"), [(False, True), (True, False)])
def test_other_arguments_are_refused(frozen: bool, slots: bool) -> None:
    with pytest.raises(TypeError):
        fast_dataclass(frozen=frozen, slots=slots)
