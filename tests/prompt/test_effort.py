"""How hard to think: part of the prompt, and its beginning, for models that are told so before all else."""

from __future__ import annotations

import json
from typing import Any

import pytest

from epp.prompt.anthropic import MessagesParser
from epp.prompt.content import prompt_content
from epp.prompt.openai import ChatParser
from epp.prompt.responses import ResponsesParser

SAID: list[dict[str, Any]] = [{"role": "user", "content": "hello"}]
#: API -> its body, and where it says how hard to think.
PLACES: dict[str, tuple[Any, dict[str, Any], list[Any]]] = {
    "chat": (
        ChatParser(),
        {"messages": SAID},
        [
            lambda effort: {"reasoning_effort": effort},
            lambda effort: {"reasoning": {"effort": effort}},
            lambda effort: {"chat_template_kwargs": {"reasoning_effort": effort}},
        ],
    ),
    "responses": (ResponsesParser(), {"input": SAID}, [lambda effort: {"reasoning": {"effort": effort}}]),
    "messages": (
        MessagesParser(),
        {"messages": SAID, "max_tokens": 5},
        [
            lambda effort: {"output_config": {"effort": effort}},
            lambda effort: {"chat_template_kwargs": {"reasoning_effort": effort}},
        ],
    ),
}


@pytest.mark.parametrize("api", PLACES)
def test_prompts_of_gpt_oss_part_at_their_effort(api: str) -> None:
    """Harmony's first message says it: chats of two efforts share not even their system prompt."""
    parser, body, places = PLACES[api]

    def canonical(model: str, **fields: Any) -> bytes:
        canonical: bytes = parser.parse(json.dumps({"model": model, **body, **fields}).encode(), {}).canonical
        return canonical

    plain = canonical("openai/gpt-oss-120b")
    for place in places:
        low, high, usual = (
            canonical("openai/gpt-oss-120b", **place(effort)) for effort in ("low", "high", "medium")
        )
        assert usual == plain
        assert low[:5] != high[:5]
        assert low.endswith(plain)
        assert prompt_content(low) == prompt_content(plain)
        assert canonical("GPTOSS", **place("low")) == low
        assert canonical("qwen3-8b", **place("low")) == canonical("qwen3-8b") == plain


@pytest.mark.parametrize("odd", [None, 5, "", [], {}, {"effort": None}, {"effort": 0.5}, {"effort": []}])
def test_an_effort_that_is_no_word_is_none(odd: Any) -> None:
    said = {"model": "gpt-oss-20b", "messages": SAID}
    plain = ChatParser().parse(json.dumps(said).encode(), {})
    asked = said | {"reasoning": odd, "reasoning_effort": odd, "chat_template_kwargs": odd}
    assert ChatParser().parse(json.dumps(asked).encode(), {}).canonical == plain.canonical
