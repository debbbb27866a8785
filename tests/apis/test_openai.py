from __future__ import annotations

import json
from typing import Any

import httpx2 as httpx
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.apis.canonical import exact_tokens
from epp.apis.content import prompt_content
from epp.apis.openai import ChatParser, CompletionParser
from epp.apis.registry import find_parser
from epp.errors import ClientError

CHAT, COMPLETION = ChatParser(), CompletionParser()


def chat(*messages: dict[str, Any], **fields: Any) -> bytes:
    return json.dumps({"model": "llama", "messages": list(messages), **fields}).encode()


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def canonical(body: bytes) -> bytes:
    return CHAT.parse(body, {}).canonical


def test_what_pricing_needs_is_read() -> None:
    parsed = CHAT.parse(
        chat(
            user("hi"), stream=True, stream_options={"include_usage": True}, max_completion_tokens=7, max_tokens=9,
            user="u-1", cache_salt="s", temperature=0.5, unknown={"deep": [1, 2]},
        ),
        {},
    )  # fmt: skip
    assert (parsed.model, parsed.stream, parsed.include_usage, parsed.max_output_tokens) == (
        "llama",
        True,
        True,
        7,
    )
    assert (parsed.session, parsed.cache_salt, parsed.api) == ("u-1", "s", "openai-chat")


@pytest.mark.parametrize(
    ("headers", "fields", "session"),
    [
        ({"x-session-id": "h"}, {"user": "u", "metadata": {"session_id": "m"}}, "h"),
        ({"x-session-affinity": "a"}, {"user": "u"}, "a"),
        ({}, {"user": "u", "metadata": {"session_id": "m"}}, "m"),
        ({}, {"user": "u", "metadata": {"session_id": 5}}, "u"),
        ({"x-request-id": "never"}, {}, ""),
    ],
)
def test_the_session_hint_has_an_order(headers: dict[str, str], fields: dict[str, Any], session: str) -> None:
    assert CHAT.parse(chat(user("hi"), **fields), headers).session == session


def test_a_longer_conversation_starts_with_the_bytes_of_the_shorter() -> None:
    first = [{"role": "system", "content": "be kind"}, user("hello")]
    later = [*first, {"role": "assistant", "content": "hi!"}, user("and now?")]
    assert canonical(chat(*later)).startswith(canonical(chat(*first)))
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    assert canonical(chat(*later, tools=tools)).startswith(canonical(chat(*first, tools=tools)))
    assert not canonical(chat(*later, tools=tools)).startswith(canonical(chat(*first)))


text = st.text(max_size=20)
messages = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "system"]), "content": text}),
    min_size=1,
    max_size=4,
)


@given(messages, messages)
def test_only_equal_conversations_have_equal_bytes(
    one: list[dict[str, Any]], two: list[dict[str, Any]]
) -> None:
    assert (canonical(chat(*one)) == canonical(chat(*two))) == (one == two)


@given(messages, messages)
def test_extending_extends(one: list[dict[str, Any]], two: list[dict[str, Any]]) -> None:
    assert canonical(chat(*one, *two)).startswith(canonical(chat(*one)))


@pytest.mark.parametrize(
    "content",
    [
        [{"type": "text", "text": "hello"}],
        ["hello"],
        [{"type": "input_text", "text": "hello"}],
    ],
)
def test_parts_of_text_read_like_text(content: list[Any]) -> None:
    assert canonical(chat({"role": "user", "content": content})) == canonical(chat(user("hello")))


def test_images_count_by_content_not_by_size() -> None:
    def image(data: str) -> bytes:
        part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
        return canonical(chat({"role": "user", "content": [part, {"type": "text", "text": "what?"}]}))

    assert image("A" * 100_000) != image("B" * 100_000)
    assert image("A" * 100_000) == image("A" * 100_000)
    assert len(image("A" * 100_000)) == len(image("A" * 1_000_000)) < 5000


@pytest.mark.parametrize(
    "message",
    [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "1", "type": "function", "function": {}}],
        },
        {"role": "tool", "tool_call_id": "1", "content": "42"},
        {"role": "assistant", "content": "", "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "developer", "content": "obey"},
        {"role": "user", "content": "hi", "name": "bob"},
        {"role": "assistant", "refusal": "no"},
        {"role": "system", "tools": [{"type": "function", "function": {"name": "f"}}]},
    ],
)
def test_every_shape_of_message_is_read_and_tells_apart(message: dict[str, Any]) -> None:
    assert canonical(chat(user("a"), message)) != canonical(chat(user("a")))


