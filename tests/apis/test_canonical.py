"""Framing: what can never collide, and what must stay a prefix."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.apis.anthropic import Messages
from epp.apis.canonical import exact_tokens
from epp.apis.openai import Chat, Completion
from epp.apis.responses import Responses

MARKS = "\u00ffRCITKMGJPQBV\ufffd"  # letters that tags use, and what 0xFF looks like to careless decoders


def chat(messages: list[dict[str, Any]], **fields: Any) -> bytes:
    body = json.dumps({"model": "m", "messages": messages, **fields}, ensure_ascii=False).encode()
    return Chat.parse(body, {}).canonical


def completion(prompt: Any) -> bytes:
    return Completion.parse(json.dumps({"model": "m", "prompt": prompt}).encode(), {}).canonical


text = st.text(st.sampled_from(MARKS + "ab") | st.characters(exclude_categories=["Cs"]), max_size=8)
some = text.filter(bool)


def fixed(**fields: Any) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {name: one if isinstance(one, st.SearchStrategy) else st.just(one) for name, one in fields.items()}
    )


def listed(*kinds: Any, least: int = 1, most: int = 3) -> Any:
    return st.lists(st.one_of(*kinds), min_size=least, max_size=most)


said = fixed(type="text", text=text)
call = fixed(id=text, type="function", function=fixed(name=text, arguments=text))
message = st.one_of(
    fixed(role=some, content=text),
    fixed(role="user", content="x", name=some),
    fixed(role="tool", content=text, tool_call_id=some),
    fixed(role="assistant", tool_calls=listed(call, most=2)),
    fixed(role="assistant", content=text, reasoning_content=some),
    fixed(role="assistant", refusal=some),
    fixed(role="user", content=listed(said, least=2)),
    fixed(role="user", content=listed(fixed(type="image_url", image_url=fixed(url=text)), most=2)),
)
conversation = st.lists(message, min_size=1, max_size=4)


def rendered(message: dict[str, Any]) -> dict[str, Any]:
    """A message with what engines make of it before they render, less the ids that most templates do not print."""
    seen = {name: value for name, value in message.items() if name not in ("tool_call_id", "content")}
    content = message.get("content")
    if isinstance(content, list) and content[0]["type"] == "text":
        content = "\n".join(part["text"] for part in content).removeprefix("\n" * _empty(content))
    if content:
        seen["content"] = content
    if calls := message.get("tool_calls"):
        seen["tool_calls"] = [
            (one["function"]["name"], arguments_of(one["function"]["arguments"])) for one in calls
        ]
    return seen


def _empty(parts: list[dict[str, Any]]) -> int:
    """Empty texts before the first that is not, which leave no line feed."""
    return next((at for at, part in enumerate(parts) if part["text"]), len(parts) - 1)


def arguments_of(given: str) -> str:
    try:
        return json.dumps(msgspec.json.decode(given))
    except (ValueError, RecursionError):
        return json.dumps(given if given.strip() else {})


@given(conversation, conversation)
def test_conversations_have_equal_bytes_exactly_where_engines_render_them_alike(
    one: list[dict[str, Any]], two: list[dict[str, Any]]
) -> None:
    assert (chat(one) == chat(two)) == (list(map(rendered, one)) == list(map(rendered, two)))


@given(conversation, conversation)
def test_a_turn_more_only_adds_bytes(one: list[dict[str, Any]], two: list[dict[str, Any]]) -> None:
    assert chat(one + two).startswith(chat(one))
    assert len(chat(one + two)) > len(chat(one))


seen = fixed(type="image", source=fixed(type="base64", media_type="image/png", data=some))
thought = fixed(type="thinking", thinking=some, signature=text)
used = fixed(type="tool_use", id=some, name=some, input=st.dictionaries(text, text, max_size=2))
result = fixed(type="tool_result", tool_use_id=some, content=text | listed(said, seen))
turn = st.one_of(
    fixed(role="user", content=text | listed(said, seen)),
    fixed(role="user", content=listed(result)),
    fixed(role="assistant", content=text | listed(said, thought, used)),
)
talk = st.lists(turn, min_size=1, max_size=4)


def messages(given_: list[Any], **fields: Any) -> bytes:
    body = {"model": "m", "max_tokens": 1, "messages": given_, **fields}
    return Messages.parse(json.dumps(body).encode(), {}).canonical


@given(talk, talk, text, st.lists(fixed(name=some, input_schema=fixed(type="object")), max_size=2))
def test_messages(one: list[Any], two: list[Any], system: str, tools: list[Any]) -> None:
    first, both = (messages(turns, system=system, tools=tools) for turns in (one, one + two))
    assert both.startswith(first)
    assert len(both) > len(first)


item = st.one_of(
    fixed(role="user", content=text | listed(fixed(type="input_text", text=text))),
    fixed(type="message", id=text, role="assistant", content=listed(fixed(type="output_text", text=text))),
    fixed(type="reasoning", id=text, summary=listed(fixed(type="summary_text", text=text))),
    fixed(type="function_call", call_id=some, name=some, arguments=text, id=text, status="completed"),
    fixed(type="function_call_output", call_id=some, output=text),
    fixed(role="user", content=listed(fixed(type="input_image", image_url=some))),
    fixed(type="item_reference", id=some),
)
items = st.lists(item, min_size=1, max_size=4)


def response(given_: list[Any], **fields: Any) -> bytes:
    return Responses.parse(json.dumps({"model": "m", "input": given_, **fields}).encode(), {}).canonical


@given(items, items, text)
def test_responses(one: list[Any], two: list[Any], instructions: str) -> None:
    first, both = (response(turns, instructions=instructions) for turns in (one, one + two))
    assert both.startswith(first)
    assert len(both) > len(first)


ids = st.lists(st.integers(0, 2**32 - 2) | st.just(0x49FF) | st.just(0xFF49_0000), max_size=6)
prompts = st.one_of(
    text, st.lists(text, min_size=1, max_size=3), ids.filter(bool), st.lists(ids, min_size=1, max_size=3)
)


def plain(prompt: Any) -> Any:
    """The one spelling of prompts that mean the same."""
    return prompt if isinstance(prompt, list) and isinstance(prompt[0], (str, list)) else [prompt]


@given(prompts, prompts)
def test_no_two_prompts_of_any_shape_have_equal_bytes(one: Any, two: Any) -> None:
    assert (completion(one) == completion(two)) == (plain(one) == plain(two))


@given(prompts)
def test_ids_are_counted_and_text_is_not(prompt: Any) -> None:
    given_ids = [one for one in plain(prompt) if isinstance(one, list)]
    expected = sum(map(len, given_ids)) if given_ids else None
    assert exact_tokens(completion(prompt)) == expected


def test_a_chat_of_text_alone_is_known_as_such() -> None:
    def text_only(*parts: Any) -> bool:
        body = {"model": "m", "messages": [{"role": "user", "content": list(parts)}]}
        return Chat.parse(json.dumps(body).encode(), {}).text_only

    picture = {"type": "image_url", "image_url": {"url": "data:,A"}}
    assert text_only("a", {"type": "text", "text": "\u00ffM0123"})
    assert not text_only("a", picture)
    assert not Completion.parse(b'{"model": "m", "prompt": [1, 2]}', {}).text_only


@pytest.mark.parametrize("field", ["tools", "functions", "documents"])
def test_what_templates_put_first_comes_first(field: str) -> None:
    messages = [{"role": "user", "content": "hello"}]
    given_first = chat(messages, **{field: [{"name": "f", "parameters": {"a": 1, "b": 2}}]})
    assert given_first.endswith(chat(messages))
    assert given_first == chat(messages, **{field: [{"parameters": {"a": 1, "b": 2}, "name": "f"}]})
    assert given_first != chat(messages, **{field: [{"name": "g"}]})
    assert chat(messages) == chat(messages, **{field: None}) == chat(messages, **{field: []})


def test_a_tool_is_spelled_as_engines_hand_it_to_templates() -> None:
    """Its API's keys in one order; a schema's in the client's, which is the order of the prompt's tokens."""
    said = [{"role": "user", "content": "hello"}]
    schema = {
        "type": "object",
        "properties": {"b": {"type": "string"}, "a": {"enum": [2, 1]}},
        "additional": 1,
    }
    function = {"name": "f", "description": "d", "parameters": schema, "strict": True}
    tool = {"type": "function", "function": function}
    spelled = chat(said, tools=[tool])
    assert spelled == b"\xffT" + json.dumps(tool, separators=(",", ":")).encode() + chat(said)
    turned = {"function": dict(reversed(function.items())), "type": "function"}
    assert chat(said, tools=[turned]) == spelled
    other = function | {"parameters": dict(reversed(schema.items()))}
    assert chat(said, tools=[{"type": "function", "function": other}]) != spelled


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({}, None),
        ({"max_tokens": None}, None),
        ({"max_tokens": 0}, 0),
        ({"max_tokens": 5}, 5),
        ({"max_tokens": 5, "max_completion_tokens": 7}, 7),
        ({"max_tokens": -1}, None),
        ({"max_tokens": 10**30}, 1 << 53),
    ],
)
def test_the_output_limit(fields: dict[str, Any], limit: int | None) -> None:
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "a"}], **fields}).encode()
    assert Chat.parse(body, {}).max_output_tokens == limit


@pytest.mark.parametrize(
    ("fields", "session"),
    [
        ({"session_params": {"id": "p"}, "session_id": "s", "metadata": {"session_id": "m"}}, "p"),
        ({"session_id": "s", "metadata": {"session_id": "m"}, "prompt_cache_key": "k", "user": "u"}, "s"),
        ({"metadata": {"session_id": "m"}, "conversation": {"id": "c"}, "user": "u"}, "m"),
        ({"conversation": {"id": "c"}, "routing_key": "r", "prompt_cache_key": "k"}, "c"),
        ({"prompt_cache_key": "k", "safety_identifier": "p", "user": "u"}, "k"),
        ({"metadata": {"user_id": "u"}, "previous_response_id": "r"}, "u"),
        ({"session_id": 7, "metadata": {"session_id": ""}, "previous_response_id": "r"}, "r"),
        ({"metadata": {"request_id": "r"}, "request_id": "r", "id": "r"}, ""),
    ],
)
def test_the_session_hint_in_the_body_has_an_order(fields: dict[str, Any], session: str) -> None:
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "a"}], **fields}).encode()
    assert Chat.parse(body, {"x-request-id": "r"}).session == session


@pytest.mark.parametrize(
    ("headers", "fields", "program"),
    [
        ({"session-id": "codex"}, {"prompt_cache_key": "k"}, "codex"),
        ({"x-claude-code-session-id": "c"}, {}, "c"),
        ({"x-claude-code-session-id": "c", "x-claude-code-agent-id": "sub"}, {}, "c sub"),
        ({}, {"metadata": {"user_id": "user_1_account_2_session_3"}}, "user_1_account_2_session_3"),
        ({}, {"metadata": {"user_id": "somebody"}, "user": "u", "prompt_cache_key": "k"}, ""),
        ({"x-claude-code-agent-id": "sub"}, {}, ""),
    ],
)
def test_an_agent_is_named_by_its_conversation_and_not_by_what_many_share(
    headers: dict[str, str], fields: dict[str, Any], program: str
) -> None:
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}).encode()
    assert Chat.parse(body, headers).program == program
