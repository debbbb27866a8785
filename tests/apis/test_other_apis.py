"""What is particular to one API: framing, odd fields, refusals in its words."""

from __future__ import annotations

import json
from array import array
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.apis.anthropic import CountTokens, Messages
from epp.apis.canonical import exact_ids, exact_tokens
from epp.apis.generate import Generate, Llama, Tokens
from epp.apis.openai import Chat
from epp.apis.pooling import MAX_REPEATED_BYTES, Rerank, Score
from epp.apis.responses import Responses
from epp.errors import ClientError
from epp.tokens.estimate import EstimateCounter
from tests.kit.apis import ONE, TWO

if TYPE_CHECKING:
    from epp.apis.types import ParsedRequest


def messages(*given: Any, **fields: Any) -> ParsedRequest:
    body = {"model": "m", "max_tokens": 5, "messages": list(given), **fields}
    return Messages.parse(json.dumps(body).encode(), {})


def response(given: Any, **fields: Any) -> ParsedRequest:
    return Responses.parse(json.dumps({"model": "m", "input": given, **fields}).encode(), {})


def generate(**fields: Any) -> ParsedRequest:
    return Generate.parse(json.dumps(fields).encode(), {})


def tokens(**fields: Any) -> ParsedRequest:
    return Tokens.parse(json.dumps({"sampling_params": {}, **fields}).encode(), {})


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


# Anthropic

WEATHER = {"name": "f", "description": "d", "input_schema": {"type": "object"}}
USE = {"type": "tool_use", "id": "t1", "name": "f", "input": {"b": 1, "a": 2}}
RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "rain"}]}


def test_messages_are_framed_as_the_chat_that_engines_make_of_them() -> None:
    spoken = messages(
        user("hi"), {"role": "assistant", "content": [USE]}, user([RESULT, {"type": "text", "text": "and?"}]),
        system=[{"type": "text", "text": "be "}, {"type": "text", "text": "kind"}], tools=[WEATHER],
    )  # fmt: skip
    call = {"id": "t1", "type": "function", "function": {"name": "f", "arguments": '{"b":1,"a":2}'}}
    tool = {
        "type": "function",
        "function": {"name": "f", "description": "d", "parameters": {"type": "object"}},
    }
    chat = {
        "model": "m",
        "tools": [tool],
        "messages": [
            {"role": "system", "content": "be kind"},
            user("hi"),
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "t1", "content": "rain"},
            user("and?"),
        ],
    }
    assert spoken.canonical == Chat.parse(json.dumps(chat).encode(), {}).canonical


def test_claude_codes_line_of_attribution_is_no_part_of_the_prompt() -> None:
    def system(mark: str) -> bytes:
        line = f"x-anthropic-billing-header: cc_version=2.1; cch={mark};"
        return messages(user("a"), system=[{"type": "text", "text": t} for t in (line, "be kind")]).canonical

    assert system("1a2b3") == system("4c5d6") == messages(user("a"), system="be kind").canonical


def test_a_system_message_among_the_messages_is_read_as_the_system_prompt_and_stays_there() -> None:
    def spoken(mark: str, *more: Any) -> bytes:
        line = {"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1; cch={mark};"}
        kind = [line, {"type": "text", "text": "be "}, {"type": "text", "text": "kind"}]
        return messages({"role": "system", "content": kind}, user("a"), *more).canonical

    assert spoken("1a2b3") == spoken("4c5d6") == messages(user("a"), system="be kind").canonical
    reminder = {"role": "system", "content": "5000 tokens left"}
    assert spoken("1a2b3", reminder).startswith(spoken("1a2b3"))
    assert spoken("1a2b3", reminder, user("b")).startswith(spoken("1a2b3", reminder))
    assert spoken("1a2b3", reminder) != spoken("1a2b3", user("5000 tokens left"))


@pytest.mark.parametrize(
    "block",
    [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ONE}},
        {"type": "document", "source": {"type": "file", "file_id": "f"}},
        {"type": "document", "source": {"type": "text", "data": "long"}, "title": "T"},
        {"type": "redacted_thinking", "data": "x"},
        {"type": "thinking", "thinking": "deep"},
        {"type": "tool_result", "tool_use_id": "t", "content": "x"},
        {"type": ["odd"]},
    ],
)
def test_every_block_is_read_and_tells_apart(block: dict[str, Any]) -> None:
    assert messages(user([block])).canonical != messages(user([])).canonical
    assert messages(user([block])).canonical == messages(user([dict(reversed(block.items()))])).canonical


def test_counting_needs_no_prefill() -> None:
    counted = CountTokens.parse(json.dumps({"model": "m", "messages": [user("a" * 9999)]}).encode(), {})
    assert (counted.canonical, counted.max_output_tokens, EstimateCounter().count(counted)) == (b"", 0, 0)


# Responses


