"""Conversations of any shape, over every API that has them: a turn more only adds bytes, and nothing collides."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from epp.apis.anthropic import parse_messages
from epp.apis.responses import parse_responses

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
    return parse_messages(json.dumps(body).encode(), {}).canonical


@settings(max_examples=50)
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
    return parse_responses(json.dumps({"model": "m", "input": given_, **fields}).encode(), {}).canonical


@settings(max_examples=50)
@given(items, items, text)
def test_responses(one: list[Any], two: list[Any], instructions: str) -> None:
    first, both = (response(turns, instructions=instructions) for turns in (one, one + two))
    assert both.startswith(first)
    assert len(both) > len(first)
