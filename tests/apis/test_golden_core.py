"""What SDKs really send, through the whole core: each request decided, and hashed so that its cache is found."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from epp.apis.registry import find_parser
from epp.extproc.types import HttpRequest
from epp.lab.bench.rig import Rig
from epp.prefix_cache.blocks import BlockHasher
from epp.server.core import Decided
from epp.tokens.estimate import EstimateCounter
from tests.apis.test_golden import GOLDEN, REQUESTS

_GROWING = {"messages": "messages", "chat": "messages", "response items": "input"}
#: Requests whose conversation can go on: those with a list of messages or items.
GROWING = [
    pytest.param(request, field, id=f"{path.stem}: {request['name']}")
    for path in GOLDEN
    for request in json.loads(path.read_text(encoding="utf-8"))["requests"]
    for start, field in _GROWING.items()
    if request["name"].startswith(start) and request["method"] == "POST"
]


@pytest.fixture(scope="module")
def rig() -> Rig:
    return Rig(4)


def asked(request: dict[str, Any]) -> HttpRequest:
    body = base64.b64decode(request["body_base64"]) if "body_base64" in request else request["body"].encode()
    return HttpRequest(request["method"], request["path"], request["headers"], body or None)


def blocks(request: dict[str, Any], body: Any = None) -> list[int]:
    """Short blocks of one process of many that have the same secret."""
    one = asked(request)
    parser = find_parser(one.method, one.path, one.headers)
    assert parser is not None
    data = json.dumps(body).encode() if body is not None else one.body or b""
    hasher = BlockHasher(b"the deployment's secret", 32)
    return list(hasher.measure(parser.parse(data, one.headers), EstimateCounter()).blocks)


def unmarked(value: Any) -> Any:
    """Without any of Anthropic's marks for caching."""
    if isinstance(value, dict):
        return {name: unmarked(inner) for name, inner in value.items() if name != "cache_control"}
    return [unmarked(inner) for inner in value] if isinstance(value, list) else value


@pytest.mark.parametrize("request_", REQUESTS)
def test_every_request_gets_an_endpoint(rig: Rig, request_: dict[str, Any]) -> None:
    decided = rig.core.decide(asked(request_))
    assert isinstance(decided, Decided), decided
    assert decided.decision.api == (request_["api"] or "")
    assert decided.pick.destination.split(":")[0].startswith("10.")
    if request_["api"] not in (None, "anthropic-count-tokens"):
        assert decided.decision.request.prompt_tokens > 0


@pytest.mark.parametrize(("request_", "field"), GROWING)
def test_the_next_turn_has_the_blocks_of_the_turn_before(request_: dict[str, Any], field: str) -> None:
    before = json.loads(request_["body"])
    after = before | {field: [*before[field], {"role": "user", "content": "and then? " * 20}]}
    first, second = blocks(request_), blocks(request_, after)
    assert first == blocks(request_), "another process with the secret hashes alike"
    assert len(second) > len(first) > 0
    assert second[: len(first)] == first


@pytest.mark.parametrize("request_", [case for case in REQUESTS if "anthropic" in str(case.id)])
def test_marks_for_caching_change_no_block(request_: dict[str, Any]) -> None:
    if request_["api"] != "anthropic-messages":
        return
    body = json.loads(request_["body"])
    plain = unmarked(body)
    for message in body["messages"]:
        if isinstance(message["content"], list):
            message["content"][-1]["cache_control"] = {"type": "ephemeral", "ttl": "1h"}
    assert blocks(request_, plain) == blocks(request_, body) == blocks(request_)