def test_responses_are_framed_as_the_chat_that_engines_make_of_them() -> None:
    flat: dict[str, Any] = {
        "type": "function",
        "name": "f",
        "description": "d",
        "parameters": {},
        "strict": None,
    }
    said = response(
        [
            user([{"type": "input_text", "text": "hi"}]),
            {
                "type": "reasoning",
                "id": "r",
                "content": [{"type": "reasoning_text", "text": "hm"}],
                "summary": [],
            },
            {
                "type": "function_call",
                "id": "x",
                "call_id": "c",
                "name": "f",
                "arguments": "{}",
                "status": "done",
            },
            {"type": "function_call_output", "call_id": "c", "output": "rain"},
        ],
        instructions="be kind",
        tools=[flat],
    )
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    tool = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {}}}
    chat = {
        "model": "m",
        "tools": [tool],
        "messages": [
            {"role": "system", "content": "be kind"},
            user("hi"),
            {"role": "assistant", "reasoning_content": "hm", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": "rain"},
        ],
    }
    assert said.canonical == Chat.parse(json.dumps(chat).encode(), {}).canonical


@pytest.mark.parametrize(
    "item",
    [
        {"type": "item_reference", "id": "x"},
        {"type": "reasoning", "encrypted_content": "x", "summary": []},
        {
            "type": "computer_call_output",
            "call_id": "c",
            "output": {"type": "computer_screenshot", "image_url": "x"},
        },
        {"type": "custom_tool_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "x"}]},
        {"type": ["odd"]},
    ],
)
def test_every_item_is_read_and_tells_apart(item: dict[str, Any]) -> None:
    assert response([user("a"), item]).canonical != response([user("a")]).canonical


# Rankings


def test_a_ranking_counts_the_query_for_every_document_within_bounds() -> None:
    def size(query: str, documents: int) -> int:
        body = {"query": query, "documents": ["d"] * documents}
        return len(Rerank.parse(json.dumps(body).encode(), {}).canonical)

    assert size("q" * 100, 10) > 1000
    assert size("q" * 100_000, 1000) < 3 * MAX_REPEATED_BYTES


@pytest.mark.parametrize(
    "body",
    [
        {"queries": "q", "documents": "d"},
        {"queries": ["q"], "items": ["d"]},
        {"text_1": "q", "text_2": ["d"]},
        {"data_1": ["q"], "data_2": "d"},
        {"text_1": [1, 2], "text_2": "d"},
        {"text_1": {"content": [{"type": "text", "text": "q"}]}, "text_2": {"content": ["d", "e"]}},
    ],
)
def test_a_score_has_two_sides_by_any_name(body: dict[str, Any]) -> None:
    assert Score.parse(json.dumps(body).encode(), {}).canonical


# Generate


def test_media_stand_where_the_text_names_them() -> None:
    first = generate(text="a <image> b", image_data=[ONE]).canonical
    later = generate(text="a <image> b and c <image> d", image_data=[ONE, TWO]).canonical
    assert later.startswith(first)
    unplaced = generate(text="a b", image_data=[ONE])
    assert unplaced.canonical.startswith(b"\xffM")
    assert not unplaced.text_only


@pytest.mark.parametrize(
    ("sampling", "limit"),
    [
        (None, 128),
        ({}, 128),
        ({"max_new_tokens": 5}, 5),
        ({"max_new_tokens": None}, 128),
        ([{"max_new_tokens": 5}, {"max_new_tokens": 9}], 9),
        ([], 128),
    ],
)
def test_the_output_limit_of_a_batch_is_its_longest(sampling: Any, limit: int) -> None:
    assert generate(text=["a", "b"], sampling_params=sampling).max_output_tokens == limit


@given(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=20), st.data())
def test_media_change_the_ids_in_their_places_only(ids: list[int], data: st.DataObject) -> None:
    offset = data.draw(st.integers(0, len(ids)))
    length = data.draw(st.integers(0, len(ids) - offset))
    features = {
        "mm_hashes": {"image": ["abc"]},
        "mm_placeholders": {"image": [{"offset": offset, "length": length}]},
    }
    plain, placed = tokens(token_ids=ids), tokens(token_ids=ids, features=features)
    assert exact_tokens(placed.canonical) == len(ids)
    changed = [
        n for n in range(len(ids)) if plain.canonical[2 + 4 * n :][:4] != placed.canonical[2 + 4 * n :][:4]
    ]
    assert changed == list(range(offset, offset + length))


def test_ids_among_which_media_stand_are_no_exact_ids() -> None:
    features = {"mm_hashes": {"image": ["abc"]}, "mm_placeholders": {"image": [{"offset": 1, "length": 1}]}}
    assert exact_ids(tokens(token_ids=[1, 2, 3]).canonical) == array("I", [1, 2, 3]).tobytes()
    assert exact_ids(tokens(token_ids=[1, 2, 3], features=features).canonical) == b""


@pytest.mark.parametrize(
    "features",
    [
        {"mm_hashes": {"image": ["a"]}, "mm_placeholders": {"image": [{"offset": 2, "length": 2}]}},
        {"mm_hashes": {"image": []}, "mm_placeholders": {"image": [{"offset": 0, "length": 1}]}},
        {"mm_hashes": {"image": ["a", "b"]}, "mm_placeholders": {"image": [{"offset": 0, "length": 3}] * 2}},
    ],
)
def test_places_outside_of_the_prompt_are_refused(features: dict[str, Any]) -> None:
    with pytest.raises(ClientError) as caught:
        tokens(token_ids=[1, 2, 3], features=features)
    assert caught.value.param == "features"


def test_llama_cpp_takes_code_around_a_gap_and_mixtures_of_text_and_tokens() -> None:
    def canonical(**body: object) -> bytes:
        return Llama.parse(json.dumps(body).encode(), {}).canonical

    code = {"input_prefix": "def f(", "input_suffix": "return 1"}
    first = canonical(**code, input_extra=[{"filename": "a.py", "text": "x = 1"}])
    assert canonical(**code) != first
    assert first.startswith(canonical(prompt="x = 1"))
    assert canonical(prompt=[1, 2, "hi"]) != canonical(prompt=[1, 3, "hi"])
