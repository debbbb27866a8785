"""Feedback through the whole core: bodies in, Envoy's reports back, and what the next decision makes of them."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from epp.apis.usage import NO_USAGE, Usage
from epp.config.load import parse_config
from epp.config.pool import EndpointSpec
from epp.extproc.types import Cause, HttpRequest, Refusal
from epp.ops.explain import explain
from epp.schedule.decision import Source, to_record
from epp.server.app import App
from epp.server.report import Report, Termination
from epp.signals.endpoint import Endpoint
from epp.signals.health import State
from tests.kit.logs import own_lines
from tests.kit.shown import shown

if TYPE_CHECKING:
    from pathlib import Path

    from epp.schedule.decision import Decision, Outcome

POOL = tuple(Endpoint(f"10.0.0.{number}:8000") for number in range(1, 4))
WORDS = "all that was said so far, at such a length that there is something to cache. "
FORETOLD = "epp_ttft_prediction_ratio"


@dataclass
class Clock:
    now_s: float = 100.0

    def mono_s(self) -> float:
        return self.now_s

    def wall_s(self) -> float:
        return 1_700_000_000.0 + self.now_s


@dataclass
class Deployment:
    """A picker without sockets, and what Envoy would tell it."""

    folder: Path
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        self.app = App(parse_config("{}", "epp.yaml"), self.folder, "epp.yaml", self.clock)
        self.core, self.fleet = self.app.core, self.app.picker.fleet
        self.app.picker.set_pool(POOL, self.clock.now_s)
        for number, endpoint in enumerate(POOL):
            self.fleet.assume_rtt(endpoint.address, 10.0 + number)

    def decide(self, messages: list[dict[str, str]], **fields: Any) -> Decision:
        body = json.dumps({"model": "m", "messages": messages, **fields}).encode()
        headers = {"content-type": "application/json"}
        decided = self.core.decide(HttpRequest("POST", "/v1/chat/completions", headers, body))
        assert not isinstance(decided, Refusal)
        return decided.decision

    def ended(self, decision: Decision, **facts: Any) -> None:
        """The stream ends, then Envoy reports."""
        self.clock.now_s += 1.0
        self.core.outcomes.stream_ended(decision.id, Cause.STREAM_END.value)
        self.core.outcomes.finished(report(decision, **facts))

    def slot(self, address: str) -> int:
        slot = self.fleet.slot_of(address)
        assert slot is not None
        return slot


def report(decision: Decision, **facts: Any) -> Report:
    values: dict[str, Any] = {
        "decision_id": decision.id, "status": 200, "cause": Termination.COMPLETED, "flags": (), "details": "",
        "picked": tuple(decision.destination.split(",")), "served": decision.endpoint, "relayed": False,
        "attempts": 1,
        "request_bytes": 2, "response_bytes": 300, "started_wall_s": 0.0, "ttft_ms": 50.0, "e2e_ms": 900.0,
        "received_ms": 0.1, "sent_ms": 1.0, "headers_ms": 49.0, "connect_ms": math.nan,
        "connected_anew": None, "streamed": True, "encoding": "", "chunks": 7, "usage": NO_USAGE,
    }  # fmt: skip
    return Report(**{**values, **facts})


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    return Deployment(tmp_path)


def test_an_answer_that_the_next_prompt_extends_is_credited(deployment: Deployment) -> None:
    question = {"role": "user", "content": WORDS * 40}
    answer = {"role": "assistant", "content": "an answer of many words. " * 80}
    first = deployment.decide([question])
    tokens = first.request.prompt_tokens
    deployment.ended(first, usage=Usage(tokens, 500, 0))
    follow = deployment.decide([question, answer, {"role": "user", "content": "and then?"}])
    assert follow.endpoint == first.endpoint
    cached = follow.fleet.cached_tokens[follow.chosen]
    assert cached == pytest.approx(tokens + 500, abs=2), "the prompt and the answer to it"
    assert cached < follow.request.prompt_tokens
    others = [row for row in range(3) if row != follow.chosen]
    assert follow.fleet.cached_tokens[others].tolist() == [0.0, 0.0]


def test_without_a_count_only_the_prompt_is_credited(deployment: Deployment) -> None:
    question = {"role": "user", "content": WORDS * 40}
    first = deployment.decide([question])
    deployment.ended(first)
    follow = deployment.decide([question, {"role": "assistant", "content": "x " * 900}])
    assert follow.fleet.cached_tokens[follow.chosen] <= first.request.prompt_tokens


async def test_bytes_per_token_follow_the_engines_count_and_survive_absurd_ones(
    deployment: Deployment,
) -> None:
    question = {"role": "user", "content": WORDS * 40}
    first = deployment.decide([question])
    before = first.request.prompt_tokens
    for _ in range(200):
        deployment.ended(deployment.decide([question]), usage=Usage(round(before * 1.25), 5, None))
    assert deployment.decide([question]).request.prompt_tokens == pytest.approx(before * 1.25, rel=0.02)
    settled = deployment.decide([question]).request.prompt_tokens
    for absurd in (0, 1, 10**15):
        deployment.ended(deployment.decide([question]), usage=Usage(absurd, 5, None))
    assert deployment.decide([question]).request.prompt_tokens == pytest.approx(settled, rel=0.03)
    head = str(explain(json.loads(json.dumps(to_record(deployment.decide([question])), default=list)))[0])
    assert "estimated at 3." in head


def test_connects_of_real_requests_tell_the_distance(deployment: Deployment) -> None:
    question = {"role": "user", "content": WORDS}
    decision = deployment.decide([question])
    slot = deployment.slot(decision.endpoint)
    deployment.ended(decision, connect_ms=3.0, connected_anew=False)
    assert deployment.fleet.rtt.source(slot, deployment.clock.now_s) == "assumed", "an old connection's"
    decision = deployment.decide([question])
    slot = deployment.slot(decision.endpoint)
    deployment.ended(decision, connect_ms=3.0, connected_anew=True)
    assert deployment.fleet.rtt.source(slot, deployment.clock.now_s) == "connect"
    assert deployment.fleet.rtt.rtt_ms(deployment.clock.now_s)[slot] == 3.0


async def test_connections_of_real_requests_tell_what_the_next_one_costs(deployment: Deployment) -> None:
    question = {"role": "user", "content": WORDS}
    before = deployment.decide([question])
    assert before.fleet.cold_chance.tolist() == [0.0] * 3
    deployment.ended(before)
    assert deployment.decide([question]).fleet.cold_chance.tolist() == [0.0] * 3, (
        "an Envoy that does not tell"
    )
    decision = deployment.decide([question])
    deployment.ended(decision, connect_ms=3.0, connected_anew=True, opened_ms=7.0)
    fleet = deployment.decide([question]).fleet
    row = fleet.endpoints.index(decision.endpoint)
    assert 0.0 < fleet.cold_chance[row] < 0.5, "its connection is idle now"
    assert fleet.connect_ms[row] == 7.0


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
    caplog.set_level("INFO", "epp.server.outcomes")
    question = {"role": "user", "content": WORDS * 40}
    first = deployment.decide([question])
    slot = deployment.slot(first.endpoint)
    deployment.ended(first)
    for number in range(20):
        deployment.clock.now_s -= 0.9
        decision = deployment.decide([question])
        if decision.endpoint == first.endpoint:
            deployment.ended(decision, **({} if number % 4 == 0 else facts))
    assert (deployment.fleet.health.state(slot) is State.EJECTED) is bool(why)
    told = f"endpoint {first.endpoint} is ejected: requests on it failed, the last: {why}"
    assert own_lines(caplog) == [told] * bool(why)


def test_a_failure_that_both_the_stream_and_envoy_tell_counts_once(deployment: Deployment) -> None:
    question = {"role": "user", "content": WORDS * 40}
    for number in range(1, 6):
        decision = deployment.decide([question])
        slot = deployment.slot(decision.endpoint)
        deployment.core.response_started(decision.id, 503)
        deployment.core.outcomes.stream_ended(decision.id, Cause.COMPLETED.value)
        for _ in range(2):  # an Envoy with two access logs
            deployment.core.outcomes.finished(report(decision, status=503))
        assert (deployment.fleet.health.state(slot) is State.EJECTED) is (number == 5), number


def test_what_envoy_alone_can_tell_of_a_request_counts_beside_what_the_stream_showed(
    deployment: Deployment,
) -> None:
    decision = deployment.decide([{"role": "user", "content": WORDS}])
    other = next(endpoint.address for endpoint in POOL if endpoint.address != decision.endpoint)
    deployment.core.response_started(decision.id, 200, other)
    deployment.core.outcomes.stream_ended(decision.id, Cause.COMPLETED.value)
    facts = {"served": other, "attempts": 2, "cause": Termination.RETRIED_ELSEWHERE}
    deployment.core.outcomes.finished(report(decision, connect_ms=3.0, connected_anew=True, **facts))
    shares = [
        deployment.fleet.health.error_share(deployment.slot(name)) for name in (decision.endpoint, other)
    ]
    assert shares == [1.0, 0.0]
    slot = deployment.slot(other)
    assert deployment.fleet.rtt.source(slot, deployment.clock.now_s) == "connect"


async def test_a_first_token_that_the_stream_showed_before_is_no_late_report(deployment: Deployment) -> None:
    decision = deployment.decide([{"role": "user", "content": "hello"}], stream=True)
    deployment.core.outcomes.first_token(decision.id, Source.STREAM)
    deployment.core.outcomes.first_token(decision.id)
    assert "epp_late_reports_total 0.0" in (await deployment.app.metrics.page()).decode()


async def test_a_first_token_behind_its_own_report_is_no_late_report(deployment: Deployment) -> None:
    decision = deployment.decide([{"role": "user", "content": "hello"}], stream=True)
    deployment.ended(decision)
    deployment.core.outcomes.first_token(decision.id)
    assert "epp_late_reports_total 0.0" in (await deployment.app.metrics.page()).decode()
    deployment.core.outcomes.first_token("nobody-1")
    deployment.core.outcomes.finished(report(decision))
    assert "epp_late_reports_total 2.0" in (await deployment.app.metrics.page()).decode()


async def test_a_stream_that_ends_behind_its_own_report_is_no_late_report(deployment: Deployment) -> None:
    told: list[Outcome] = []
    deployment.core.outcomes.told.append(told.append)
    decision = deployment.decide([{"role": "user", "content": "hello"}])
    deployment.core.outcomes.finished(report(decision))
    deployment.core.outcomes.observed(decision.id, chunks=7)
    deployment.core.outcomes.stream_ended(decision.id, Cause.STREAM_END.value)
    assert "epp_late_reports_total 0.0" in (await deployment.app.metrics.page()).decode()
    deployment.core.outcomes.observed("nobody-1", chunks=7)
    deployment.core.outcomes.stream_ended("nobody-1", Cause.STREAM_END.value)
    assert "epp_late_reports_total 2.0" in (await deployment.app.metrics.page()).decode()
    assert len(told) == 1


async def test_the_report_of_an_answer_that_the_stream_showed_is_no_late_report(
    deployment: Deployment,
) -> None:
    told: list[Outcome] = []
    deployment.core.outcomes.told.append(told.append)
    decision = deployment.decide([{"role": "user", "content": "hello"}])
    deployment.core.outcomes.stream_ended(decision.id, Cause.COMPLETED.value)
    deployment.core.outcomes.finished(report(decision))
    assert "epp_late_reports_total 0.0" in (await deployment.app.metrics.page()).decode()
    deployment.core.outcomes.finished(report(decision))
    assert "epp_late_reports_total 1.0" in (await deployment.app.metrics.page()).decode(), "a second"
    assert len(told) == 1


async def test_how_long_a_client_takes_to_send_its_request_is_no_engines_time(tmp_path: Path) -> None:
    learned = []
    for number, upload_ms in enumerate((0.0, 8_000.0)):
        folder = tmp_path / str(number)
        folder.mkdir()
        deployment = Deployment(folder)
        for _ in range(100):
            decision = deployment.decide([{"role": "user", "content": WORDS * 40}], stream=True)
            times = {
                "ttft_ms": 150.0,
                "e2e_ms": 900.0,
                "received_ms": 0.0,
                "sent_ms": 1.0,
                "headers_ms": 149.0,
            }
            deployment.ended(decision, **{name: upload_ms + time for name, time in times.items()})
        rates = deployment.fleet.rates
        assert max(evidence.open_s for evidence in rates._slow._evidence) <= deployment.clock.now_s
        text = (await deployment.app.metrics.page()).decode()
        told_s = [float(line.split()[1]) for line in text.splitlines() if line.startswith(f"{FORETOLD}_sum ")]
        learned.append([*rates.block()[:, 0].tolist(), *told_s])
    assert learned[1] == pytest.approx(learned[0], rel=0.1)


def test_a_retry_elsewhere_is_told_apart_from_the_pick(deployment: Deployment) -> None:
    told: list[Outcome] = []
    deployment.core.outcomes.told.append(told.append)
    decision = deployment.decide([{"role": "user", "content": WORDS * 40}])
    other = next(endpoint.address for endpoint in POOL if endpoint.address != decision.endpoint)
    deployment.ended(
        decision, served=other, attempts=2, cause=Termination.RETRIED_ELSEWHERE, usage=Usage(900, 5, 0)
    )
    (outcome,) = told
    assert (outcome.endpoint, outcome.served, outcome.attempts) == (decision.endpoint, other, 2)
    assert outcome.cause == "retried-elsewhere"
    assert outcome.itl_ms == pytest.approx(850.0 / 4)
    assert deployment.fleet.index.tokens(deployment.slot(other)) > 0


async def test_who_only_answers_for_others_has_outcomes_under_its_own_name(deployment: Deployment) -> None:
    deployment.app._pool.apply({endpoint.address: EndpointSpec(endpoint.address) for endpoint in POOL})
    try:
        decision = deployment.decide([{"role": "user", "content": WORDS}])
        other = next(endpoint.address for endpoint in POOL if endpoint.address != decision.endpoint)
        deployment.ended(decision, served=other, attempts=2, cause=Termination.RETRIED_ELSEWHERE)
        text = (await deployment.app.metrics.page()).decode()
        assert f'epp_outcomes_total{{endpoint="{other}",cause="retried-elsewhere",status="2xx"}} 1.0' in text
        assert 'endpoint="gone"' not in text
    finally:
        await deployment.app.tasks.stop_all()


def test_a_picker_without_a_secret_says_what_that_costs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Deployment(tmp_path)
    assert "conversations move to other endpoints when it restarts" in caplog.text
    assert "records" not in "".join(own_lines(caplog)), "nothing is recorded, so nothing is lost"
    caplog.clear()
    (tmp_path / "secret").write_text("0123456789abcdef0123456789abcdef")
    few = "listen: {max_connections: 1}"  # of more it may say that too few files may be open for them
    config = parse_config(f"{few}\nprefix: {{secret_file: secret}}", "epp.yaml")
    App(config, tmp_path, "epp.yaml", Clock())
    assert not own_lines(caplog)


def test_an_endpoint_is_judged_by_headers_where_nothing_else_is_shown(deployment: Deployment) -> None:
    deployment.app.picker.set_pool(POOL[:1], deployment.clock.now_s)
    states = []
    for status in (500, 500, 200, 500, 404, 500, 200, 500, 500, 500, 500, 500):
        decision = deployment.decide([{"role": "user", "content": WORDS}])
        deployment.core.response_started(decision.id, status)
        deployment.core.outcomes.stream_ended(decision.id, Cause.STREAM_END.value)
        deployment.clock.now_s += 3.0
        deployment.core.outcomes.expire()
        states.append(deployment.fleet.health.state(deployment.slot(POOL[0].address)))
    assert states == [State.HEALTHY] * 11 + [State.EJECTED], "five in a row"


def test_a_report_that_comes_too_late_counts_no_failure_twice(deployment: Deployment) -> None:
    decision = deployment.decide([{"role": "user", "content": WORDS}])
    deployment.core.response_started(decision.id, 500)
    deployment.core.outcomes.stream_ended(decision.id, Cause.STREAM_END.value)
    deployment.clock.now_s += 3.0
    deployment.core.outcomes.expire()
    deployment.core.outcomes.finished(report(decision, status=500))
    assert deployment.fleet.health._slots[deployment.slot(decision.endpoint)].failures == {"outcome": 1}
    assert shown(deployment.app.metrics, "epp_late_reports_total") == 1.0


def test_an_answer_that_outlasts_its_prediction_is_told_by_its_report(deployment: Deployment) -> None:
    """Else short answers alone would be learned from, and answers be foretold ever shorter."""
    told: list[Outcome] = []
    outcomes, ledger = deployment.core.outcomes, deployment.fleet.ledger
    outcomes.told.append(told.append)
    deployment.ended(deployment.decide([{"role": "user", "content": "hello"}]))  # Envoy reports
    decision = deployment.decide([{"role": "user", "content": WORDS}], stream=True)
    before = deployment.fleet.answers.expected("m")
    outcomes.stream_ended(decision.id, Cause.UNOBSERVED.value, predicted=True)
    assert not ledger.running_requests.any()
    deployment.clock.now_s += 20.0
    outcomes.expire()
    assert len(told) == 1
    usage = Usage(decision.request.prompt_tokens, 2000, None)
    outcomes.finished(report(decision, usage=usage, e2e_ms=40_000.0, chunks=2000))
    assert (told[1].cause, told[1].e2e_ms, told[1].sources["e2e_ms"]) == ("completed", 40_000.0, Source.ENVOY)
    assert deployment.fleet.answers.expected("m") > before
    deployment.clock.now_s += 60.0
    outcomes.expire()
    assert len(told) == 2


@pytest.mark.parametrize(("reporting", "wait_s"), [(False, 2.0), (True, 30.0)])
def test_a_report_that_does_not_come_is_not_waited_for_for_ever(
    deployment: Deployment, reporting: bool, wait_s: float
) -> None:
    told: list[Outcome] = []
    outcomes = deployment.core.outcomes
    if reporting:
        deployment.ended(deployment.decide([{"role": "user", "content": "hello"}]))
    outcomes.told.append(told.append)
    foretold, seen = (deployment.decide([{"role": "user", "content": WORDS}]) for _ in range(2))
    outcomes.stream_ended(foretold.id, Cause.UNOBSERVED.value, predicted=True)
    outcomes.stream_ended(seen.id, Cause.STREAM_END.value)
    deployment.clock.now_s += wait_s - 0.5
    outcomes.expire()
    assert [outcome.id for outcome in told] == ([seen.id] if reporting else [])
    deployment.clock.now_s += 0.5
    outcomes.expire()
    assert {outcome.id for outcome in told} == {foretold.id, seen.id}
    assert told[-1].sources["e2e_ms"] == (Source.PREDICTED if reporting else Source.STREAM)
