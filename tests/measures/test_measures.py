"""The code grows no further than its limits."""

from __future__ import annotations

import json

from tests.measures.measures import LIMITS, figures


def test_no_figure_is_above_its_limit() -> None:
    table = json.loads(LIMITS.read_text(encoding="utf-8"))
    measured = figures()
    assert measured.keys() == table.keys()
    limits = {name: told["limit"] for name, told in table.items() if "limit" in told}
    above = {name: (measured[name], limit) for name, limit in limits.items() if measured[name] > limit}
    assert above == {}, "make it smaller, or raise the limit in a commit that says why"
