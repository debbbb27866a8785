"""Which arguments of a client a chat template puts before the chat, and what that makes of a prompt."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("tokenizers")

from epp.apis.openai import Chat
from epp.apis.rendering import Rendering, by_name
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


def chat(model: str, rendering: Rendering | None = None, **arguments: Any) -> ParsedRequest:
    body = {"model": model, "messages": [{"role": "user", "content": "hello"}]}
    data = json.dumps(body | {"chat_template_kwargs": arguments}).encode()
    return Chat.parse(data, {}, by_name if rendering is None else lambda _: rendering)


def test_prompts_part_at_what_stands_first() -> None:
    first = Rendering({"thinking": (False,), "level": (), "kinds": ()}, lists_first=False)
    plain = chat("prod")
    same: dict[str, Any]
    for same in ({}, {"thinking": False}, {"other": 5}, {"others": ["a"]}, {"kinds": []}):
        assert chat("prod", first, **same).canonical == plain.canonical
    asked, told = chat("prod", thinking=True, level=2), chat("prod", first, thinking=True, level=2)
    assert told.canonical.endswith(plain.canonical)
    assert told.canonical != plain.canonical
    assert told.template_arguments == asked.template_arguments
    assert chat("prod", first, level=2, thinking=True).canonical == told.canonical
    assert chat("prod", first, level=3, thinking=True).canonical[:4] != told.canonical[:4]
    kinds = [chat("prod", first, kinds=kind).canonical for kind in (["a"], ["b"], {"a": 1})]
    assert len({plain.canonical, *kinds}) == 4


def test_lists_stand_first_where_no_template_is_at_hand() -> None:
    """They are tools and documents mostly, which templates put there."""
    one, other = chat("prod", tools_built_in=["a"]), chat("prod", tools_built_in=["b"])
    assert one.canonical[:8] != other.canonical[:8]
    assert one.template_arguments == (("tools_built_in", ["a"]),)