@pytest.mark.parametrize(
    "part",
    [
        {"type": "thinking", "thinking": "hm " * 100},
        {"type": "thinking", "text": "hm " * 100},
        {"type": "reasoning", "text": "hm " * 100},
        {"type": "reasoning", "thinking": "hm " * 100, "text": None},
    ],
)
def test_thinking_among_the_parts_is_text_and_no_medium(part: dict[str, Any]) -> None:
    """SGLang takes either word for the part and for its field; what is replayed so may be most of a prompt."""
    said = {"type": "text", "text": "so"}
    parsed = CHAT.parse(chat({"role": "assistant", "content": [part, said]}), {})
    plain = CHAT.parse(chat({"role": "assistant", "reasoning": "hm " * 100, "content": "so"}), {})
    assert parsed == plain
    assert plain.text_only


def test_tools_that_a_message_declares_are_part_of_it() -> None:
    """As Kimi's and DeepSeek's templates render them, in the middle of a chat."""

    def declared(name: str, role: str = "system") -> bytes:
        tool = {"type": "function", "function": {"name": name}}
        return canonical(chat(user("a"), {"role": role, "content": "more:", "tools": [tool]}, user("b")))

    assert declared("f") != declared("g")
    (message,) = prompt_content(declared("f")).messages[1:2]
    assert message == {
        "role": "system",
        "content": "more:",
        "tools": [{"type": "function", "function": {"name": "f"}}],
    }
    assert canonical(chat({**user("a"), "tools": "odd"})) == canonical(chat(user("a")))


@pytest.mark.parametrize(
    ("body", "words", "param"),
    [
        (b"", "not valid JSON", None),
        (b"{", "not valid JSON", None),
        (b"[1]", "array", None),
        (b"{}", "model", "model"),
        (b'{"model": ""}', "messages", "messages"),
        (b'{"model": "", "messages": [{"role": "user"}]}', "'model' must not be empty", "model"),
        (b'{"model": 5, "messages": []}', "expected", "model"),
        (b'{"model": "m", "messages": []}', "'messages' must not be empty", "messages"),
        (b'{"model": "m", "messages": "hi"}', "array", "messages"),
        (b'{"model": "m", "messages": [{"content": "x"}]}', "role", "messages[0]"),
        (b'{"model": "m", "messages": [{"role": "user", "content": 5}]}', "got", "messages[0].content"),
        (b'{"model": "m", "messages": [{"role": "user"}], "stream": "yes"}', "bool", "stream"),
        (b'{"model": "m", "messages": [{"role": "user"}], "max_tokens": 1.5}', "int", "max_tokens"),
        (b'{"model": "m", "messages": [{"role": "user", "content": NaN}]}', "not valid JSON", None),
        (b'{"model": "m\xff"}', "not valid JSON", None),
        (b'{"a":' * 100_000, "not valid JSON", None),
    ],
)
def test_a_bad_body_is_400_in_openais_words(body: bytes, words: str, param: str | None) -> None:
    with pytest.raises(ClientError) as caught:
        CHAT.parse(body, {})
    error = json.loads(CHAT.error_body(caught.value.status, caught.value.message, caught.value.param))[
        "error"
    ]
    assert caught.value.status == 400
    assert error["type"] == "invalid_request_error"
    assert words.lower() in error["message"].lower()
    if param is not None:
        assert error["param"] is not None
        assert param in error["param"]


@pytest.mark.parametrize("raw", [r'"a\u0000b"', r'"\ud83d\ude00"', r'"\ud800"', r'"\uDC00 \ud83d"'])
def test_odd_but_legal_text_is_read(raw: str) -> None:
    body = b'{"model": "m", "user": %s, "messages": [{"role": "user", "content": %s}]}' % (
        (raw.encode(),) * 2
    )
    parsed = CHAT.parse(body, {})
    assert parsed.canonical
    assert parsed.session.encode(), "no half of a character is left that somebody fails to write down"


@given(st.binary(max_size=200))
def test_any_bytes_give_a_request_or_a_400(body: bytes) -> None:
    for parser in (CHAT, COMPLETION):
        try:
            parser.parse(body, {})
        except ClientError as error:
            assert error.status == 400  # noqa: PT017  # the point of the test


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELDS = [
    "messages",
    "prompt",
    "tools",
    "stream",
    "max_tokens",
    "user",
    "metadata",
    "stream_options",
    "cache_salt",
]


@given(st.dictionaries(st.sampled_from(FIELDS), json_values))
def test_any_json_in_known_fields_gives_a_request_or_a_400(fields: dict[str, Any]) -> None:
    body = json.dumps({"model": "m", "messages": [user("x")], "prompt": "x", **fields}).encode()
    for parser in (CHAT, COMPLETION):
        try:
            parser.parse(body, {})
        except ClientError as error:
            assert error.status == 400  # noqa: PT017  # the point of the test


