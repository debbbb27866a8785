"""Which requests are read, and which pass through unread."""

from __future__ import annotations

import pytest

from epp.apis.registry import error_words, find_parser

JSON = {"content-type": "application/json"}
WEBSOCKET = {"connection": "Upgrade", "upgrade": "websocket", "sec-websocket-version": "13"}


@pytest.mark.parametrize(
    ("path", "api"),
    [
        ("/v1/messages", "anthropic-messages"),
        ("/v1/messages?beta=true", "anthropic-messages"),
        ("/v1/messages/count_tokens", "anthropic-count-tokens"),
        ("/tenant/a/v1/messages/", "anthropic-messages"),
        ("/v1/responses", "openai-responses"),
        ("/v1/responses/resp_1/cancel", None),
        ("/v1/messages/batches", None),
        ("/generate", "sglang-generate"),
        ("/inference/v1/generate", "vllm-generate"),
        ("/gateway/inference/v1/generate", "vllm-generate"),
        ("/api/generate", None),  # Ollama's is another
        ("/score", "vllm-score"),
        ("/v1/score", "vllm-score"),
        ("/game/score", None),
        ("/v2/rerank", "vllm-rerank"),
        ("/api/rerank", None),
        ("/v1/embeddings", "openai-embeddings"),
        ("/pooling", "vllm-pooling"),
        ("/classify/", "vllm-classify"),
        ("/tokenize", None),
        ("/v1/audio/speech", None),
        ("", None),
        ("/", None),
    ],
)
def test_paths(path: str, api: str | None) -> None:
    parser = find_parser("POST", path, JSON)
    assert (parser.name if parser else None) == api
    assert (error_words(path) is None) == (api is None)


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        ("GET", "/v1/realtime?model=m", WEBSOCKET),
        ("GET", "/v1/responses", WEBSOCKET),  # responses over a WebSocket
        ("CONNECT", "/v1/realtime", {":protocol": "websocket"}),
        ("POST", "/v1/chat/completions", JSON | WEBSOCKET),
        ("POST", "/v1/audio/transcriptions", {"content-type": "multipart/form-data; boundary=x"}),
        ("POST", "/v1/audio/translations", {"content-type": "multipart/form-data; boundary=x"}),
        ("POST", "/v1/chat/completions", JSON | {"content-encoding": "gzip"}),
        ("POST", "/v1/chat/completions", {"content-type": "application/x-protobuf"}),
        ("GET", "/v1/models", {}),
        ("DELETE", "/v1/responses/resp_1", {}),
        ("PUT", "/v1/messages", JSON),
        ("OPTIONS", "/v1/chat/completions", {}),
    ],
)
def test_what_needs_no_body_passes_through(method: str, path: str, headers: dict[str, str]) -> None:
    assert find_parser(method, path, headers) is None


@pytest.mark.parametrize(
    "headers",
    [{}, JSON, {"content-type": "Application/JSON; charset=UTF-8"}, {"content-type": "application/merge+json"},
     JSON | {"content-encoding": "identity"}, JSON | {"upgrade": "h2c", "connection": "upgrade"}],
)  # fmt: skip
def test_json_is_read(headers: dict[str, str]) -> None:
    assert find_parser("POST", "/v1/messages", headers) is not None


def test_generate_may_be_put() -> None:
    assert find_parser("PUT", "/generate", JSON) is not None
    assert find_parser("PUT", "/inference/v1/generate", JSON) is None
