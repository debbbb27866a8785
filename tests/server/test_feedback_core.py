"""Feedback through the whole core: bodies in, Envoy's reports back, and what the next decision makes of them."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest

from epp.apis.failure import AnswerFailure
from epp.apis.listed_models import ListedModel
from epp.apis.usage import NO_USAGE, Usage
from epp.extproc.types import Cause, DecideAt, HttpRequest, LocalReply
from epp.request.access_log import Report, Termination
from epp.schedule.decision import Source, outcome_record
from epp.schedule.upstream_models import is_wrong
from epp.signals.health import HealthState
from epp.types import Endpoint
from tests.kit.apps import app_of
from tests.kit.clock import ManualClock
from tests.kit.logs import own_lines
from tests.kit.requests import Decided, decide
from tests.kit.shown import shown

if TYPE_CHECKING:
    from pathlib import Path

    from epp.schedule.decision import Decision, Outcome

POOL = tuple(Endpoint(f"10.0.0.{number}:8000") for number in range(1, 4))
WORDS = "all that was said so far, at such a length that there is something to cache. "


@dataclass
class Deployment:
    """A picker without sockets, and what Envoy would tell it."""

    folder: Path
    clock: ManualClock = field(default_factory=lambda: ManualClock(100.0))

    def __post_init__(self) -> None:
        self.app = app_of(self.folder, self.clock)
        self.director, self.datastore = self.app.director, self.app.scheduler.datastore
        self.app.scheduler.set_pool(POOL, self.clock.mono_s())
        for number, endpoint in enumerate(POOL):
            self.datastore.assume_rtt(endpoint.address, 10.0 + number)

    def decide(self, messages: list[dict[str, str]], **fields: Any) -> Decision:
        body = json.dumps({"model": "m", "messages": messages, **fields}).encode()
        headers = {"content-type": "application/json"}
        decided = decide(self.director, HttpRequest("POST", "/v1/chat/completions", headers, body))
        assert not isinstance(decided, LocalReply)
        return decided.decision

    def ended(self, decision: Decision, **facts: Any) -> None:
        """The stream ends, then Envoy reports."""
        self.clock.advance(1.0)
        self.director.outcomes.stream_ended(decision.id, Cause.STREAM_END.value)
        self.director.outcomes.finished(report(decision, **facts))

    def slot(self, address: str) -> int:
        slot = self.datastore.slot_of(address)
        assert slot is not None
        return slot


def report(decision: Decision, **facts: Any) -> Report:
    values: dict[str, Any] = {
        "decision_id": decision.id, "status": 200, "cause": Termination.COMPLETED,
        "picked": tuple(decision.destination.split(",")), "served": decision.endpoint, "relayed": False,
        "attempts": 1,
        "response_bytes": 300, "ttft_ms": 50.0, "e2e_ms": 900.0,
        "received_ms": 0.1, "sent_ms": 1.0, "headers_ms": 49.0, "connect_ms": math.nan,
        "connected_anew": None, "streamed": True, "encoding": "", "chunks": 7, "usage": NO_USAGE,
    }  # fmt: skip
    return Report(**{**values, **facts})


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    return Deployment(tmp_path)


async def test_connections_of_real_requests_tell_what_the_next_one_costs(deployment: Deployment) -> None:
    question = {"role": "user", "content": WORDS}
    before = deployment.decide([question])
    assert before.snapshot.cold_chance.tolist() == [0.0] * 3
    deployment.ended(before)
    assert deployment.decide([question]).snapshot.cold_chance.tolist() == [0.0] * 3, (
        "an Envoy that does not tell"
    )
    decision = deployment.decide([question])
    deployment.ended(decision, connect_ms=3.0, connected_anew=True, opened_ms=7.0)
    snapshot = deployment.decide([question]).snapshot
    row = snapshot.endpoints.index(decision.endpoint)
    assert 0.0 < snapshot.cold_chance[row] < 0.5, "its connection is idle now"
    assert snapshot.connect_ms[row] == 7.0


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"status": 500}, "status 500"),
        ({"status": 503, "cause": Termination.UPSTREAM_RESET}, "upstream-reset"),
        ({"status": 400}, ""),
        ({"status": 429}, ""),
        ({"status": 0, "cause": Termination.CLIENT_GONE}, ""),
    ],
)
def test_errors_of_an_engine_eject_it_and_those_of_a_client_do_not(
    deployment: Deployment, facts: dict[str, Any], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "epp.request.outcomes")
    question = {"role": "user", "content": WORDS * 40}
    first = deployment.decide([question])
    slot = deployment.slot(first.endpoint)
    deployment.ended(first)
    for number in range(20):
        deployment.clock.advance(-0.9)
        decision = deployment.decide([question])
        if decision.endpoint == first.endpoint:
            deployment.ended(decision, **({} if number % 4 == 0 else facts))
    assert (
        deployment.datastore.health.state(slot, deployment.clock.mono_s()) is HealthState.EJECTED
    ) is bool(why)
    told = f"endpoint {first.endpoint} is ejected: requests on it failed, the last: {why}"
    assert [line for line in own_lines(caplog) if "ejected" in line] == [told] * bool(why)


def test_the_ejected_are_listed_last_where_one_endpoint_is_left(deployment: Deployment) -> None:
    """Else Envoy asks the least busy of all when that one dies, which it is itself."""
    for endpoint in POOL[:2]:
        deployment.datastore.health.eject_until(
            deployment.slot(endpoint.address), 200.0, deployment.clock.mono_s()
        )
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": WORDS}]}).encode()
    decided = decide(deployment.director, HttpRequest("POST", "/v1/chat/completions", {}, body))
    assert isinstance(decided, Decided)
    listed = decided.pick.destination.split(",")
    assert (listed[0], set(listed[1:])) == (POOL[2].address, {endpoint.address for endpoint in POOL[:2]})


def test_a_failure_that_both_the_stream_and_envoy_tell_counts_once(deployment: Deployment) -> None:
    question = {"role": "user", "content": WORDS * 40}
    for number in range(1, 6):
        decision = deployment.decide([question])
        slot = deployment.slot(decision.endpoint)
        deployment.director.response_started(decision.id, 500)
        deployment.director.outcomes.stream_ended(decision.id, Cause.COMPLETED.value)
        for _ in range(2):  # an Envoy with two access logs
            deployment.director.outcomes.finished(report(decision, status=500))
        assert (
            deployment.datastore.health.state(slot, deployment.clock.mono_s()) is HealthState.EJECTED
        ) is (number == 5), number
    assert shown(deployment.app.metrics, "epp_late_reports_total") == 5, "each second report"


def test_what_envoy_alone_can_tell_of_a_request_counts_beside_what_the_stream_showed(
    deployment: Deployment,
) -> None:
    decision = deployment.decide([{"role": "user", "content": WORDS}])
    other = next(endpoint.address for endpoint in POOL if endpoint.address != decision.endpoint)
    deployment.director.response_started(decision.id, 200, other)
    deployment.director.outcomes.stream_ended(decision.id, Cause.COMPLETED.value)
    facts = {"served": other, "attempts": 2, "cause": Termination.RETRIED_ELSEWHERE}
    deployment.director.outcomes.finished(report(decision, connect_ms=3.0, connected_anew=True, **facts))
    shares = [
        deployment.datastore.health._slots[deployment.slot(name)].lately.failed
        for name in (decision.endpoint, other)
    ]
    assert shares == [1.0, 0.0]
    slot = deployment.slot(other)
    assert deployment.datastore.rtt.source(slot, deployment.clock.mono_s()) == "connect"


def test_a_retry_elsewhere_is_told_apart_from_the_pick(deployment: Deployment) -> None:
    told: list[Outcome] = []
    deployment.director.outcomes.on_outcome["test"] = told.append
    decision = deployment.decide([{"role": "user", "content": WORDS * 40}])
    other = next(endpoint.address for endpoint in POOL if endpoint.address != decision.endpoint)
    deployment.ended(
        decision, served=other, attempts=2, cause=Termination.RETRIED_ELSEWHERE, usage=Usage(900, 5, 0)
    )
    (outcome,) = told
    assert (outcome.endpoint, outcome.served, outcome.attempts) == (decision.endpoint, other, 2)
    assert outcome.cause == "retried-elsewhere"
    assert outcome.itl_ms == pytest.approx(850.0 / 4)
    assert deployment.datastore.index.tokens(deployment.slot(other)) > 0


def test_an_answer_that_outlasts_its_prediction_is_told_by_its_report(deployment: Deployment) -> None:
    """Else short answers alone would be learned from, and answers be predicted ever shorter."""
    told: list[Outcome] = []
    outcomes, ledger = deployment.director.outcomes, deployment.datastore.ledger
    outcomes.on_outcome["test"] = told.append
    deployment.ended(deployment.decide([{"role": "user", "content": "hello"}]))  # Envoy reports
    decision = deployment.decide([{"role": "user", "content": WORDS}], stream=True)
    before = deployment.datastore.answers.expected("m")
    outcomes.stream_ended(decision.id, Cause.UNOBSERVED.value, predicted=True)
    assert not ledger.running_requests.any()
    deployment.clock.advance(20.0)
    outcomes.expire()
    assert len(told) == 1
    usage = Usage(decision.request.prompt_tokens, 2000, None)
    outcomes.finished(report(decision, usage=usage, e2e_ms=40_000.0, chunks=2000))
    assert (told[1].cause, told[1].e2e_ms, told[1].sources["e2e_ms"]) == ("completed", 40_000.0, Source.ENVOY)
    assert deployment.datastore.answers.expected("m") > before
    deployment.clock.advance(60.0)
    outcomes.expire()
    assert len(told) == 2


@pytest.mark.parametrize(("reporting", "wait_s"), [(False, 2.0), (True, 30.0)])
def test_a_report_that_does_not_come_is_not_waited_for_for_ever(
    deployment: Deployment, reporting: bool, wait_s: float
) -> None:
    told: list[Outcome] = []
    outcomes = deployment.director.outcomes
    if reporting:
        deployment.ended(deployment.decide([{"role": "user", "content": "hello"}]))
    outcomes.on_outcome["test"] = told.append
    predicted, seen = (deployment.decide([{"role": "user", "content": WORDS}]) for _ in range(2))
    outcomes.stream_ended(predicted.id, Cause.UNOBSERVED.value, predicted=True)
    outcomes.stream_ended(seen.id, Cause.STREAM_END.value)
    deployment.clock.advance(wait_s - 0.5)
    outcomes.expire()
    assert [outcome.id for outcome in told] == ([seen.id] if reporting else [])
    deployment.clock.advance(0.5)
    outcomes.expire()
    assert {outcome.id for outcome in told} == {predicted.id, seen.id}
    assert told[-1].sources["e2e_ms"] == (Source.PREDICTED if reporting else Source.STREAM)
    deployment.decide([{"role": "user", "content": WORDS}])
    deployment.clock.advance(1e4)
    outcomes.expire()
    assert shown(deployment.app.metrics, "epp_leases_lost_total", reason="expired") == 1


def test_what_is_about_a_stored_response_goes_to_who_answered_it(deployment: Deployment) -> None:
    director = deployment.director

    def ask(method: str, path: str, **body: Any) -> HttpRequest:
        headers = {"content-type": "application/json"} if body else {}
        data = json.dumps({"model": "m", "input": WORDS, **body}).encode() if body else None
        return HttpRequest(method, path, headers, data, whole=True)

    def picked(request: HttpRequest) -> Decision:
        decided = decide(director, request)
        assert not isinstance(decided, LocalReply)
        return decided.decision

    assert director.decide_at(ask("POST", "/v1/responses", store=True)) is DecideAt.BODY
    first = picked(ask("POST", "/v1/responses", store=True))
    other = next(endpoint.address for endpoint in POOL if endpoint.address != first.endpoint)
    director.outcomes.stored(first.id, "resp_1")
    deployment.ended(first, response_id="resp_1", served=other, attempts=2)
    unstored = picked(ask("POST", "/v1/responses", store=False))
    deployment.ended(unstored, response_id="resp_2")
    for request in (
        ask("POST", "/v1/responses", previous_response_id="resp_1"),
        ask("GET", "/v1/responses/resp_1?stream=true"),
        ask("POST", "/v1/responses/resp_1/cancel"),
    ):
        decision = picked(request)
        assert decision.endpoint == other
        assert set(decision.excluded) == {"stored-response"}
    assert not picked(ask("POST", "/v1/responses", previous_response_id="resp_2")).excluded
    assert not picked(ask("GET", "/v1/responses/resp_2")).excluded


@pytest.mark.parametrize(("said", "last"), [({"x-dynamo-session-final": "true"}, True), ({}, False)])
def test_a_session_may_say_that_a_request_is_its_last(
    deployment: Deployment, said: dict[str, str], last: bool
) -> None:
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]}).encode()
    decided = decide(deployment.director, HttpRequest("POST", "/v1/chat/completions", said, body, whole=True))
    assert not isinstance(decided, LocalReply)
    assert decided.decision.request.last_turn == last


def failed(deployment: Deployment, status: int, **facts: Any) -> Outcome:
    """A request whose answer tells of a failure after a good beginning."""
    outcomes: list[Outcome] = []
    deployment.director.outcomes.on_outcome["test"] = outcomes.append
    decision = deployment.decide([{"role": "user", "content": WORDS * 40}])
    told = AnswerFailure(status, "its word")
    deployment.ended(decision, cause=Termination.FAILED_ANSWER, failure=told, **facts)
    return outcomes[-1]


def test_a_failure_inside_an_answer_teaches_nothing(
    deployment: Deployment,
) -> None:
    datastore = deployment.datastore
    before = datastore.rates.learned, datastore.answers.expected("m"), datastore.calibration.sums(0)
    outcome = failed(deployment, 400, ttft_ms=1.0)
    assert (outcome.cause, outcome.status) == ("failed-answer", 200)
    assert outcome_record(outcome, 0.0)["failure"] == {"status": 400, "code": "its word"}
    assert (datastore.rates.learned, datastore.answers.expected("m"), datastore.calibration.sums(0)) == before
    page = b"".join(piece.encode() for piece in deployment.app.metrics.pieces()).decode()
    assert 'cause="failed-answer",status="2xx"} 1' in page


@pytest.mark.parametrize(
    ("status", "ejected", "paused"),
    [(500, True, False), (503, True, True), (529, True, True), (429, False, True), (400, False, False)],
)
def test_a_failure_inside_an_answer_counts_by_its_status(
    deployment: Deployment, status: int, ejected: bool, paused: bool
) -> None:
    deployment.app.scheduler.set_pool(POOL[:2], deployment.clock.mono_s())
    where = failed(deployment, status).endpoint
    slot = deployment.slot(where)
    assert (deployment.datastore.retry_after.left_s(slot, deployment.clock.mono_s()) > 0.0) is paused
    for _ in range(40):
        failed(deployment, status)
    states = {
        deployment.datastore.health.state(deployment.slot(one.address), deployment.clock.mono_s())
        for one in POOL[:2]
    }
    assert (HealthState.EJECTED in states) is ejected


def test_answers_by_another_model_are_counted_where_the_endpoints_names_are_known(
    deployment: Deployment,
) -> None:
    def counted(answered: str) -> bool:
        decision = deployment.decide([{"role": "user", "content": WORDS}])
        count = deployment.app.metrics.value("epp_endpoint_events_total", decision.endpoint, "wrong-model")
        before = count.value
        deployment.ended(decision, model=answered)
        return count.value > before

    assert not counted("other"), "a pool without names serves any"
    named = [replace(endpoint, models=frozenset({"m", "alias"})) for endpoint in POOL]
    deployment.app.scheduler.set_pool(named, deployment.clock.mono_s())
    assert not counted("m")
    assert not counted("/models/m.gguf"), "llama.cpp names the file"
    for slot, _ in deployment.datastore.members:
        listed = {"m": ListedModel(root="a"), "alias": ListedModel(root="a"), "x": ListedModel(root="b"),
                  "sql": ListedModel(root="c", parent="m")}  # fmt: skip
        deployment.datastore.learn_models(slot, listed)
    assert not counted("alias")
    assert not counted("sql"), "an adapter and its base"
    assert counted("x")


def test_an_endpoint_that_does_not_serve_the_model_answers_wrongly() -> None:
    tiny = Endpoint("a:1", models=frozenset({"tiny"}))
    assert is_wrong(tiny, {}, "foo", "tiny")
    assert not is_wrong(
        replace(tiny, models=frozenset({"foo"}), served_names={"foo": "tiny"}), {}, "foo", "tiny"
    )
