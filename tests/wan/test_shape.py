"""What a link does to packets, with time as a number."""

from __future__ import annotations

import pytest

from epp_lab.wan.delay import DelayLine, Shape


def test_packets_come_after_the_delay_and_not_before() -> None:
    line = DelayLine(Shape(delay_ms=105.0), seed=1)
    line.take(b"one", 10.0)
    assert line.next_s == pytest.approx(10.105)
    assert line.arrived(10.1049) == []
    assert line.arrived(10.1051) == [b"one"]
    assert line.next_s is None


def test_order_is_kept_when_the_delay_shrinks() -> None:
    line = DelayLine(Shape(delay_ms=100.0), seed=1)
    line.take(b"one", 0.0)
    line.shape = Shape(delay_ms=0.0)
    line.take(b"two", 0.01)
    assert line.arrived(0.09) == []
    assert line.arrived(0.11) == [b"one", b"two"]


def test_a_cut_link_loses_what_is_on_it_and_works_again_when_restored() -> None:
    line = DelayLine(Shape(delay_ms=10.0), seed=1)
    line.take(b"one", 0.0)
    line.shape = Shape(delay_ms=10.0, cut=True)
    line.take(b"two", 0.005)
    assert line.arrived(1.0) == []
    line.shape = Shape(delay_ms=10.0)
    line.take(b"three", 1.0)
    assert line.arrived(2.0) == [b"three"]
