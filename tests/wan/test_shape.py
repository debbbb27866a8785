"""What a link does to packets, with time as a number."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.errors import ConfigError
from epp.wan.shape import Line, Shape


def packet(number: int, size: int = 100) -> bytes:
    return number.to_bytes(4, "big") + bytes(size - 4)


def test_packets_come_after_the_delay_and_not_before() -> None:
    line = Line(Shape(delay_ms=105.0), seed=1)
    line.take(packet(0), 10.0)
    assert line.next_s == pytest.approx(10.105)
    assert line.arrived(10.1049) == []
    assert line.arrived(10.1051) == [packet(0)]
    assert line.next_s is None


@given(
    st.lists(st.floats(0.0, 0.05), max_size=60),
    st.floats(0.0, 100.0),
    st.floats(0.0, 200.0),
    st.integers(0, 9),
)
def test_order_is_kept_whatever_the_jitter(
    gaps_s: list[float], delay_ms: float, jitter_ms: float, seed: int
) -> None:
    line, now_s = Line(Shape(delay_ms=delay_ms, jitter_ms=jitter_ms), seed), 0.0
    for number, gap_s in enumerate(gaps_s):
        now_s += gap_s
        line.take(packet(number), now_s)
    arrived = []
    while line.next_s is not None:
        assert line.next_s <= now_s + (delay_ms + jitter_ms) / 1e3 + 1e-9
        arrived += line.arrived(line.next_s)
    assert arrived == [packet(number) for number in range(len(gaps_s))]


def test_jitter_varies_the_delay_around_its_mean() -> None:
    line, delays_ms = Line(Shape(delay_ms=50.0, jitter_ms=10.0), seed=3), []
    for number in range(400):
        line.take(packet(number), float(number))
        assert line.next_s is not None
        delays_ms.append((line.next_s - number) * 1e3)
        line.arrived(number + 0.5)
    assert 40.0 <= min(delays_ms) < 43.0
    assert 57.0 < max(delays_ms) <= 60.001
    assert sum(delays_ms) / len(delays_ms) == pytest.approx(50.0, abs=1.5)


def test_loss_is_the_share_asked_for_and_the_same_every_time() -> None:
    def lost(seed: int) -> list[int]:
        line = Line(Shape(loss=0.05), seed)
        for number in range(4000):
            line.take(packet(number), 0.0)
        came = {int.from_bytes(piece[:4], "big") for piece in line.arrived(0.0)}
        return [number for number in range(4000) if number not in came]

    assert 140 < len(lost(1)) < 260
    assert lost(1) == lost(1)
    assert lost(1) != lost(2)


def test_a_rate_spreads_a_burst() -> None:
    line = Line(Shape(delay_ms=10.0, rate_mbit=8.0), seed=1)  # a kilobyte a millisecond
    for number in range(10):
        line.take(packet(number, 1000), 0.0)
    assert len(line.arrived(0.0155)) == 5
    assert len(line.arrived(0.0205)) == 5


def test_a_cut_link_loses_what_is_on_it_and_works_again_when_restored() -> None:
    line = Line(Shape(delay_ms=10.0), seed=1)
    line.take(packet(0), 0.0)
    line.shape = Shape(delay_ms=10.0, cut=True)
    line.take(packet(1), 0.005)
    assert line.arrived(1.0) == []
    line.shape = Shape(delay_ms=10.0)
    line.take(packet(2), 1.0)
    assert line.arrived(2.0) == [packet(2)]
    assert (line.taken, line.lost) == (3, 2)


@pytest.mark.parametrize("wrong", [{"loss": 1.1}, {"loss": -0.1}, {"delay_ms": -1.0}, {"rate_mbit": -1.0}])
def test_impossible_links_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Shape(**wrong)  # type: ignore[arg-type]  # names are those of fields