@pytest.mark.parametrize("prompt", ["text", ["one", "two"], [1, 2, 3], [[1, 2], [3]]])
def test_every_shape_of_prompt_is_read(prompt: Any) -> None:
    body = json.dumps({"model": "m", "prompt": prompt}).encode()
    assert COMPLETION.parse(body, {}).canonical


@pytest.mark.parametrize("prompt", [[], ["a", 1], [1, [2]], [-1], [2**32], None, {}, [[1, "a"]]])
def test_a_prompt_that_is_none_is_refused(prompt: Any) -> None:
    with pytest.raises(ClientError, match=r"."):
        COMPLETION.parse(json.dumps({"model": "m", "prompt": prompt}).encode(), {})


def test_token_ids_are_never_taken_for_text() -> None:
    ids = COMPLETION.parse(b'{"model": "m", "prompt": [1633771873]}', {}).canonical
    words = COMPLETION.parse(b'{"model": "m", "prompt": "aaaa"}', {}).canonical
    assert ids != words


@pytest.mark.parametrize(
    ("method", "path", "kind", "api"),
    [
        ("POST", "/v1/chat/completions", "application/json", "openai-chat"),
        ("POST", "/v1/chat/completions?x=1", "application/json; charset=utf-8", "openai-chat"),
        ("POST", "/tenant/v1/chat/completions/", "", "openai-chat"),
        ("POST", "/v1/completions", "application/vnd.x+json", "openai-completions"),
        ("GET", "/v1/chat/completions", "", None),
        ("POST", "/v1/chat/completions", "multipart/form-data; boundary=x", None),
        ("POST", "/v1/audio/speech", "application/json", None),
        ("POST", "/", "", None),
    ],
)
def test_the_path_and_type_choose_the_parser(method: str, path: str, kind: str, api: str | None) -> None:
    parser = find_parser(method, path, {"content-type": kind} if kind else {})
    assert (parser.name if parser else None) == api


def test_requests_as_the_openai_sdk_really_sends_them() -> None:
    sent: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(request)
        return httpx.Response(200, json={})

    with openai.OpenAI(
        api_key="k", base_url="http://x/v1", http_client=httpx.Client(transport=httpx.MockTransport(answer))
    ) as client:
        client.chat.completions.create(
            model="llama",
            messages=[
                {"role": "system", "content": "be kind"},
                {"role": "user", "content": [{"type": "text", "text": "hello"}]},
            ],
            tools=[{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
            max_completion_tokens=5,
            user="u",
        )
        client.completions.create(model="llama", prompt=[1, 2, 3], max_tokens=2)
    for request, api in zip(sent, ("openai-chat", "openai-completions"), strict=True):
        headers = {name.lower(): value for name, value in request.headers.items()}
        parser = find_parser(request.method, request.url.path, headers)
        assert parser is not None
        parsed = parser.parse(request.content, headers)
        assert (parsed.api, parsed.model) == (api, "llama")
        assert parsed.canonical


@pytest.mark.parametrize("field", ["input_ids", "prompt_token_ids"])
def test_a_chat_that_comes_rendered_is_its_token_ids(field: str) -> None:
    """SGLang's and TensorRT-LLM's engines prefill the ids; what the messages say is not rendered any more."""
    first, later, other = (
        CHAT.parse(chat(user("turn"), **{field: ids}), {}) for ids in ([1, 2, 3], [1, 2, 3, 4], [9, 2, 3])
    )
    assert exact_tokens(first.canonical) == 3
    assert later.canonical.startswith(first.canonical)
    assert not other.canonical.startswith(first.canonical[:6])
    assert canonical(chat(user("other"), **{field: [1, 2, 3]})) == first.canonical
    assert not first.text_only
    assert canonical(chat(user("turn"), **{field: None})) == canonical(chat(user("turn")))


def test_images_of_a_rendered_chat_tell_it_apart() -> None:
    def seen(url: str) -> bytes:
        parts = [{"type": "text", "text": "what?"}, {"type": "image_url", "image_url": {"url": url}}]
        return canonical(chat({"role": "user", "content": parts}, input_ids=[1, 2, 3]))

    plain = canonical(chat(user("what?"), input_ids=[1, 2, 3]))
    assert len({seen("https://x/1.png"), seen("https://x/2.png"), plain}) == 3


@pytest.mark.parametrize("ids", [[4294967295], [-1], ["a"], [[1]]])
def test_ids_of_a_rendered_chat_that_are_none_are_refused(ids: list[Any]) -> None:
    with pytest.raises(ClientError) as caught:
        CHAT.parse(chat(user("hi"), input_ids=ids), {})
    assert caught.value.status == 400
    assert "input_ids" in (caught.value.param or "")
