"""Requests as the SDKs really sent them are read as what they are."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from epp.apis.registry import find_parser
from epp.tokens.estimate import EstimateCounter

if TYPE_CHECKING:
    from epp.apis.types import ParsedRequest

GOLDEN = sorted((Path(__file__).parent / "golden").glob("*.json"))
REQUESTS = [
    pytest.param(request, id=f"{path.stem}: {request['name']}")
    for path in GOLDEN
    for request in json.loads(path.read_text(encoding="utf-8"))["requests"]
]


def golden(sdk: str, name: str) -> ParsedRequest:
    path = next(path for path in GOLDEN if path.stem == sdk)
    requests = json.loads(path.read_text(encoding="utf-8"))["requests"]
    parsed = read(next(request for request in requests if request["name"] == name))
    assert parsed is not None
    return parsed


def read(request: dict[str, Any]) -> ParsedRequest | None:
    body = base64.b64decode(request["body_base64"]) if "body_base64" in request else request["body"].encode()
    parser = find_parser(request["method"], request["path"], request["headers"])
    return parser.parse(body, request["headers"]) if parser else None


@pytest.mark.parametrize("request_", REQUESTS)
def test_every_request_is_read_as_its_api_or_passes_through(request_: dict[str, Any]) -> None:
    parsed = read(request_)
    assert (parsed.api if parsed else None) == request_["api"]
    if parsed:
        assert parsed.model == "llama"
        assert parsed.stream == ('"stream":true' in request_["body"].replace(" ", ""))


def test_recordings_hold_no_credentials_and_say_their_version() -> None:
    assert [path.stem for path in GOLDEN] == [
        "anthropic",
        "langchain-anthropic",
        "langchain-openai",
        "openai",
    ]
    for path in GOLDEN:
        recorded = json.loads(path.read_text(encoding="utf-8"))
        assert recorded["sdk"] == path.stem
        assert recorded["version"][0].isdigit()
        for request in recorded["requests"]:
            assert not {"authorization", "x-api-key", "cookie", "host"} & set(request["headers"])


def test_what_the_sdks_say_is_understood() -> None:
    assert golden("openai", "chat").max_output_tokens == 9
    assert golden("openai", "chat stream").include_usage
    assert golden("openai", "response stored").session == "key"
    assert golden("openai", "response items").max_output_tokens == 5
    assert golden("anthropic", "messages").session == "user_1_account_2_session_3"
    assert golden("anthropic", "messages stream").stream
    assert golden("anthropic", "count").canonical == b""


@pytest.mark.parametrize(
    ("sdk", "name", "tokens"),
    # 640 x 480: two tiles, 410 tokens by pixels; an image elsewhere 765 or 1398, a sound 300, a page 2250
    [
        ("openai", "chat parts", 85 + 765 + 300 + 2250),
        ("openai", "response items", 425),
        ("anthropic", "messages parts", 410 + 1398),
        ("langchain-openai", "response", 425),
        ("langchain-anthropic", "messages", 410),
    ],
)
def test_media_cost_about_what_their_api_says(sdk: str, name: str, tokens: int) -> None:
    counted = EstimateCounter().count(golden(sdk, name))
    assert tokens <= counted <= tokens + 160


def test_a_chat_is_framed_alike_whoever_sends_it() -> None:
    """The same tool, call and result: LangChain over three APIs, down to how its arguments are spelled."""
    frames = [
        golden(sdk, name).canonical.split(b"\xffM")[0]
        for sdk, name in (
            ("langchain-openai", "chat"),
            ("langchain-openai", "response"),
            ("langchain-anthropic", "messages"),
        )
    ]
    tagged = [[frame[:1] for frame in one.split(b"\xff")[1:]] for one in frames]
    assert tagged[0] == tagged[1] == tagged[2]
    assert frames[0] == frames[1]
