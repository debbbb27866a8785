"""Conversations of any shape, over every API that has them: a turn more only adds bytes, and nothing collides."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from epp.apis.anthropic import MessagesParser
from epp.apis.generate import SGLangGenerateParser, VllmGenerateParser
from epp.apis.pooling import RerankParser
from epp.apis.responses import ResponsesParser

MESSAGES, RESPONSES = MessagesParser(), ResponsesParser()
GENERATE, TOKENS, RERANK = SGLangGenerateParser(), VllmGenerateParser(), RerankParser()
MARKS = "\u00ffRCITKMGJPQBV\ufffd"  # letters that tags use, and what 0xFF looks like to careless decoders

text = st.text(st.sampled_from(MARKS + "ab") | st.characters(exclude_categories=["Cs"]), max_size=8)
some = text.filter(bool)


def fixed(**fields: Any) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {
            name: value if isinstance(value, st.SearchStrategy) else st.just(value)
            for name, value in fields.items()
        }
    )


def listed(*kinds: Any, least: int = 1) -> Any:
    return st.lists(st.one_of(*kinds), min_size=least, max_size=3)


said = fixed(type="text", text=text)
seen = fixed(type="image", source=fixed(type="base64", media_type="image/png", data=some))
thought = fixed(type="thinking", thinking=some, signature=text)
used = fixed(type="tool_use", id=some, name=some, input=st.dictionaries(text, text, max_size=2))
result = fixed(type="tool_result", tool_use_id=some, content=text | listed(said, seen))
message = st.one_of(
    fixed(role="user", content=text | listed(said, seen)),
    fixed(role="user", content=listed(result)),
    fixed(role="assistant", content=text | listed(said, thought, used)),
)
talk = st.lists(message, min_size=1, max_size=4)


def messages(given_: list[Any], **fields: Any) -> bytes:
    body = {"model": "m", "max_tokens": 1, "messages": given_, **fields}
    return MESSAGES.parse(json.dumps(body).encode(), {}).canonical


@settings(max_examples=50)
@given(talk, talk, text, st.lists(fixed(name=some, input_schema=fixed(type="object")), max_size=2))
def test_messages(one: list[Any], two: list[Any], system: str, tools: list[Any]) -> None:
    first, both = (messages(turns, system=system, tools=tools) for turns in (one, one + two))
    assert both.startswith(first)
    assert len(both) > len(first)


def rendered(turns: list[Any]) -> list[Any]:
    """What engines see of turns: results as messages of their own, no signatures, plain texts as parts."""
    shown: list[Any] = []
    for turn in turns:
        content = turn["content"]
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if parts[0]["type"] != "tool_result":
            kept = [{name: value for name, value in part.items() if name != "signature"} for part in parts]
            shown.append([turn["role"], kept])
            continue
        for part in parts:
            inner = part["content"]
            inner = [{"type": "text", "text": inner}] if isinstance(inner, str) else inner
            shown.append(["tool", part["tool_use_id"], inner])
    return shown


@settings(max_examples=50)
@given(talk, talk)
def test_no_two_talks_of_any_shape_have_equal_bytes(one: list[Any], two: list[Any]) -> None:
    spelled = json.dumps(rendered(one)), json.dumps(rendered(two))
    assert (messages(one) == messages(two)) == (spelled[0] == spelled[1])


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
    return RESPONSES.parse(json.dumps({"model": "m", "input": given_, **fields}).encode(), {}).canonical


@settings(max_examples=50)
@given(items, items, text)
def test_responses(one: list[Any], two: list[Any], instructions: str) -> None:
    first, both = (response(turns, instructions=instructions) for turns in (one, one + two))
    assert both.startswith(first)
    assert len(both) > len(first)


ids = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=8)


@given(ids, ids)
def test_token_ids(head: list[int], tail: list[int]) -> None:
    def vllm(given_: list[int]) -> bytes:
        return TOKENS.parse(json.dumps({"token_ids": given_, "sampling_params": {}}).encode(), {}).canonical

    def sglang(given_: list[int]) -> bytes:
        return GENERATE.parse(json.dumps({"input_ids": given_}).encode(), {}).canonical

    assert vllm(head + tail).startswith(vllm(head))
    assert sglang(head + tail) == vllm(head + tail)


@given(st.lists(some, min_size=1, max_size=4), text, st.lists(some, min_size=1, max_size=4))
def test_generate_with_media(images: list[str], words: str, more: list[str]) -> None:
    def spoken(count: int) -> str:
        return "".join(f"{words}<image>{number}" for number in range(count))

    every = [*images, *more]
    first = {"text": spoken(len(images)), "image_data": images}
    later = {"text": spoken(len(every)) + words, "image_data": every}
    one, two = (GENERATE.parse(json.dumps(body).encode(), {}).canonical for body in (first, later))
    assert two.startswith(one)


@given(some, st.lists(some, min_size=1, max_size=4), st.lists(some, max_size=4))
def test_rankings(query: str, documents: list[str], more: list[str]) -> None:
    def ranked(given_: list[str]) -> bytes:
        return RERANK.parse(json.dumps({"query": query, "documents": given_}).encode(), {}).canonical

    assert ranked([*documents, *more]).startswith(ranked(documents))
