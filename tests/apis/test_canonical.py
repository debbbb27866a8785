"""Framing: what can never collide, and what must stay a prefix."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.apis.canonical import exact_tokens, text_bytes
from epp.apis.openai import ChatParser, CompletionParser
from epp.errors import ClientError

CHAT, COMPLETION = ChatParser(), CompletionParser()
MARKS = "\u00ffRCITKMG\ufffd"  # letters that tags use, and what 0xFF looks like to careless decoders


def chat(messages: list[dict[str, Any]], **fields: Any) -> bytes:
    body = json.dumps({"model": "m", "messages": messages, **fields}, ensure_ascii=False).encode()
    return CHAT.parse(body, {}).canonical


def completion(prompt: Any) -> bytes:
    return COMPLETION.parse(json.dumps({"model": "m", "prompt": prompt}).encode(), {}).canonical


text = st.text(st.sampled_from(MARKS + "ab") | st.characters(exclude_categories=["Cs"]), max_size=8)
some_text = text.filter(bool)
call = st.fixed_dictionaries(
    {
        "id": text,
        "type": st.just("function"),
        "function": st.fixed_dictionaries({"name": text, "arguments": text}),
    }
)
message = st.one_of(
    st.fixed_dictionaries({"role": some_text, "content": text}),
    st.fixed_dictionaries({"role": st.just("user"), "content": st.just("x"), "name": some_text}),
    st.fixed_dictionaries({"role": st.just("tool"), "content": text, "tool_call_id": some_text}),
    st.fixed_dictionaries(
        {"role": st.just("assistant"), "tool_calls": st.lists(call, min_size=1, max_size=2)}
    ),
    st.fixed_dictionaries({"role": st.just("assistant"), "content": text, "reasoning_content": some_text}),
    st.fixed_dictionaries({"role": st.just("assistant"), "refusal": some_text}),
    st.fixed_dictionaries(
        {
            "role": st.just("user"),
            "content": st.lists(
                st.fixed_dictionaries({"type": st.just("text"), "text": text}), min_size=2, max_size=3
            ),
        }
    ),
    st.fixed_dictionaries(
        {
            "role": st.just("user"),
            "content": st.lists(
                st.fixed_dictionaries(
                    {"type": st.just("image_url"), "image_url": st.fixed_dictionaries({"url": text})}
                ),
                min_size=1,
                max_size=2,
            ),
        }
    ),
)
conversation = st.lists(message, min_size=1, max_size=4)


@given(conversation, conversation)
def test_no_two_conversations_of_any_shape_have_equal_bytes(
    one: list[dict[str, Any]], two: list[dict[str, Any]]
) -> None:
    assert (chat(one) == chat(two)) == (one == two)


@given(conversation, conversation)
def test_a_turn_more_only_adds_bytes(one: list[dict[str, Any]], two: list[dict[str, Any]]) -> None:
    assert chat(one + two).startswith(chat(one))
    assert len(chat(one + two)) > len(chat(one))


@given(text, text)
def test_text_that_goes_on_keeps_its_bytes(head: str, tail: str) -> None:
    assert completion(head + tail).startswith(completion(head))
    last = [{"role": "user", "content": head + tail}]
    assert chat(last).startswith(chat([{"role": "user", "content": head}]))


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


@given(ids.filter(bool), ids)
def test_ids_that_go_on_keep_their_bytes(head: list[int], tail: list[int]) -> None:
    assert completion(head + tail).startswith(completion(head))


@given(prompts)
def test_ids_are_counted_and_text_is_not(prompt: Any) -> None:
    given_ids = [one for one in plain(prompt) if isinstance(one, list)]
    expected = sum(map(len, given_ids)) if given_ids else None
    assert exact_tokens(completion(prompt)) == expected
    assert text_bytes(completion(prompt)) == (0 if given_ids else len(completion(prompt)))


@pytest.mark.parametrize("prompt", [["a", [1]], [[1], "a"], [1, [2, 3]], [[1, 2], 3], ["a", 1], [[1], 2, 3]])
def test_mixtures_are_refused(prompt: Any) -> None:
    with pytest.raises(ClientError, match="mixes") as caught:
        completion(prompt)
    assert caught.value.param == "prompt"


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "data:,A"}},
        {"type": "image_url", "image_url": "data:,A"},
        {"type": "input_audio", "input_audio": {"data": "A", "format": "wav"}},
        {"type": "file", "file": {"file_id": "A"}},
        {"type": "video_url", "video_url": {"url": "A"}},
        {"type": "image_url", "image_url": {"url": "data:,A"}, "text": "a caption that hides nothing"},
        {"type": "text", "text": None},
        {"type": "something new", "data": "A"},
        {"type": ["odd"]},
        {},
    ],
)
def test_parts_that_are_not_text_count_by_content(part: dict[str, Any]) -> None:
    bytes_of = chat([{"role": "user", "content": [part]}])
    assert bytes_of == chat([{"role": "user", "content": [dict(reversed(part.items()))]}])
    assert bytes_of != chat([{"role": "user", "content": [{**part, "more": 1}]}])
    assert text_bytes(bytes_of) == 0
    assert text_bytes(chat([{"role": "user", "content": "a"}])) > 0


def test_a_chat_of_text_alone_is_known_as_such() -> None:
    def text_only(*parts: Any) -> bool:
        body = {"model": "m", "messages": [{"role": "user", "content": list(parts)}]}
        return CHAT.parse(json.dumps(body).encode(), {}).text_only

    picture = {"type": "image_url", "image_url": {"url": "data:,A"}}
    assert text_only("a", {"type": "text", "text": "\u00ffM0123"})
    assert not text_only("a", picture)
    assert not COMPLETION.parse(b'{"model": "m", "prompt": [1, 2]}', {}).text_only


def test_marks_for_caching_move_without_changing_the_prompt() -> None:
    plainly = [{"role": "user", "content": [{"type": "text", "text": "a"}]}]
    marked = [
        {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]}
    ]
    assert chat(plainly) == chat(marked)


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

    def called(*calls: dict[str, Any]) -> bytes:
        return chat([{"role": "assistant", "tool_calls": list(calls)}])

    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"b": 1, "a": 2}'}}
    assert called(call) == called(dict(reversed(call.items())))
    assert chat(said, tools=[5, "odd", {}, {"function": 5}]).endswith(chat(said))


def test_fields_that_only_shape_the_answer_are_not_in_it() -> None:
    messages = [{"role": "user", "content": "hello"}]
    assert chat(messages) == chat(
        messages, temperature=0.1, n=2, logprobs=True, top_logprobs=3, tool_choice="auto", seed=1, stop=["x"],
        response_format={"type": "json_schema"}, reasoning_effort="low", parallel_tool_calls=False,
    )  # fmt: skip


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
    assert CHAT.parse(body, {}).max_output_tokens == limit


@pytest.mark.parametrize(
    ("fields", "session"),
    [
        ({"session_id": "s", "metadata": {"session_id": "m"}, "prompt_cache_key": "k", "user": "u"}, "s"),
        ({"metadata": {"session_id": "m"}, "prompt_cache_key": "k", "user": "u"}, "m"),
        ({"prompt_cache_key": "k", "safety_identifier": "p", "user": "u"}, "k"),
        ({"safety_identifier": "p", "user": "u"}, "p"),
        ({"session_id": 7, "metadata": {"session_id": ""}, "prompt_cache_key": None, "user": "u"}, "u"),
        ({"metadata": {"request_id": "r"}, "request_id": "r", "id": "r"}, ""),
    ],
)
def test_the_session_hint_in_the_body_has_an_order(fields: dict[str, Any], session: str) -> None:
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "a"}], **fields}).encode()
    assert CHAT.parse(body, {"x-request-id": "r"}).session == session


@pytest.mark.parametrize("depth", [100, 500, 900, 2_000, 50_000])
@pytest.mark.parametrize("field", ["tools", "metadata", "unknown", "messages"])
def test_depth_is_read_or_refused_in_words(field: str, depth: int) -> None:
    nested = '{"a":' * depth + "1" + "}" * depth
    value = nested if field == "metadata" else f"[{nested}]"
    messages = "" if field == "messages" else '"messages":[{"role":"user","content":"a"}],'
    if field == "messages":
        value = f'[{{"role":"user","content":[{nested}]}}]'
    body = f'{{"model":"m",{messages}"{field}":{value}}}'.encode()
    try:
        assert CHAT.parse(body, {}).canonical
    except ClientError as error:
        refused = error.status == 400 and "nested" in error.message
        assert refused, "both answers are right"


def test_a_large_body_is_read() -> None:
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "word " * 4_000_000}]}).encode()
    assert len(CHAT.parse(body, {}).canonical) == 20_000_000 + len(b"\xffRuser\xffC")


def test_the_last_of_equal_keys_counts_as_engines_read_it() -> None:
    body = (
        b'{"model":"a","messages":[{"role":"user","content":"x"}],"model":"b","max_tokens":1,"max_tokens":2}'
    )
    parsed = CHAT.parse(body, {})
    assert (parsed.model, parsed.max_output_tokens) == ("b", 2)
