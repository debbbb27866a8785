"""Kept columns are what a table read anew would give, whatever came in between."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from epp.signals.datastore import Columns, Measured
from epp.signals.engine_metrics import EngineMetrics
from epp.signals.metrics_text import EngineSample
from epp.signals.rtt import RttTable

ROWS = slice(0, 4)
STEPS = st.tuples(
    st.sampled_from(["probe", "connect", "assume", "scrape", "forget", "wait", "grow"]),
    st.integers(0, 3),
    st.floats(0.5, 500.0),
)


def tables() -> tuple[RttTable, EngineMetrics]:
    rtt, engine = RttTable(stale_after_s=30.0), EngineMetrics(stale_after_s=10.0)
    rtt.resize(4)
    engine.resize(4)
    return rtt, engine


def same(kept: Columns, fresh: Columns, now_s: float) -> None:
    np.testing.assert_array_equal(kept.values, fresh.values)
    np.testing.assert_array_equal(kept.rtt_sources, fresh.rtt_sources)
    np.testing.assert_array_equal(kept.age_ms(now_s), fresh.age_ms(now_s))
    assert kept.unknown.keys() == fresh.unknown.keys()
    for name, mask in fresh.unknown.items():
        np.testing.assert_array_equal(kept.unknown[name], mask)


@given(st.lists(STEPS, max_size=25))
def test_kept_columns_are_as_if_read_anew(steps: list[tuple[str, int, float]]) -> None:
    rtt, engine = tables()
    measured, now_s, capacity = Measured(rtt, engine), 100.0, 4
    for what, slot, value in steps:
        if what == "probe":
            rtt.observe(slot, value, now_s)
        elif what == "connect":
            rtt.connected(slot, value, now_s)
        elif what == "assume":
            rtt.assume(slot, value)
        elif what == "scrape":
            engine.update(slot, EngineSample("vllm", value, 0.0, 0.5, 1000, 1.0), now_s)
        elif what == "forget":
            rtt.forget(slot)
            engine.forget(slot)
        elif what == "grow":
            capacity *= 2
            rtt.resize(capacity)
            engine.resize(capacity)
        else:
            now_s += value / 20.0
        same(measured.columns(ROWS, now_s), Measured(rtt, engine).columns(ROWS, now_s), now_s)
