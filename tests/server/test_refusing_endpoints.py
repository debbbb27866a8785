"""Endpoints that refuse, say nothing or say nonsense, through the whole core: they draw no load."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from email.utils import formatdate
from typing import TYPE_CHECKING, Any

import pytest

from epp.apis.listed_models import ListedModel
from epp.apis.usage import NO_USAGE, Usage
from epp.extproc.types import Cause
from epp.ops.explain import explain
from epp.records.verify import verify
from epp.schedule.decision import to_record
from tests.kit.shown import shown
from tests.server.test_feedback_core import POOL, WORDS, Deployment, report

if TYPE_CHECKING:
    from pathlib import Path

    from epp.schedule.decision import Decision, Outcome

QUESTION = [{"role": "user", "content": WORDS}]


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    return Deployment(tmp_path)


def refused(deployment: Deployment, decision: Decision, retry_after: str, *, by_stream: bool) -> None:
    """The endpoint answers 429, told by the ext_proc stream or by Envoy's report."""
    if by_stream:
        deployment.director.response_started(decision.id, 429, "", retry_after)
        deployment.director.outcomes.stream_ended(decision.id, Cause.COMPLETED.value)
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
        deployment.clock.advance(-1.0)
    record = json.loads(json.dumps(to_record(decision), default=list))
    assert f"filtered out by retry-after: {first.endpoint}" in "".join(map(str, explain(record)))
    assert verify([record]).differences == []
    deployment.clock.advance(15.0)
    trial = deployment.decide(QUESTION)
    assert trial.excluded == {}


def outcomes_of(deployment: Deployment) -> list[Outcome]:
    """Outcomes from now on."""
    outcomes: list[Outcome] = []
    deployment.director.outcomes.on_outcome["test"] = outcomes.append
    return outcomes


def list_context(deployment: Deployment) -> None:
    """Each engine lists a context of 8192 tokens, and an adapter without one."""
    for endpoint in POOL:
        deployment.app._pool._sink.models_listed(
            endpoint.address, frozenset(), {"m": ListedModel(8192), "a": ListedModel()}
        )


@pytest.mark.parametrize(
    ("usage", "known"),
    [
        (Usage(100, 5, None), "tokens"),
        (Usage(-100, 5, None), "refused"),
        (Usage(100, -5, None), "refused"),
        (Usage(100, 5, -1), "refused"),
        (Usage(9000, 5, None), "refused"),
        (Usage(100, 9000, None), "refused"),
    ],
)
@pytest.mark.parametrize("by_stream", [True, False])
@pytest.mark.parametrize("listed", [True, False])
def test_counts_below_zero_or_above_the_context_are_refused(
    deployment: Deployment, usage: Usage, known: str, by_stream: bool, listed: bool
) -> None:
    """By the context that engines list, else by the configured one."""
    outcomes = outcomes_of(deployment)
    pool = [replace(endpoint, context_tokens=100_000 if listed else 8192) for endpoint in POOL]
    deployment.app.scheduler.set_pool(pool, deployment.clock.mono_s())
    if listed:
        list_context(deployment)
    expected = deployment.datastore.answers.expected("m")
    decision = deployment.decide(QUESTION)
    if by_stream:
        deployment.director.scheduler.observed(decision.id, usage=usage, response_bytes=300)
        deployment.director.outcomes.stream_ended(decision.id, Cause.COMPLETED.value)
    else:
        deployment.ended(decision, usage=usage, chunks=None)
    assert [outcome.usage for outcome in outcomes] == [usage if known == "tokens" else NO_USAGE]
    assert shown(deployment.app.metrics, "epp_usage_total", known=known) == 1
    assert (deployment.datastore.answers.expected("m") == expected) is (known == "refused")


EMPTY = (
    {"usage": Usage(100, 0, None), "response_bytes": 300},
    {"usage": NO_USAGE, "response_bytes": 2},
    {"usage": NO_USAGE, "response_bytes": 0, "chunks": 0, "ttft_ms": math.nan},
)


def answered_empty(
    deployment: Deployment, decision: Decision, facts: dict[str, Any], *, by_stream: bool
) -> None:
    """The endpoint answers 200 with nothing in it; Envoy reports what the ext_proc stream showed as well."""
    outcomes = deployment.director.outcomes
    if by_stream:
        deployment.director.response_started(decision.id, 200)
        deployment.director.scheduler.observed(
            decision.id, usage=facts["usage"], chunks=1, response_bytes=facts["response_bytes"], streamed=True
        )
        outcomes.stream_ended(decision.id, Cause.COMPLETED.value)
    else:
        outcomes.stream_ended(decision.id, Cause.STREAM_END.value)
    outcomes.finished(report(decision, **{"ttft_ms": 0.5, "e2e_ms": 1.0, **facts}))


@pytest.mark.parametrize("facts", EMPTY)
@pytest.mark.parametrize("by_stream", [True, False])
def test_nothing_is_learned_from_an_empty_answer(
    deployment: Deployment, facts: dict[str, Any], by_stream: bool
) -> None:
    def learned() -> tuple[object, ...]:
        datastore = deployment.datastore
        return (
            datastore.rates.block().tolist(),
            datastore.answers.expected("m"),
            deployment.decide(QUESTION).request.text_bytes,
        )

    before = learned()
    decision = deployment.decide(QUESTION, stream=True)
    answered_empty(deployment, decision, facts, by_stream=by_stream)
    assert learned() == before
