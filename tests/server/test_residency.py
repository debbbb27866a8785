"""Rules of residency as a picker reads them of requests whose body, or host, says where they may go."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from epp.extproc.types import HttpRequest
from epp.types import Endpoint
from tests.kit.apps import app_of
from tests.kit.clock import ManualClock
from tests.kit.requests import Decided, decide

if TYPE_CHECKING:
    from pathlib import Path

RULES = [
    {"allow": ["eu"], "model": "eu-*"},
    {"allow": ["eu"], "header": "Host", "value": "eu.example"},
    {"allow": ["us"], "model": "us-*", "path_prefix": "/us/"},
]
CHAT = "/v1/chat/completions"


def body(model: str) -> bytes:
    return json.dumps({"model": model, "messages": [{"role": "user", "content": "hello"}]}).encode()


@pytest.mark.parametrize(
    ("request_", "bound"),
    [
        (HttpRequest("POST", CHAT, {}, body("eu-x")), True),
        (HttpRequest("POST", CHAT, {}, body("x")), False),
        (HttpRequest("POST", CHAT, {":authority": "eu.example"}, body("x")), True),
        (HttpRequest("GET", "/v1/models", {}, None), False),
        # Bodies that nobody reads may name any model: audio, compressed, too long to be held, WebSockets.
        (
            HttpRequest("POST", "/v1/audio/transcriptions", {"content-type": "multipart/form-data"}, b"x"),
            True,
        ),
        (HttpRequest("POST", CHAT, {"content-encoding": "gzip"}, b"x"), True),
        (HttpRequest("POST", CHAT, {}, None, whole=False), True),
        (HttpRequest("GET", "/v1/realtime", {"upgrade": "websocket"}, None, whole=False), True),
    ],
)
def test_what_a_rule_may_bind_it_binds(tmp_path: Path, request_: HttpRequest, bound: bool) -> None:
    made = app_of(tmp_path, ManualClock(1000.0), regions=RULES, policy={"name": "random"})
    made.scheduler.set_pool([Endpoint("10.0.0.1:1", region="eu"), Endpoint("10.0.0.2:1", region="us")], 0.0)
    seen = set()
    for _ in range(30):
        decided = decide(made.director, request_)
        assert isinstance(decided, Decided)
        seen.add(decided.decision.endpoint)
    assert seen == ({"10.0.0.1:1"} if bound else {"10.0.0.1:1", "10.0.0.2:1"})
