"""The fuzzer of message sequences: every kind of end, and it notices what it is there to notice."""

from __future__ import annotations

from tests.fuzz import messages


def test_a_short_run_meets_every_end_and_breaks_nothing() -> None:
    became = messages.run(seed=1, count=3000)
    assert became.total() == 3000
    assert {"played", "left", "refused", "observed", "protocol-error", "completed"} <= set(became)
