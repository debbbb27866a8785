"""Requests given another model by a rule or a header: which rule holds, what is drawn, what each side sees."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from epp.extproc.types import DecideAt, HttpRequest, LocalReply
from epp.schedule.model_rules import ModelRules, Rule
from epp.types import Endpoint
from tests.kit.apps import app_of
from tests.kit.replicas import metric
from tests.kit.requests import Decided, decide

if TYPE_CHECKING:
    from pathlib import Path

    from epp.server.app import App

HEADER = "x-llm-d-model-name-rewrite"
DECISIONS = "llm_d_epp_model_rewrite_decisions_total"


def test_a_rule_that_names_the_model_goes_first_then_the_older_and_the_first_of_a_list() -> None:
    rules = ModelRules(
        [
            Rule("old", (), (("any", 0),)),
            Rule("old", (), (("never", 0),)),
            Rule("old", ("a", "b"), (("first", 0),)),
            Rule("new", ("b", "c"), (("second", 0),)),
        ]
    )
    drawn = {model: rule.target("k") for model in ("a", "b", "c", "d", "") if (rule := rules.find(model))}
    assert drawn == {"a": "first", "b": "first", "c": "second", "d": "any", "": "any"}
    assert ModelRules([Rule("one", ("a",), ())]).find("b") is None
    assert Rule("one", ("a",), ()).target("k") == ""


@pytest.mark.parametrize(
    ("weights", "shares"), [((90, 10), (0.9, 0.1)), ((0, 0), (0.5, 0.5)), ((1_000_000, 0), (1.0, 0.0))]
)
def test_targets_are_drawn_by_weight_and_a_key_draws_again_what_it_drew(
    weights: tuple[int, int], shares: tuple[float, float]
) -> None:
    rule = Rule("canary", ("chat",), tuple(zip(("v1", "v2"), weights, strict=True)))
    drawn = [rule.target(f"session-{number}") for number in range(10_000)]
    assert drawn == [rule.target(f"session-{number}") for number in range(10_000)]
    counts = Counter(drawn)
    assert [counts[name] / 10_000 for name in ("v1", "v2")] == pytest.approx(shares, abs=0.015)


def app(folder: Path, *endpoints: Endpoint, rules: tuple[Rule, ...] = (), **config: Any) -> App:
    made = app_of(folder, **config)
    made.scheduler.set_pool(endpoints or [Endpoint("10.0.0.1:8000")], 0.0)
    made.director.use_model_rules(ModelRules(rules))
    return made


def chat(model: str | None = "chat", headers: dict[str, str] | None = None, **fields: Any) -> HttpRequest:
    named = {} if model is None else {"model": model}
    body = json.dumps({**named, "messages": [{"role": "user", "content": "né"}], **fields}).encode()
    return HttpRequest("POST", "/v1/chat/completions", headers or {}, body)


def sent(made: App, request: HttpRequest) -> Decided:
    decided = decide(made.director, request)
    assert isinstance(decided, Decided), decided
    return decided


def model_sent(made: App, request: HttpRequest) -> str:
    """What the engine is asked for."""
    body = sent(made, request).pick.body
    model: str = json.loads(request.body or b"" if body is None else body)["model"]
    return model


def read(made: App, name: str, **labels: str) -> float:
    return metric("".join(made.metrics.pieces()), name, labels)


def test_the_engine_gets_the_target_the_client_its_name_and_metrics_both(tmp_path: Path) -> None:
    made = app(tmp_path, rules=(Rule("canary", ("chat",), (("chat-v2", 1),)),))
    decided = sent(made, chat(temperature=0.10))
    assert json.loads(decided.pick.body or b"") == {
        "model": "chat-v2",
        "messages": [{"role": "user", "content": "né"}],
        "temperature": 0.1,
    }
    assert decided.decision.request.model == "chat-v2", "filters, tokenizers and the index know the target"
    assert decided.pick.metadata == {"model_public": "chat", "model_served": "chat-v2"}
    assert decided.pick.rewrite_response is not None
    restorer = decided.pick.rewrite_response({"content-type": "application/json"})
    assert restorer is not None
    assert restorer.feed(b'{"model":"chat-v2"}') == b'{"model":"chat"}'
    labels = {"model_name": "chat", "target_model_name": "chat-v2"}
    assert read(made, "llm_d_epp_request_total", **labels) == 1
    rewritten = {"model_rewrite_name": "canary", "model_name": "chat", "target_model": "chat-v2"}
    assert read(made, DECISIONS, **rewritten) == 1


def test_an_endpoints_own_name_is_that_of_the_target(tmp_path: Path) -> None:
    served = Endpoint("10.0.0.1:8000", models=frozenset({"chat-v2"}), served_names={"chat-v2": "org/chat-7b"})
    made = app(tmp_path, served, rules=(Rule("alias", (), (("chat-v2", 1),)),))
    assert model_sent(made, chat("anything")) == "org/chat-7b"
    made.director.use_model_rules(ModelRules([Rule("alias", ("anything",), (("gone", 1),))]))
    refusal = decide(made.director, chat("anything"))
    assert isinstance(refusal, LocalReply)
    assert refusal.status == 404
    assert b"anything" in refusal.body
    assert b"gone" not in refusal.body, "what the client did not name is not its business"
    labels = {"model_name": "anything", "target_model_name": "gone"}
    assert read(made, "llm_d_epp_request_error_total", **labels) == 1


def test_requests_that_no_rule_names_keep_their_bytes_and_their_series(tmp_path: Path) -> None:
    made = app(tmp_path, rules=(Rule("canary", ("other",), (("x", 1),)),))
    for request in (chat(), chat("m", {HEADER: "m"}), chat("m", {HEADER: ""})):
        pick = sent(made, request).pick
        assert pick.body is None
        assert pick.rewrite_response is None
        assert not pick.metadata
    assert read(made, "llm_d_epp_request_total", model_name="chat", target_model_name="chat") == 1
    with pytest.raises(KeyError):
        read(made, DECISIONS)


@pytest.mark.parametrize("name", [HEADER, "x-gateway-model-name-rewrite"])
def test_the_header_names_the_model_where_no_rule_does(tmp_path: Path, name: str) -> None:
    made = app(tmp_path, rules=(Rule("rule", ("ruled",), (("by-rule", 1),)), Rule("none", ("bare",), ())))
    assert model_sent(made, chat("free", {name: "by-header"})) == "by-header"
    assert model_sent(made, chat("bare", {name: "by-header"})) == "by-header", "a rule without targets"
    assert model_sent(made, chat("ruled", {name: "by-header"})) == "by-rule"
    both = {HEADER: "newer", "x-gateway-model-name-rewrite": "older"}
    assert model_sent(made, chat("free", both)) == "newer"
    refusal = decide(made.director, chat("free", {name: "x" * 513}))
    assert isinstance(refusal, LocalReply)
    assert refusal.status == 400


def test_a_missing_model_is_that_of_a_rule_for_any_or_of_the_header(tmp_path: Path) -> None:
    made = app(tmp_path)
    decided = sent(made, chat(None, {HEADER: "default"}))
    assert json.loads(decided.pick.body or b"")["model"] == "default"
    assert decided.pick.rewrite_response is None, "there is no name to give back"
    made.director.use_model_rules(ModelRules([Rule("any", (), (("default", 1),))]))
    assert model_sent(made, chat(None)) == "default"
    native = HttpRequest("POST", "/generate", {}, b'{"text": "hello"}')
    assert sent(made, native).pick.body is None, "an API whose requests name no model"


def test_a_missing_model_is_the_only_one_that_the_pool_serves(tmp_path: Path) -> None:
    pool = [
        Endpoint("10.0.0.1:8000", models=frozenset({"one", "sql"}), adapters=frozenset({"sql"})),
        Endpoint("10.0.0.2:8000", models=frozenset({"one"}), served_names={"one": "org/one"}),
    ]
    made = app(tmp_path, *pool)
    for missing in (chat(None), chat("")):
        decided = sent(made, missing)
        assert decided.decision.request.model == "one"
        assert decided.decision.request.namespace == sent(made, chat("one")).decision.request.namespace
        body = json.loads(decided.pick.body or missing.body or b"")
        assert body.get("model", "") == ("org/one" if decided.decision.endpoint == "10.0.0.2:8000" else "")
    assert sent(app(tmp_path), chat(None)).decision.request.model == "", "endpoints that serve any name"
    several = app(tmp_path, *pool, Endpoint("10.0.0.3:8000", models=frozenset({"two"})))
    for path in ("/v1/chat/completions", "/v1/embeddings"):
        body = b'{"messages": [{"role": "user", "content": "x"}]}'
        refusal = decide(several.director, HttpRequest("POST", path, {}, body))
        assert isinstance(refusal, LocalReply)
        error = json.loads(refusal.body)["error"]
        assert (refusal.status, error["param"]) == (400, "model")
        assert error["message"] == "you must provide a model parameter"
    native = HttpRequest("POST", "/generate", {}, b'{"text": "hello"}')
    assert sent(several, native).pick.body is None, "an API whose requests name no model"


def test_a_session_keeps_its_model_and_other_requests_are_drawn_by_their_id(tmp_path: Path) -> None:
    made = app(tmp_path, rules=(Rule("half", (), (("v1", 1), ("v2", 1))),))
    for headers in ({"x-session-id": "s"}, {}):  # without either the prompt is the key
        assert len({model_sent(made, chat(headers=headers)) for _ in range(8)}) == 1
    drawn = [model_sent(made, chat(headers={"x-request-id": f"r-{number}"})) for number in range(64)]
    assert 16 < drawn.count("v1") < 48
    assert drawn == [model_sent(made, chat(headers={"x-request-id": f"r-{number}"})) for number in range(64)]


def test_bodies_are_read_for_rules_and_the_header_alone(tmp_path: Path) -> None:
    made = app(tmp_path, policy={"name": "round-robin"})
    assert made.director.decide_at(chat()) is DecideAt.EITHER
    assert made.director.decide_at(chat(headers={HEADER: "m"})) is DecideAt.BODY
    made.director.use_model_rules(ModelRules([Rule("one", ("other",), (("x", 1),))]))
    assert made.director.decide_at(chat()) is DecideAt.BODY


def test_pairs_that_clients_make_up_do_not_become_series_without_end(tmp_path: Path) -> None:
    made = app(tmp_path)
    for number in range(400):
        sent(made, chat(f"m-{number % 20}", {HEADER: f"t-{number}"}))
    lines = [line for line in "".join(made.metrics.pieces()).splitlines() if "_request_total{" in line]
    assert len(lines) <= 101
