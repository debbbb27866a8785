"""A body over the limit is refused in the words of the API whose path it came on."""

from __future__ import annotations

import json
from typing import Any

import pytest

from epp.config.schema import Protocol
from epp.extproc.types import HttpRequest
from epp.server.gateway import Gateway

ANTHROPIC = {"type": "error", "error": {"type": "request_too_large"}}
OPENAI = {"error": {"type": "invalid_request_error"}}
VLLM = {"error": {"type": "RequestEntityTooLargeError", "code": 413}}


@pytest.mark.parametrize(
    ("path", "shape"),
    [
        ("/v1/messages", ANTHROPIC),
        ("/v1/chat/completions", OPENAI),
        ("/v1/rerank", VLLM),
        ("/generate", {"error": {}}),
        ("/upload", OPENAI),
    ],
)
def test_a_body_over_the_limit(path: str, shape: dict[str, Any]) -> None:
    gateway = Gateway(Protocol(), None, None)  # type: ignore[arg-type]  # nothing is picked here
    refusal = gateway.too_large(HttpRequest("POST", path, {}, None), 1000)
    told = json.loads(refusal.body)
    assert refusal.status == 413
    assert "1000 bytes" in told["error"].pop("message")
    for name in shape["error"]:
        assert told["error"][name] == shape["error"][name]
    assert told.get("type") == shape.get("type")
