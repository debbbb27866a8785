"""What is particular to one API: framing, odd fields, refusals in its words."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.apis import pooling
from epp.apis.anthropic import CountTokensParser, MessagesParser
from epp.apis.canonical import exact_tokens, text_bytes
from epp.apis.generate import SGLangGenerateParser, VllmGenerateParser
from epp.apis.openai import ChatParser
from epp.apis.pooling import MAX_REPEATED_CHARS, RerankParser, ScoreParser
from epp.apis.responses import ResponsesParser
from epp.errors import ClientError
from epp.tokens.estimate import EstimateCounter
from tests.kit.apis import ONE, TWO

if TYPE_CHECKING:
    from epp.apis.types import ParsedRequest

CHAT, RESPONSES, MESSAGES, COUNT = ChatParser(), ResponsesParser(), MessagesParser(), CountTokensParser()
RERANK, SCORE, TOKENS, GENERATE = RerankParser(), ScoreParser(), VllmGenerateParser(), SGLangGenerateParser()


def messages(*given: Any, **fields: Any) -> ParsedRequest:
    body = {"model": "m", "max_tokens": 5, "messages": list(given), **fields}
    return MESSAGES.parse(json.dumps(body).encode(), {})


def response(given: Any, **fields: Any) -> ParsedRequest:
    return RESPONSES.parse(json.dumps({"model": "m", "input": given, **fields}).encode(), {})


def generate(**fields: Any) -> ParsedRequest:
    return GENERATE.parse(json.dumps(fields).encode(), {})


def tokens(**fields: Any) -> ParsedRequest:
    return TOKENS.parse(json.dumps({"sampling_params": {}, **fields}).encode(), {})


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
    assert spoken.canonical == CHAT.parse(json.dumps(chat).encode(), {}).canonical


def test_claude_codes_line_of_attribution_is_no_part_of_the_prompt() -> None:
    def system(mark: str) -> bytes:
        line = f"x-anthropic-billing-header: cc_version=2.1; cch={mark};"
        return messages(user("a"), system=[{"type": "text", "text": t} for t in (line, "be kind")]).canonical

    assert system("1a2b3") == system("4c5d6") == messages(user("a"), system="be kind").canonical


def test_a_system_prompt_of_one_text_is_kept_whole_whatever_it_begins_with() -> None:
    """Engines take the line out as a block of its own alone (vLLM); in one text it is part of their prompt."""
    line = "x-anthropic-billing-header: cc_version=2.1; cch=1a2b3;"
    one, two = (messages(user("a"), system=f"{line}\n{rest}") for rest in ("be kind", "be brief"))
    assert one.canonical != two.canonical
    assert b"be kind" in one.canonical


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
        {"type": "image", "source": {"type": "url", "url": "https://x/a"}},
        {"type": "document", "source": {"type": "file", "file_id": "f"}},
        {
            "type": "document",
            "source": {"type": "text", "media_type": "text/plain", "data": "long"},
            "title": "T",
        },
        {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "x"}]}},
        {"type": "redacted_thinking", "data": "x"},
        {"type": "thinking", "thinking": "deep"},
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
        {"type": "tool_result", "tool_use_id": "t", "content": "x"},
        {"type": "tool_result", "tool_use_id": "t"},
        {"type": "tool_result", "tool_use_id": 5, "content": {"odd": 1}},
        {"type": "something new", "x": 1},
        {"type": ["odd"]},
        {"type": "text", "text": None},
        {},
    ],
)
def test_every_block_is_read_and_tells_apart(block: dict[str, Any]) -> None:
    assert messages(user([block])).canonical != messages(user([])).canonical
    assert messages(user([block])).canonical == messages(user([dict(reversed(block.items()))])).canonical


def test_counting_needs_no_prefill() -> None:
    counted = COUNT.parse(json.dumps({"model": "m", "messages": [user("a" * 9999)]}).encode(), {})
    assert (counted.canonical, counted.max_output_tokens, EstimateCounter().count(counted)) == (b"", 0, 0)


def test_a_session_of_claude_code_is_its_header_or_its_user_id() -> None:
    body = json.dumps({"model": "m", "max_tokens": 1, "messages": [user("a")], "metadata": {"user_id": "u"}})
    assert MESSAGES.parse(body.encode(), {"x-claude-code-session-id": "h"}).session == "h"
    assert MESSAGES.parse(body.encode(), {}).session == "u"


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
    assert said.canonical == CHAT.parse(json.dumps(chat).encode(), {}).canonical


def test_a_text_is_a_message_of_the_user() -> None:
    assert response("hi").canonical == response([user("hi")]).canonical
    assert response("hi").canonical == response([{"type": "message", **user("hi"), "id": "m"}]).canonical
    assert response("hi").canonical != response("hi", previous_response_id="r").canonical


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
        {"type": "web_search_call", "id": "w", "action": {"query": "x"}},
        {"type": "custom_tool_call", "call_id": "c", "name": "f", "input": "x"},
        {"type": "custom_tool_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "x"}]},
        {"type": ["odd"]},
        {"type": "function_call"},
    ],
)
def test_every_item_is_read_and_tells_apart(item: dict[str, Any]) -> None:
    assert response([user("a"), item]).canonical != response([user("a")]).canonical


def test_a_stored_prompt_needs_no_input() -> None:
    body = b'{"model": "m", "prompt": {"id": "pmpt_1", "variables": {"x": "y"}}}'
    assert RESPONSES.parse(body, {}).canonical


# Rankings


def test_a_ranking_counts_the_query_for_every_document_within_bounds() -> None:
    def size(query: str, documents: int) -> int:
        body = {"query": query, "documents": ["d"] * documents}
        return len(RERANK.parse(json.dumps(body).encode(), {}).canonical)

    assert size("q" * 100, 10) > 1000
    assert size("q" * 100_000, 1000) < 3 * MAX_REPEATED_CHARS


def test_a_query_is_spelled_out_once_however_many_documents_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spelled: list[object] = []
    plain = pooling._chars

    def counting(side: object) -> int:
        spelled.append(side)
        return plain(side)

    monkeypatch.setattr(pooling, "_chars", counting)
    for query in ("q", [1] * 10_000, {"content": ["q"] * 100}):
        RERANK.parse(json.dumps({"query": query, "documents": [""] * 2000}).encode(), {})
    assert len(spelled) == 3


def test_a_query_of_any_depth_is_read_or_refused() -> None:
    said = set()
    for depth in range(700, 1100):
        body = b'{"query":' + b'{"a":' * depth + b"1" + b"}" * depth + b',"documents":["a","b"]}'
        try:
            said.add(RERANK.parse(body, {}).canonical[:2])
        except ClientError as error:
            said.add(error.message.encode())
    assert all(b"nested too deeply" in word for word in said - {b"\xffQ"})


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
    assert SCORE.parse(json.dumps(body).encode(), {}).canonical


def test_pairs_are_told_apart() -> None:
    def pairs(one: Any, two: Any) -> bytes:
        return SCORE.parse(json.dumps({"text_1": one, "text_2": two}).encode(), {}).canonical

    assert pairs("q", "d") == pairs(["q"], ["d"])
    seen = [pairs("q", ["d", "e"]), pairs(["q", "r"], ["d", "e"]), pairs("q", "de"), pairs("qd", "e")]
    assert len(set(seen)) == 4


# Generate


def test_media_stand_where_the_text_names_them() -> None:
    first = generate(text="a <image> b", image_data=[ONE]).canonical
    later = generate(text="a <image> b and c <image> d", image_data=[ONE, TWO]).canonical
    assert later.startswith(first)
    unplaced = generate(text="a b", image_data=[ONE]).canonical
    assert unplaced.startswith(b"\xffM")
    assert text_bytes(unplaced) == 0


@pytest.mark.parametrize(
    ("fields", "salt"),
    [
        ({"cache_salt": "s"}, "s"),
        ({"cache_salt": ""}, ""),
        ({"lora_path": "adapter"}, '[null,null,"adapter"]'),
        ({"cache_salt": "s", "extra_key": "k"}, '["s","k",null]'),
        ({"cache_salt": ["a", "b"]}, '[["a","b"],null,null]'),
    ],
)
def test_what_keeps_prefixes_apart_is_the_salt(fields: dict[str, Any], salt: str) -> None:
    assert generate(text="a", **fields).cache_salt == salt


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


@pytest.mark.parametrize(
    "features",
    [
        {"mm_hashes": {"image": ["a"]}, "mm_placeholders": {"image": [{"offset": 2, "length": 2}]}},
        {"mm_hashes": {"image": ["a"]}, "mm_placeholders": {"image": [{"offset": -1, "length": 1}]}},
        {"mm_hashes": {"image": ["a"]}, "mm_placeholders": {"image": [{"offset": 0, "length": -1}]}},
        {"mm_hashes": {"image": []}, "mm_placeholders": {"image": [{"offset": 0, "length": 1}]}},
        {"mm_hashes": {"image": ["a", "b"]}, "mm_placeholders": {"image": [{"offset": 0, "length": 3}] * 2}},
    ],
)
def test_places_outside_of_the_prompt_are_refused(features: dict[str, Any]) -> None:
    with pytest.raises(ClientError) as caught:
        tokens(token_ids=[1, 2, 3], features=features)
    assert caught.value.param == "features"


def test_features_without_places_are_let_be() -> None:
    assert tokens(token_ids=[1], features={"mm_hashes": None}).canonical == tokens(token_ids=[1]).canonical


def test_embeddings_instead_of_text_are_told_apart() -> None:
    assert generate(input_embeds=[[0.5]]).canonical != generate(input_embeds=[[0.25]]).canonical


@pytest.mark.parametrize("ids", [[[1], 2], [[]], [], [4294967295]])
def test_ids_that_are_none_are_refused(ids: Any) -> None:
    with pytest.raises(ClientError):
        generate(input_ids=ids)


@pytest.mark.parametrize("content", ["hello", [{"type": "text", "text": "hello"}]])
def test_roles_of_claude_code_are_the_user_s(content: Any) -> None:
    """Templates know no others, and engines render these as the user's."""
    plain = messages(user(content)).canonical
    for role in ("ctx", "msg"):
        assert messages({"role": role, "content": content}).canonical == plain
    assert messages({"role": "assistant", "content": content}).canonical != plain
