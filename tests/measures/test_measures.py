"""No figure of the code's size rises above its limit."""

from __future__ import annotations

import json

from tests.measures.measures import LIMITS, figures


def test_no_figure_is_above_its_limit() -> None:
    limits = json.loads(LIMITS.read_text(encoding="utf-8"))
    measured = figures()
    assert measured.keys() == limits.keys()
    above = {name: (value, limits[name][0]) for name, value in measured.items() if value > limits[name][0]}
    assert above == {}, "make it smaller, or raise the limit in a commit of its own that says why"
