"""What llm-d's plugins ask for beyond a snapshot: a picker fills it in, records keep it, and run again by it."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

import pytest

from epp.errors import NoEndpointError
from epp.llmd.flags import read_flags
from epp.llmd.settings import translate
from epp.policies.registry import create
from epp.records.schema import decision_of
from epp.schedule.decision import Decision, rerun, to_record
from epp.signals.metrics_text import Adapters, parse_metrics
from epp.types import Endpoint, RequestInfo
from tests.kit.records import picker_of

PARAMS: dict[str, Any] = {
    "filters": {
        "decode": {"type": "decode-filter"},
        "admit": {"type": "probabilistic-admitter", "k": 1e9},
    },
    "scorers": {
        "lru": {"type": "no-hit-lru-scorer"},
        "tier": {"type": "header-label-affinity-scorer", "headerName": "X-Tier", "labelKey": "tier"},
        "lora": {"type": "lora-affinity-scorer"},
    },
    "scorer_weights": {"lru": 1.0, "tier": 4.0, "lora": 0.1},
}
POOL = [
    Endpoint("10.0.0.1:80", labels={"tier": "gold"}),
    Endpoint("10.0.0.2:80"),
    Endpoint("10.0.0.3:80", labels={"llm-d.ai/role": "prefill"}),
]
LORA = b"""vllm:num_requests_waiting 9
vllm:lora_requests_info{max_lora="1",running_lora_adapters="old",waiting_lora_adapters=""} 1.0
vllm:lora_requests_info{max_lora="1",running_lora_adapters="m, n",waiting_lora_adapters="w"} 2.0
"""


@pytest.mark.parametrize(
    ("policy", "params", "headers"),
    [
        ("llm-d-profile", PARAMS, {"x-tier"}),
        ("llm-d-profiles", {"profiles": {"decode": PARAMS, "other": {}}}, {"x-tier", "epp-profile"}),
    ],
)
def test_a_picker_fills_in_what_plugins_ask_for_and_a_record_runs_again_by_it(
    policy: str, params: dict[str, Any], headers: set[str]
) -> None:
    scheduler = picker_of(policy, params=params, pool=POOL)
    assert scheduler.headers_read == frozenset(headers)

    def pick(model: str = "", **headers: str) -> Decision:
        return scheduler.decide(RequestInfo(model=model, headers=headers), 1.0, 1.0)

    first, second = pick(), pick()
    assert (first.endpoint, second.endpoint) == ("10.0.0.1:80", "10.0.0.2:80"), "who had no cold request yet"
    assert first.excluded == {"labels": ("10.0.0.3:80",)}
    third = pick()
    assert third.endpoint == "10.0.0.1:80", "whose last one is the older"
    assert third.snapshot.extra["cold_place:1024"].tolist() == [0.0, 1.0]
    assert pick(**{"x-tier": "gold"}).endpoint == "10.0.0.1:80"
    for made in (first, third):
        read = decision_of(json.loads(json.dumps(to_record(made))))
        assert read.policy == "llm-d-profile"
        again = rerun(read, create(read.policy, read.params))
        assert again.ranking.costs.tolist() == made.ranking.costs.tolist()
    scheduler.datastore.engine.update(1, parse_metrics(LORA), 1.0)
    assert scheduler.datastore.engine.adapters(1) == Adapters(frozenset("mn"), frozenset("w"), 1)
    assert [pick(model).ranking.terms["lora"][1] for model in ("m", "w", "x")] == [1.0, 0.6, 0.0]
    with pytest.raises(NoEndpointError, match="admit"):
        scheduler.decide(RequestInfo(priority=-1), 1.0, 1.0)


SESSIONS = """
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- {type: session-id-producer, name: chat, parameters: {cookieName: chat}}
- {type: agent-identity, parameters: {additionalSessionHeaders: [X-Agent]}}
- {type: session-affinity-filter, parameters: {strategy: session_id, sessionIdConfig: {evictionTtlSeconds: 10,
    sources: [{header: X-Id}, {attribute: SessionID, producer: chat}, {attribute: agent-identity}]}}}
