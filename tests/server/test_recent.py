"""How many decisions a running picker remembers for people."""

from __future__ import annotations

import pytest

from epp.extproc.types import HttpRequest
from epp.request.recent import RecentDecisions
from epp_lab.bench.rig import request, rig
from tests.kit.records import outcome_of
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


def test_what_came_of_a_decision_is_known_for_as_long_as_the_decision() -> None:
    recent = RecentDecisions(size=2)
    with rig(3) as app:
        for _ in range(3):
            decided = decide(app.director, request(BODY))
            assert isinstance(decided, Decided)
            recent.add(decided.decision)
            assert (recent.record("last") or {})["outcome"] is None
            recent.ended(outcome_of(decided.decision), 7.0)
            outcome = (recent.record(decided.decision.id) or {})["outcome"]
            assert (outcome["id"], outcome["at"], outcome["status"]) == (decided.decision.id, 7.0, 200)
    assert len(recent._outcomes) == 2


def test_the_last_is_a_request_with_a_prompt_and_no_list_of_models() -> None:
    recent = RecentDecisions()
    listing = HttpRequest("GET", "/v1/models", {}, None)
    with rig(3) as app:
        for asked in (listing, request(BODY), listing):
            decided = decide(app.director, asked)
            assert isinstance(decided, Decided)
            recent.add(decided.decision)
    found = recent.find("last")
    assert found is not None
    assert found.request.prompt_tokens


def test_nothing_is_known_of_others() -> None:
    recent = RecentDecisions()
    assert recent.find("last") is None
    assert recent.find("0123456789abcdef-1") is None
