from __future__ import annotations

import json
from typing import Any

import pytest

from epp.apis.canonical import exact_tokens
from epp.apis.content import prompt_content
from epp.apis.openai import Chat, Completion
from epp.apis.registry import openai_error
from epp.errors import ClientError


def chat(*messages: dict[str, Any], **fields: Any) -> bytes:
    return json.dumps({"model": "llama", "messages": list(messages), **fields}).encode()


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def canonical(body: bytes) -> bytes:
    return Chat.parse(body, {}).canonical


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
    parsed = Chat.parse(chat({"role": "assistant", "content": [part, said]}), {})
    plain = Chat.parse(chat({"role": "assistant", "reasoning": "hm " * 100, "content": "so"}), {})
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
        (b"{", "not valid JSON", None),
        (b"{}", "messages", "messages"),
        (b'{"model": ""}', "messages", "messages"),
        (b'{"model": "m", "messages": []}', "'messages' must not be empty", "messages"),
        (b'{"model": "m", "messages": [{"content": "x"}]}', "role", "messages[0]"),
        (b'{"model": "m", "messages": [{"role": "user", "content": 5}]}', "got", "messages[0].content"),
        (b'{"model": "m", "messages": [{"role": "user"}], "max_tokens": 1.5}', "int", "max_tokens"),
        (b'{"model": "m\xff"}', "not valid JSON", None),
        (b'{"a":' * 100_000, "not valid JSON", None),
    ],
)
def test_a_bad_body_is_400_in_openais_words(body: bytes, words: str, param: str | None) -> None:
    with pytest.raises(ClientError) as caught:
        Chat.parse(body, {})
    error = json.loads(openai_error(caught.value.status, caught.value.message, caught.value.param))["error"]
    assert caught.value.status == 400
    assert error["type"] == "invalid_request_error"
    assert words.lower() in error["message"].lower()
    if param is not None:
        assert error["param"] is not None
        assert param in error["param"]


@pytest.mark.parametrize("prompt", [[], ["a", 1], [1, [2]], [-1], [2**32], None, {}, [[1, "a"]]])
def test_a_prompt_that_is_none_is_refused(prompt: Any) -> None:
    with pytest.raises(ClientError, match=r"."):
        Completion.parse(json.dumps({"model": "m", "prompt": prompt}).encode(), {})


@pytest.mark.parametrize("field", ["input_ids", "prompt_token_ids"])
def test_a_chat_that_comes_rendered_is_its_token_ids(field: str) -> None:
    """SGLang's and TensorRT-LLM's engines prefill the ids; what the messages say is not rendered any more."""
    first, later, other = (
        Chat.parse(chat(user("turn"), **{field: ids}), {}) for ids in ([1, 2, 3], [1, 2, 3, 4], [9, 2, 3])
    )
    assert exact_tokens(first.canonical) == 3
    assert later.canonical.startswith(first.canonical)
    assert not other.canonical.startswith(first.canonical[:6])
    assert canonical(chat(user("other"), **{field: [1, 2, 3]})) == first.canonical
    assert not first.text_only
    assert canonical(chat(user("turn"), **{field: None})) == canonical(chat(user("turn")))
