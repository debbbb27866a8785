"""Which picks may be retried after a refusal, what is charged to whom, and when retries end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from epp.extproc.types import HttpRequest
from epp.request.access_log import Attempt, Termination
from epp.signals.health import HealthState
from epp.signals.retry_budget import RetryBudget
from epp.types import Endpoint, Role
from tests.server.test_feedback_core import WORDS, Deployment, report

if TYPE_CHECKING:
    from pathlib import Path

    from epp.schedule.decision import Decision
    from epp.types import RequestInfo

QUESTION = [{"role": "user", "content": WORDS * 40}]


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    return Deployment(tmp_path)


def attempt(decision: Decision, number: int = 0, **facts: Any) -> Attempt:
    """An attempt on the endpoint of this place in the pick."""
    picked = tuple(decision.destination.split(","))
    values: dict[str, Any] = {
        "decision_id": decision.id, "picked": picked, "served": picked[number], "status": 429, "retry_after": "",
        "unserved": False,
    }  # fmt: skip
    return Attempt(**values | facts)


def failures(deployment: Deployment, address: str) -> float:
    return deployment.datastore.health._slots[deployment.slot(address)].lately.failed


def pool(deployment: Deployment, *models: str) -> None:
    """As many endpoints, each with one model; ``""`` for any."""
    endpoints = [
        Endpoint(f"10.1.0.{number}:8000", models=frozenset({name} - {""}))
        for number, name in enumerate(models)
    ]
    deployment.app.scheduler.set_pool(endpoints, deployment.clock.mono_s())


@pytest.mark.parametrize(
    ("models", "headers"),
    [
        (("m",), {"x-epp-bound"}),
        (("m", "other"), {"x-epp-bound"}),
        (("m", "m"), {"x-epp-bound", "x-envoy-retry-on", "x-envoy-max-retries", "x-epp-decision-id"}),
        (("m",) * 40, {"x-epp-bound", "x-envoy-retry-on", "x-epp-decision-id"}),
        (("", ""), {"x-envoy-retry-on", "x-envoy-max-retries", "x-epp-decision-id"}),
        (("",), set()),
    ],
)
def test_refusals_are_retried_where_others_serve_the_model(
    deployment: Deployment, models: tuple[str, ...], headers: set[str]
) -> None:
    pool(deployment, *models)
    decision = deployment.decide(QUESTION)
    pick = deployment.director._destination(_request(), decision)
    assert set(pick.proxy_headers) == headers
    named = pick.destination.split(",")
    assert len(named) == len(set(named)) == min(models.count("m"), 32) or "" in models
    assert pick.proxy_headers.get("x-envoy-max-retries", "1") == "1"


def _request() -> Any:
    return HttpRequest("POST", "/v1/chat/completions", {}, b"{}")


def test_a_full_engine_bears_its_own_refusal_and_no_failure(deployment: Deployment) -> None:
    for _ in range(8):
        decision = deployment.decide(QUESTION)
        other = decision.destination.split(",")[1]
        deployment.director.outcomes.attempted(attempt(decision))
        facts = {"served": other, "attempts": 2, "cause": Termination.RETRIED_ELSEWHERE}
        deployment.ended(decision, **facts)
        assert failures(deployment, decision.endpoint) == 0.0
    state = deployment.datastore.health.state(deployment.slot(decision.endpoint), deployment.clock.mono_s())
    assert state is HealthState.HEALTHY


@pytest.mark.parametrize(("retry_after", "least_s"), [("30", 30.0), ("", 1.0)])
def test_a_refusal_pauses_its_endpoint_at_once(
    deployment: Deployment, retry_after: str, least_s: float
) -> None:
    decision = deployment.decide(QUESTION)
    deployment.director.outcomes.attempted(attempt(decision, retry_after=retry_after))
    slot = deployment.slot(decision.endpoint)
    assert deployment.datastore.retry_after.left_s(slot, deployment.clock.mono_s()) >= least_s
    assert deployment.decide(QUESTION).endpoint != decision.endpoint


@pytest.mark.parametrize("facts", [{"status": 503}, {"status": 0}, {"status": 529}])
@pytest.mark.parametrize("report_first", [False, True])
def test_a_failed_attempt_counts_once_whatever_comes_first(
    deployment: Deployment, facts: dict[str, Any], report_first: bool
) -> None:
    decision = deployment.decide(QUESTION)
    other = decision.destination.split(",")[1]
    ends = {"served": other, "attempts": 2, "cause": Termination.RETRIED_ELSEWHERE}
    if report_first:
        deployment.ended(decision, **ends)
    deployment.director.outcomes.attempted(attempt(decision, **facts))
    if not report_first:
        deployment.ended(decision, **ends)
    assert failures(deployment, decision.endpoint) == pytest.approx(1.0, abs=0.1)
    assert failures(deployment, other) == 0.0


def test_a_last_refusal_is_not_counted_again_by_the_requests_report(deployment: Deployment) -> None:
    decision = deployment.decide(QUESTION)
    last = decision.destination.split(",")[-1]
    for number in range(len(decision.destination.split(","))):
        deployment.director.outcomes.attempted(attempt(decision, number, status=503))
    deployment.ended(decision, served=last, attempts=3, status=503)
    assert failures(deployment, last) == pytest.approx(1.0, abs=0.1)


def test_the_next_of_the_list_has_the_request_as_soon_as_one_refuses(deployment: Deployment) -> None:
    decision = deployment.decide(QUESTION)
    first, second, *_ = decision.destination.split(",")
    deployment.director.outcomes.attempted(attempt(decision))
    pending = deployment.datastore.ledger.pending_uncached_tokens
    assert pending[deployment.slot(first)] == 0
    assert pending[deployment.slot(second)] > 0


def test_an_attempt_without_a_decision_is_left_to_the_requests_report(deployment: Deployment) -> None:
    decision = deployment.decide(QUESTION)
    deployment.director.outcomes.attempted(attempt(decision, decision_id="", status=503))
    deployment.director.outcomes.finished(report(decision, status=503))
    assert failures(deployment, decision.endpoint) == pytest.approx(1.0, abs=0.1)


def test_retries_in_vain_end_and_come_back_with_time() -> None:
    budget = RetryBudget()
    for _ in range(100):
        budget.request(100.0)
        assert budget.allows
    for _ in range(25):
        budget.in_vain(100.0)
    assert not budget.allows
    budget.request(130.0)
    assert budget.allows


def test_only_what_envoy_says_brings_a_request_back(deployment: Deployment) -> None:
    retries, decision = deployment.director._retries, deployment.decide(QUESTION)

    def back(secret: str) -> RequestInfo | None:
        told = f"{secret} 99.5 503 Wed, 21 Oct 2037 07:28:00 GMT"
        headers = {"x-epp-decision-id": decision.id, "x-epp-refused": told}
        return retries.returned(HttpRequest("POST", "/", headers, b""))

    assert back("guessed") is None
    assert deployment.app.scheduler.has_in_flight(decision.id)
    first = decision.request
    assert back(retries._secret) == replace(first, decision_id="", came_s=99.5)
    assert back(retries._secret) is None, "it has ended"
    assert failures(deployment, decision.endpoint) == 1.0
    slot = deployment.slot(decision.endpoint)
    assert deployment.datastore.retry_after.left_s(slot, deployment.clock.mono_s()) > 40.0


@pytest.mark.parametrize("comes_back", [True, False])
def test_a_failed_pair_is_charged_to_its_decoder_as_well_unless_the_request_comes_back(
    deployment: Deployment, comes_back: bool
) -> None:
    pool = [
        Endpoint("10.2.0.1:1", roles=frozenset({Role.PREFILL})),
        Endpoint("10.2.0.2:1", roles=frozenset({Role.DECODE}), prefills=False),
    ]
    deployment.app.scheduler.set_pool(pool, deployment.clock.mono_s())
    decision = deployment.decide(QUESTION)
    assert [decision.address(leg) for leg in decision.legs] == [each.address for each in pool]
    if comes_back:
        deployment.director.outcomes.put_back(decision.id, 502, "")
    else:
        deployment.ended(decision, status=502)
    worker, decoder = (each.address for each in pool)
    assert (failures(deployment, worker), failures(deployment, decoder)) == (1.0, float(not comes_back))
    assert set(deployment.datastore.retry_after.until_s(deployment.clock.mono_s()) or ()) == {
        deployment.slot(worker)
    }
