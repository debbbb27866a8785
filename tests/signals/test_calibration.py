"""What engines' counters teach of estimates, and when they teach nothing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from epp.signals.calibration import CounterCalibration
from epp.signals.metrics_text import EngineSample

EMPTY = EngineSample("vllm", requests_total=1000.0, prompt_tokens_total=5e6, prefix_hits_total=1e6)


def book() -> CounterCalibration:
    made = CounterCalibration()
    made.resize(2)
    made.scraped(0, EMPTY, 0.0, 0.0)
    return made


@given(st.lists(st.tuples(st.floats(0, 1e18), st.floats(0, 1e18)), max_size=30))
def test_the_ratio_stays_bounded(reports: list[tuple[float, float]]) -> None:
    made = book()
    for predicted, reported in reports:
        made.cached(0, predicted, reported)
        assert 0.0 <= made.hit_ratio[0] <= 1.5
