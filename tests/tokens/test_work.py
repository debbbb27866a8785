"""What reading a prompt back costs beside its tokens: no more than in proportion to its length."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from epp.apis.body_values import MAX_BODY_VALUES
from epp.apis.content import prompt_content
from epp.apis.generate import SGLangGenerateParser
from epp.apis.openai import ChatParser
from epp.tokens import token_offsets as offsets
from epp.tokens.token_offsets import token_offsets

if TYPE_CHECKING:
    import pytest

PART = "some twenty characters"


class Searched(bytes):
    """Tells how much of it was searched in vain."""

    in_vain = 0

    def find(self, needle: Any, *places: Any) -> int:
        found = super().find(needle, *places)
        Searched.in_vain += len(self) - places[0] if found < 0 else 0
        return found


def canonical(*messages: dict[str, Any]) -> bytes:
    body = json.dumps({"model": "m", "messages": messages}).encode()
    return ChatParser().parse(body, {}).canonical


def test_a_message_of_many_parts_is_joined_once() -> None:
    parts = 110_000
    framed = canonical({"role": "user", "content": [{"type": "text", "text": PART}] * parts})
    began_s = time.process_time()
    (message,) = prompt_content(framed).messages
    assert time.process_time() - began_s < 5.0, "joined one by one it takes a minute"
    assert message["content"] == "\n".join([PART] * parts)


def test_a_calls_arguments_are_read_within_the_bounds_of_bodies() -> None:
    def arguments(text: str) -> Any:
        call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": text}}
        (message,) = prompt_content(canonical({"role": "assistant", "tool_calls": [call]})).messages
        return message["tool_calls"][0]["function"]["arguments"]

    assert arguments('{"a": [1, 1e999]}') == {"a": [1, float("inf")]}
    crowded = "[" + "[]," * MAX_BODY_VALUES + "1]"
    assert arguments(crowded) == crowded, "a text of JSON: its values are not counted with the body's"


def test_contents_that_a_template_spells_otherwise_are_not_looked_for_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    framed = canonical(
        {"role": "user", "content": PART}, *[{"role": "assistant", "tool_calls": [call]}] * 500
    )
    rendered = Searched(f"<user>{PART}".encode() + b"<call>look()" * 500)
    whole = token_offsets(framed, rendered, [len(rendered)], [1000], 64)
    assert Searched.in_vain > 400 * len(rendered), "each of them is looked for to the end"
    Searched.in_vain = 0
    monkeypatch.setattr(offsets, "_MOST_SEARCHED", 10 * len(rendered))
    assert token_offsets(framed, rendered, [len(rendered)], [1000], 64) == whole, "what was found counts"
    assert Searched.in_vain <= 11 * len(rendered)


def test_a_text_with_media_inside_is_one_prompt() -> None:
    body = {"text": ["before <image> behind", "<image>", "plain"], "image_data": ["a.png", "b.png"]}
    framed = SGLangGenerateParser().parse(json.dumps(body).encode(), {}).canonical
    content = prompt_content(framed)
    assert content.texts == body["text"], "a tokenizer puts its marks around each of them once"
    assert content.media_tokens > 0