- {type: session-affinity-scorer, parameters: {encodedEndpointHeaderConfig: {header: X-Back}}}
- {type: token-load-scorer}
"""


def test_sessions_stay_where_they_are_bound() -> None:
    found = translate(read_flags({"pool-name": "p"}), SESSIONS, {}).config.policy
    scheduler = picker_of(found.name, params=found.params, pool=POOL)
    assert scheduler.headers_read is not None
    assert scheduler.headers_read >= {"x-id", "cookie", "x-agent", "session_id", "x-back"}
    assert scheduler.session_tokens == {"x-back"}

    def pick(now_s: float, **headers: str) -> str:
        told = {name.replace("_", "-"): value for name, value in headers.items()}
        return scheduler.decide(RequestInfo(headers=told), now_s, now_s).endpoint

    homes = {
        header: pick(1.0, **{header: value})
        for header, value in (("x_id", "a"), ("cookie", "x=y; chat=b"), ("x_agent", "c"))
    }
    for _ in range(5):
        assert pick(2.0, x_id="a") == homes["x_id"]
        assert pick(2.0, cookie="chat=b", x_agent="other") == homes["cookie"]
        assert pick(2.0, x_agent="c") == homes["x_agent"]
        assert pick(2.0, x_back=b64encode(b"10.0.0.3:80").decode()) == "10.0.0.3:80"
    scheduler.set_pool([endpoint for endpoint in POOL if endpoint.address != homes["x_id"]], 3.0)
    moved = pick(3.0, x_id="a")
    assert moved != homes["x_id"]
    scheduler.set_pool(POOL, 4.0)
    assert {pick(4.0, x_id="a") for _ in range(5)} == {moved}
    assert len({pick(100.0 + number, x_id=f"new {number}") for number in range(20)}) > 1


ABOVE = {"type": "threshold", "threshold": {"operator": "GreaterThan", "value": 0.5}}
LINEAR = {"type": "linear_lower_is_better"}
FIXED = {**LINEAR, "normalization": {"fixedRange": {"min": 0.0, "max": 0.5}}}


@pytest.mark.parametrize(
    ("plugins", "kept", "scores"),
    [
        ({}, [True, True, True], [1.0, 0.0, 0.0]),
        ({"algorithm": ABOVE}, [False, True, True], None),
        ({"algorithm": ABOVE, "onMissing": "Fail"}, [False, True, False], None),
        ({"scorer": FIXED}, [True, True, True], [0.6, 0.0, 0.0]),
    ],
)
def test_endpoints_by_the_utilization_of_their_gpus(
    plugins: dict[str, Any], kept: list[bool], scores: list[float] | None
) -> None:
    at = {"producer": "dcgm-extractor"}
    params: dict[str, Any] = {
        "scorers": {"gpu": {"type": "endpoint-attribute-scorer", "attributeKey": "GPUUtilization",
                            "algorithm": plugins.pop("scorer", LINEAR), **at}},
        "scorer_weights": {"gpu": 1.0},
    }  # fmt: skip
    if plugins:
        named = {"type": "endpoint-attribute-filter", "attribute": "GPUUtilization"}
        params["filters"] = {"gpu": {**named, **plugins, **at}}
    scheduler = picker_of("llm-d-profile", params=params, pool=POOL)
    for slot, utilization, read_s in ((0, 0.2, 50.0), (1, 0.9, 50.0), (2, 0.1, 10.0)):
        scheduler.datastore.engine.update_gpu(slot, utilization, read_s)  # the third is stale by now
    ranking = scheduler.decide(RequestInfo(), 50.0, 50.0).ranking
    assert [cost < 1e8 for cost in ranking.costs] == kept
    if scores is not None:
        assert [round(float(score), 6) for score in ranking.terms["gpu"]] == scores
