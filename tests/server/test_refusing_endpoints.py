"""Endpoints that refuse, say nothing or say nonsense, through the whole core: they draw no load."""

from __future__ import annotations

import json
from email.utils import formatdate
from typing import TYPE_CHECKING

import pytest

from epp.decide.explain import explain
from epp.decide.record_verify import verify
from epp.decide.records import to_record
from epp.extproc.types import Cause
from tests.server.test_feedback_core import POOL, WORDS, Deployment, report

if TYPE_CHECKING:
    from pathlib import Path

    from epp.decide.records import Decision

QUESTION = [{"role": "user", "content": WORDS}]


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    return Deployment(tmp_path)


def refused(deployment: Deployment, decision: Decision, retry_after: str, *, by_stream: bool) -> None:
    """The endpoint answers 429, told by the ext_proc stream or by Envoy's report."""
    if by_stream:
        deployment.core.response_started(decision.id, 429, "", retry_after)
        deployment.core.outcomes.stream_ended(decision.id, Cause.COMPLETED.value)
    else:
        deployment.ended(decision, status=429, retry_after=retry_after)


@pytest.mark.parametrize("by_stream", [True, False])
@pytest.mark.parametrize("dated", [True, False])
def test_an_endpoint_that_says_retry_after_is_left_alone_for_that_long(
    deployment: Deployment, by_stream: bool, dated: bool
) -> None:
    first = deployment.decide(QUESTION)
    date = formatdate(deployment.clock.wall_s() + 10.0, usegmt=True)
    refused(deployment, first, date if dated else "10", by_stream=by_stream)
    for _ in range(20):
        decision = deployment.decide(QUESTION)
        assert decision.endpoint != first.endpoint
        assert decision.excluded == {"retry-after": (first.endpoint,)}
        assert first.endpoint not in decision.destination, "nor as a fallback"
        deployment.ended(decision)
        deployment.clock.now_s -= 1.0
    record = json.loads(json.dumps(to_record(decision), default=list))
    assert f"retry-after: {first.endpoint} excluded" in "".join(map(str, explain(record)))
    assert verify([record]).differences == []
    deployment.clock.now_s += 15.0
    trial = deployment.decide(QUESTION)
    assert trial.excluded == {}


def test_one_request_tries_the_endpoint_after_its_pause(deployment: Deployment) -> None:
    deployment.app.picker.set_pool(POOL[:1], deployment.clock.now_s)
    refused(deployment, deployment.decide(QUESTION), "10", by_stream=True)
    deployment.clock.now_s += 13.0
    trial = deployment.decide(QUESTION)
    deployment.app.picker.set_pool(POOL, deployment.clock.now_s)
    assert deployment.decide(QUESTION).excluded == {"retry-after": (trial.endpoint,)}
    deployment.ended(trial)
    assert deployment.decide(QUESTION).excluded == {}


def test_where_all_refuse_the_one_that_returns_first_serves(deployment: Deployment) -> None:
    for number in range(3):
        decision = deployment.decide(QUESTION)
        if number == 1:
            first = decision.endpoint
        refused(deployment, decision, "5" if number == 1 else "50", by_stream=True)
    for _ in range(5):
        assert deployment.decide(QUESTION).endpoint == first


def test_an_answer_seen_twice_asks_once(deployment: Deployment) -> None:
    decision = deployment.decide(QUESTION)
    refused(deployment, decision, "10", by_stream=True)
    slot = deployment.slot(decision.endpoint)
    left_s = deployment.fleet.retry_after.left_s(slot, deployment.clock.now_s)
    deployment.clock.now_s += 1.0
    deployment.core.outcomes.finished(report(decision, status=429, retry_after="10"))
    assert deployment.fleet.retry_after.left_s(slot, deployment.clock.now_s) == pytest.approx(left_s - 1.0)


def test_an_endpoint_that_leaves_and_returns_is_not_left_alone(deployment: Deployment) -> None:
    decision = deployment.decide(QUESTION)
    refused(deployment, decision, "50", by_stream=True)
    deployment.app.picker.set_pool(
        [endpoint for endpoint in POOL if endpoint.address != decision.endpoint], deployment.clock.now_s
    )
    deployment.app.picker.set_pool(POOL, deployment.clock.now_s)
    assert deployment.decide(QUESTION).excluded == {}
