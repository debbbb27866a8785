"""Wrong answers, without a socket: the capability file in force, what clients are told and what they tell."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from epp.metrics.metrics import Metrics
from epp.metrics.table import TABLE
from epp.records.files import read_records
from epp.records.recorder import FileRecorder
from epp.server.health_thread import build_app
from epp.server.process import DecisionIds
from epp.types import Endpoint
from tests.kit.apps import app_of, ask, rewrite
from tests.kit.clock import ManualClock
from tests.kit.records import command, decided, recorder_to

if TYPE_CHECKING:
    from pathlib import Path

    from epp.extproc.types import HttpRequest
    from epp.server.app import App

CAPABILITY = {
    "models": {
        "small": [{"language": "en", "bucket_tokens": 1024, "success": 0.2}],
        "large": [{"language": "en", "bucket_tokens": 1024, "success": 0.9}],
    }
}


def app(folder: Path, **sections: Any) -> App:
    config = {
        "policy": {"name": "laar", "fallbacks": 0, "tolerance": 0.0},
        "pool": {"warmup_s": 0},
        "capability": {"file": "capability.yaml", "tell_model": True},
        **sections,
    }
    made = app_of(folder, ManualClock(1000.0), **config)
    pool = [("10.0.0.1:1", "small"), ("10.0.0.2:1", "large"), ("10.0.0.3:1", "large")]
    made.scheduler.set_pool(
        [Endpoint(address, models=frozenset({"chat"}), served_names={"chat": own}) for address, own in pool],
        0.0,
    )
    return made


def write(made: App, folder: Path, content: object) -> None:
    rewrite(made, folder / "capability.yaml", None if content is None else json.dumps(content))


def test_the_better_model_is_picked_and_after_it_the_other(tmp_path: Path) -> None:
    made = app(tmp_path)
    write(made, tmp_path, CAPABILITY)
    first = ask(made)
    assert first.pick.response_headers == {"x-epp-served-model": "large", "x-epp-untried-models": "1"}
    assert first.pick.metadata["model_served"] == "large"
    assert first.pick.metadata["models_untried"] == "1"
    second = ask(made, x_epp_tried_models="large")
    assert second.pick.response_headers == {"x-epp-served-model": "small", "x-epp-untried-models": "0"}
    third = ask(made, x_epp_tried_models="large,small")
    assert third.pick.response_headers == {"x-epp-served-model": "large", "x-epp-untried-models": "0"}


@pytest.mark.parametrize("name", ["a\r\nset-cookie: x=1", "a\nb", "a\x00", "\x7f", "\t"])
def test_a_clients_own_name_for_a_model_writes_no_headers(tmp_path: Path, name: str) -> None:
    made = app(tmp_path, policy={"name": "least-request"})
    made.scheduler.set_pool([Endpoint("10.0.0.1:1")], 0.0)  # of any model
    for model, headers in (
        (name, {}),
        ("chat-ü", {"x-epp-served-model": "chat-ü", "x-epp-untried-models": "0"}),
    ):
        found = ask(made, model=model)
        assert found.pick.response_headers == headers
        assert ("model_served" in found.pick.metadata) is bool(headers)


def test_a_bad_file_changes_nothing_and_a_good_one_everything_at_once(tmp_path: Path) -> None:
    made = app(tmp_path)
    write(made, tmp_path, CAPABILITY)
    write(made, tmp_path, {"models": {"large": [{"language": "en", "bucket_tokens": 1000, "success": 1}]}})
    assert ask(made).decision.snapshot.success.tolist() == [0.2, 0.9, 0.9]
    models = CAPABILITY["models"]
    write(made, tmp_path, {"models": {"small": models["large"], "large": models["small"]}})
    assert ask(made).decision.upstream_model == "small"
    write(made, tmp_path, None)
    assert ask(made).decision.snapshot.success.tolist() == [1.0, 1.0, 1.0]


def test_clients_are_told_only_where_the_operator_says_so(tmp_path: Path) -> None:
    pick = ask(app(tmp_path, capability={})).pick
    assert not pick.response_headers
    assert "models_untried" not in pick.metadata


def client(verdict: Any = None, preview: Any = None) -> TestClient[Any, Any]:
    health: Any = SimpleNamespace(on_picker_loop=lambda handler, _=0: handler, not_live=str, not_ready=str)
    made = build_app(
        metrics=Metrics(TABLE),
        health=health,
        names=frozenset({"picker.example"}),
        decision=lambda _: b"",
        decided=lambda decision_id: not decision_id.startswith("unknown"),
        verdict=verdict,
        preview=preview,
    )
    return TestClient(TestServer(made))


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("ab-1", {"correct": True}, 202),
        ("ab-1", {"correct": False, "score": 0.25, "evaluator": "exact-match"}, 202),
        ("unknown-1", {"correct": True}, 404),
        ("ab-1", {}, 400),
        ("ab-1", {"correct": "yes"}, 400),
        ("ab-1", {"correct": True, "text": "what it said"}, 400),
        ("ab-1", {"correct": True, "score": 7}, 400),
        ("ab-1", {"correct": True, "evaluator": "two words"}, 400),
        ("a b", {"correct": True}, 400),
        ("x" * 200, {"correct": True}, 400),
        ("ab-1", {"correct": True, "evaluator": "x" * 5000}, 413),
    ],
)
async def test_feedback_is_taken_in_one_shape(path: str, body: object, status: int) -> None:
    told: list[Any] = []
    async with client(lambda verdict, _: told.append(verdict)) as http:
        answer = await http.post(f"/decisions/{path}/feedback", json=body)
        assert answer.status == status, await answer.text()
    assert len(told) == (status == 202)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"origin": "http://elsewhere.example:9090"}, 403),
        ({"content-type": "text/plain"}, 415),
        ({"host": "evil.example"}, 421),
    ],
)
async def test_whoever_may_see_the_page_may_ask_what_would_be_picked(
    headers: dict[str, str], status: int
) -> None:
    asked: list[HttpRequest] = []

    async def preview(request: HttpRequest) -> bytes:
        asked.append(request)
        return b"{}"

    told = {"content-type": "application/json", "X-Session-Id": "s", "x-epp-peer": "eu", **headers}
    async with client(preview=preview) as http:
        answer = await http.post("/preview/v1/completions?a=b", data=b'{"a": 1}', headers=told)
    assert answer.status == status
    assert len(asked) == (status == 200)
    for request in asked:
        assert (request.method, request.path, request.body) == ("POST", "/v1/completions?a=b", b'{"a": 1}')
        assert request.headers["x-session-id"] == "s"
        assert "x-epp-peer" not in request.headers, "which only a peer region may say, and uses a token up"


async def test_nobody_may_ask_where_the_page_is_off() -> None:
    async with client() as http:
        assert (await http.post("/preview/v1/completions", json={})).status == 404


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 202),
        ({"content-type": "application/json; charset=utf-8"}, 202),
        ({"origin": "http://picker.example:9090"}, 202),
        ({"origin": "http://picker.example"}, 403),
        ({"origin": "http://elsewhere.example:9090"}, 403),
        ({"origin": "null"}, 403),
        ({"content-type": "text/plain"}, 415),
        ({"content-type": "application/x-www-form-urlencoded"}, 415),
    ],
)
async def test_feedback_comes_as_json_and_from_no_page_of_others(
    headers: dict[str, str], status: int
) -> None:
    told: list[Any] = []
    usual = {"content-type": "application/json", "host": "picker.example:9090"}
    async with client(lambda verdict, _: told.append(verdict)) as http:
        answer = await http.post(
            "/decisions/ab-1/feedback", data=b'{"correct": true}', headers=usual | headers
        )
        assert answer.status == status
    assert len(told) == (status == 202)


@pytest.mark.parametrize(
    "host", ["127.0.0.1:9090", "[::1]:9090", "localhost", "LocalHost:80", "Picker.example:1"]
)
async def test_pages_answer_to_addresses_and_known_names(host: str) -> None:
    async with client() as http:
        answer = await http.get("/decisions/last", headers={"host": host})
        assert answer.status == 404, "it is answered: there is no decision"


@pytest.mark.parametrize(
    "host", ["evil.example:9090", "picker.example.evil", "localhost.evil:80", "", "1.2.3.4.evil"]
)
async def test_other_names_see_metrics_and_probes_alone(host: str) -> None:
    async with client(lambda *_: None) as http:
        for path, status in (("/decisions/last", 421), ("/metrics", 200), ("/livez", 200), ("/readyz", 200)):
            assert (await http.get(path, headers={"host": host})).status == status
        answer = await http.post("/decisions/ab-1/feedback", json={"correct": True}, headers={"host": host})
        assert answer.status == 421


async def test_the_command_tells_a_picker_and_the_recorder_has_it(tmp_path: Path) -> None:
    with recorder_to(tmp_path) as (recorder, _):
        assert isinstance(recorder, FileRecorder)
        decision, _ = decided(1)[0]
        recorder.record(decision)
        async with client(recorder.record) as http:
            url = str(http.make_url("/"))
            words = (decision.id, "--wrong", "--score", "0.5", "--evaluator", "me", "--url", url)
            assert await asyncio.to_thread(command, "feedback", *words) == 0
    (line,) = [record for record in read_records(tmp_path) if record["kind"] == "feedback"]
    assert {name: line[name] for name in ("id", "correct", "score", "evaluator")} == {
        "id": decision.id,
        "correct": False,
        "score": 0.5,
        "evaluator": "me",
    }


def test_a_process_knows_the_ids_that_it_made() -> None:
    ids, others = DecisionIds(), DecisionIds()
    made = [ids() for _ in range(20)]
    assert len(set(made)) == 20
    assert all(one in ids for one in made)
    prefix, _, last = made[-1].partition("-")
    after = f"{prefix}-{int(last, 16) + 1:x}"
    for unknown in (after, f"{prefix}-0", f"{prefix}-01", f"{prefix}-", prefix, f"{prefix}--1", "", others()):
        assert unknown not in ids
