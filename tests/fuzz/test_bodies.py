"""The fuzzer itself: repeatable, broad, and short enough to be run with the tests."""

from __future__ import annotations

from epp.apis.registry import PARSERS
from tests.fuzz import bodies


def test_a_short_run_meets_every_api_and_breaks_nothing() -> None:
    became = bodies.run(seed=1, count=3000)
    assert became.total() == 3000
    assert set(became) == {"4xx", "pass-through", *(parser.name for parser in PARSERS)}
