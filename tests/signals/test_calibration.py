"""Hit ratios stay bounded, fade and start at 1."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from epp.signals.calibration import HitRatios


def book() -> HitRatios:
    made = HitRatios()
    made.resize(2)
    return made


def test_a_ratio_follows_what_engines_report_and_another_process_starts_anew() -> None:
    made = book()
    for _ in range(300):
        made.observe(0, 4000.0, 1000.0)
    assert 0.25 < made.hit_ratio[0] < 0.3
    assert made.to_prefill(0, 5000, 4000.0) > 3800.0
    made.forget(0)
    assert made.hit_ratio.tolist()[:2] == [1.0, 1.0]


@given(st.lists(st.tuples(st.floats(0, 1e18), st.floats(0, 1e18)), max_size=30))
def test_the_ratio_stays_bounded(reports: list[tuple[float, float]]) -> None:
    made = book()
    for predicted, reported in reports:
        made.observe(0, predicted, reported)
        assert 0.0 <= made.hit_ratio[0] <= 1.5
