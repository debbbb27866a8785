"""Bodies as the OpenAI SDK really sends them, caught on their way out: every shape must be read."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import httpx2 as httpx
import openai
import pytest

from epp.apis.registry import find_parser

if TYPE_CHECKING:
    from collections.abc import Callable

    from epp.apis.types import ParsedRequest

FUNCTION = {
    "name": "weather",
    "description": "of a place",
    "parameters": {"type": "object", "properties": {}},
}
TOOL = {"type": "function", "function": FUNCTION}
CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"at":"Seoul"}'}}
OPENING: list[dict[str, Any]] = [
    {"role": "system", "content": "Answer briefly."},
    {"role": "user", "content": "Weather in Seoul? 날씨"},
]
ANSWERED = [*OPENING, {"role": "assistant", "content": None, "tool_calls": [CALL]}]
TOOLED = [*ANSWERED, {"role": "tool", "tool_call_id": "call_1", "content": "rain"}]
PARTS = {
    "role": "user",
    "content": [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "low"}},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": "AAAA"}},
    ],
}


def sent(ask: Callable[[Any], Any]) -> ParsedRequest:
    """What a parser reads of the one request that the SDK sends for this call."""
    caught: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        caught.append(request)
        return httpx.Response(200, json={})

    http = httpx.Client(transport=httpx.MockTransport(answer))
    with openai.OpenAI(api_key="k", base_url="http://gateway/v1", http_client=http) as client:
        ask(client)
    (request,) = caught
    headers = {name.lower(): value for name, value in request.headers.items()}
    parser = find_parser(request.method, request.url.raw_path.decode(), headers)
    assert parser is not None
    return parser.parse(request.content, headers)


def chat(messages: list[dict[str, Any]], **fields: Any) -> ParsedRequest:
    return sent(lambda client: client.chat.completions.create(model="llama", messages=messages, **fields))


def complete(prompt: Any, **fields: Any) -> ParsedRequest:
    return sent(lambda client: client.completions.create(model="llama", prompt=prompt, **fields))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"stream": False, "temperature": 0, "top_p": 1, "stop": ["\n"], "seed": 7},
        {"n": 2, "logprobs": True, "top_logprobs": 3, "logit_bias": {"50256": -100}},
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "s", "schema": {"type": "object"}},
            }
        },
        {"reasoning_effort": "low", "verbosity": "low", "service_tier": "auto", "store": True},
        {"metadata": {"k": "v"}, "prediction": {"type": "content", "content": "x"}},
        {
            "extra_body": {
                "top_k": 5,
                "guided_json": {"type": "object"},
                "chat_template_kwargs": {"thinking": False},
            }
        },
        {"stop": None, "user": "", "max_tokens": None},
    ],
)
def test_options_of_the_answer_leave_the_prompt_alone(fields: dict[str, Any]) -> None:
    parsed = chat(OPENING, **fields)
    assert (parsed.api, parsed.model, parsed.stream, parsed.session) == ("openai-chat", "llama", False, "")
    assert parsed.canonical == chat(OPENING).canonical


def test_golden_bytes_of_a_chat_with_tools() -> None:
    assert chat(TOOLED, tools=[TOOL]).canonical == (
        b'\xffT{"type":"function","function":{"name":"weather","description":"of a place",'
        b'"parameters":{"type":"object","properties":{}}}}'
        b"\xffRsystem\xffCAnswer briefly."
        b"\xffRuser\xffCWeather in Seoul? \xeb\x82\xa0\xec\x94\xa8"
        b"\xffRassistant"
        b'\xffK{"id":"call_1","type":"function","function":{"name":"weather","arguments":"{\\"at\\":\\"Seoul\\"}"}}'
        b"\xffRtool\xffCrain\xffIcall_1"
    )


def test_each_turn_of_a_tool_conversation_goes_on_from_the_last() -> None:
    turns = [
        chat(messages, tools=[TOOL]).canonical for messages in (OPENING, ANSWERED, TOOLED, [*TOOLED, PARTS])
    ]
    assert all(later.startswith(earlier) for earlier, later in pairwise(turns))
    assert len(set(turns)) == 4


@pytest.mark.parametrize(
    "message",
    [
        PARTS,
        {"role": "developer", "content": "obey"},
        {"role": "developer", "content": [{"type": "text", "text": "obey"}]},
        {"role": "user", "content": "hi", "name": "bob"},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        {"role": "assistant", "content": "", "refusal": "no"},
        {"role": "assistant", "audio": {"id": "audio_1"}},
        {"role": "assistant", "content": None, "function_call": {"name": "weather", "arguments": "{}"}},
        {"role": "function", "name": "weather", "content": None},
        {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "rain"}]},
        {
            "role": "assistant",
            "tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "shell", "input": "ls"}}],
        },
    ],
)
def test_every_message_of_the_sdk_is_read(message: dict[str, Any]) -> None:
    before, parsed = chat(OPENING).canonical, chat([*OPENING, message]).canonical
    assert parsed.startswith(before)
    assert len(parsed) > len(before)


def test_streams_limits_sessions_and_salts() -> None:
    parsed = chat(
        OPENING,
        stream=True,
        stream_options={"include_usage": True},
        max_tokens=9,
        max_completion_tokens=7,
        user="someone",
        extra_body={"cache_salt": "tenant-7"},
    )
    assert (parsed.stream, parsed.include_usage, parsed.max_output_tokens) == (True, True, 7)
    assert (parsed.session, parsed.cache_salt) == ("someone", "tenant-7")
    assert chat(OPENING, user="someone", extra_headers={"X-Session-Id": "s-1"}).session == "s-1"
    assert chat(OPENING, prompt_cache_key="k", user="someone").session == "k"
    assert chat(OPENING, extra_headers={"x-request-id": "r"}).session == ""
    assert chat(OPENING, extra_query={"api-version": "1"}).api == "openai-chat"


@pytest.mark.parametrize(
    ("prompt", "golden"),
    [
        ("Once", b"\xffPOnce"),
        (["Once", "upon"], b"\xffPOnce\xffPupon"),
        ([1, 258], b"\xffI\x01\x00\x00\x00\x02\x01\x00\x00"),
        ([[1], [2]], b"\xffI\x01\x00\x00\x00\xff\xff\xff\xff\x02\x00\x00\x00"),
    ],
)
def test_golden_bytes_of_completions(prompt: Any, golden: bytes) -> None:
    parsed = complete(prompt, max_tokens=5, n=1, echo=True, logprobs=2, suffix=None, stream=True)
    assert (parsed.api, parsed.canonical, parsed.max_output_tokens) == ("openai-completions", golden, 5)
    assert (parsed.stream, parsed.include_usage) == (True, False)
