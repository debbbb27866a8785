"""Which arguments of a client a chat template puts before the chat, and what that makes of a prompt."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("tokenizers")

from epp.apis.arguments import with_first
from epp.apis.openai import Chat
from epp.tokens.template import ChatTemplate

if TYPE_CHECKING:
    from epp.apis.types import ParsedRequest

LOOP = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
GO = "{% if add_generation_prompt %}<assistant>{% endif %}"
#: A template -> arguments that stand first, each with values that change nothing there.
TEMPLATES: dict[str, dict[str, set[Any]]] = {
    LOOP + GO: {},
    "{% if thinking %}hm{% endif %}{{ messages[0].content }}": {"thinking": {False}},
    "<s>{% if enable_thinking is defined and enable_thinking %}<|think|>{% endif %}" + LOOP + GO: {
        "enable_thinking": {False}
    },
    "{% if effort is undefined %}{% set effort = 'max' %}{% endif %}"
    "{% if effort not in ['low', 'max'] %}{{ raise_exception('unsupported') }}{% endif %}Effort: {{ effort }}"
    + LOOP: {"effort": {True, False, "none", "medium", "high", "max", 512}},
    # only beside tools; no system prompt; after the system prompt, which is shared then
    "{% if tools %}{{ level }}{% endif %}" + LOOP: {"level": set()},
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}{{ level }}" + LOOP: {
        "level": set()
    },
    "{{ messages[0].content }}{{ level }}{{ messages[1].content }}": {},
    "{{ raise_exception('nothing') }}{{ level }}": {},
}


@pytest.mark.parametrize("source", TEMPLATES)
def test_a_template_tells_what_it_puts_first(source: str) -> None:
    first = ChatTemplate(source).first_arguments()
    assert {name: set(same) for name, same in first.items()} == TEMPLATES[source]
    beside_tools = ChatTemplate(LOOP, source).first_arguments()
    assert set(beside_tools) <= set(first)
    if first:
        assert set(ChatTemplate(source, LOOP).first_arguments()) | set(beside_tools) == set(first)


def chat(model: str, **arguments: Any) -> ParsedRequest:
    body = {"model": model, "messages": [{"role": "user", "content": "hello"}]}
    return Chat.parse(json.dumps(body | {"chat_template_kwargs": arguments}).encode(), {})


def test_prompts_part_at_what_stands_first() -> None:
    first = {"thinking": (False,), "level": ()}
    plain = chat("prod")
    for same in (plain, chat("prod", thinking=False), chat("prod", other=5)):
        assert with_first(same, first).canonical == plain.canonical
    asked = chat("prod", thinking=True, level=2)
    told = with_first(asked, first)
    assert told.canonical.endswith(plain.canonical)
    assert told.canonical != plain.canonical
    assert told.template_arguments == asked.template_arguments
    assert with_first(chat("prod", level=2, thinking=True), first).canonical == told.canonical
    assert with_first(chat("prod", level=3, thinking=True), first).canonical[:4] != told.canonical[:4]
    by_name = chat("gpt-oss", reasoning_effort="low")
    assert with_first(by_name, {"reasoning_effort": ()}) == by_name
