"""How many decisions a running picker remembers for people."""

from __future__ import annotations

import pytest

from epp.request.recent import RecentDecisions
from epp_lab.bench.rig import request, rig
from tests.kit.requests import Decided, decide

BODY = b'{"model": "m", "messages": [{"role": "user", "content": "hi"}]}'


def remembered(recent: RecentDecisions, endpoints: int) -> list[str]:
    """Ids of decisions that are still known after ten of them, the oldest first."""
    ids = []
    with rig(endpoints) as app:
        for _ in range(10):
            decided = decide(app.director, request(BODY))
            assert isinstance(decided, Decided)
            recent.add(decided.decision)
            ids.append(decided.decision.id)
    newest = recent.find("last")
    assert newest is not None
    assert newest.id == ids[-1]
    return [one for one in ids if recent.get(one) is not None]


@pytest.mark.parametrize(
    ("endpoints", "size", "most", "kept"),
    [(3, 1000, 64_000_000, 10), (3, 4, 64_000_000, 4), (3, 1000, 4800, 6), (30, 1000, 4800, 1)],
)
def test_the_oldest_go_by_number_and_by_endpoints(endpoints: int, size: int, most: int, kept: int) -> None:
    assert len(remembered(RecentDecisions(size, most), endpoints)) == kept


def test_nothing_is_known_of_others() -> None:
    recent = RecentDecisions()
    assert recent.find("last") is None
    assert recent.find("0123456789abcdef-1") is None
