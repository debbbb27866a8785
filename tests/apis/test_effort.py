"""How hard to think: part of the prompt, and its beginning, for models that are told so before all else."""

from __future__ import annotations

import json
from typing import Any

import pytest

from epp.apis.anthropic import Messages
from epp.apis.content import prompt_content
from epp.apis.openai import Chat
from epp.apis.responses import Responses

SAID: list[dict[str, Any]] = [{"role": "user", "content": "hello"}]
#: API -> its body, and where it says how hard to think.
PLACES: dict[str, tuple[Any, dict[str, Any], list[Any]]] = {
    "chat": (
        Chat.parse,
        {"messages": SAID},
        [
            lambda effort: {"reasoning_effort": effort},
            lambda effort: {"reasoning": {"effort": effort}},
            lambda effort: {"chat_template_kwargs": {"reasoning_effort": effort}},
        ],
    ),
    "responses": (
        Responses.parse,
        {"input": SAID},
        [
            lambda effort: {"reasoning": {"effort": effort}},
            lambda effort: {"chat_template_kwargs": {"reasoning_effort": effort}},
        ],
    ),
    "messages": (
        Messages.parse,
        {"messages": SAID, "max_tokens": 5},
        [
            lambda effort: {"output_config": {"effort": effort}},
            lambda effort: {"chat_template_kwargs": {"reasoning_effort": effort}},
        ],
    ),
}


@pytest.mark.parametrize("api", PLACES)
@pytest.mark.parametrize(
    ("model", "name", "usual", "other"),
    [
        ("openai/gpt-oss-120b", "reasoning_effort", "medium", "low"),
        ("google/gemma-4-31B-it", "enable_thinking", False, True),
        ("moonshotai/Kimi-K3", "thinking_effort", "max", "low"),
    ],
)
def test_prompts_part_at_an_argument_that_the_template_puts_first(
    api: str, model: str, name: str, usual: Any, other: Any
) -> None:
    parser, body, _ = PLACES[api]

    def canonical(model: str, arguments: dict[str, Any]) -> bytes:
        fields = {"model": model, **body, "chat_template_kwargs": arguments}
        canonical: bytes = parser(json.dumps(fields).encode(), {}).canonical
        return canonical

    plain = canonical(model, {})
    assert canonical(model, {name: usual, "other": 5}) == plain
    parted = canonical(model, {"other": 5, name: other})
    assert parted.endswith(plain)
    assert parted != plain
    assert prompt_content(parted) == prompt_content(plain)
    for last in ("qwen3-8b", "deepseek-v3.1", "glm-4.6"):
        assert canonical(last, {name: other}) == canonical(last, {}) == plain


@pytest.mark.parametrize("api", PLACES)
def test_how_hard_to_think_reaches_the_template(api: str) -> None:
    """As vLLM hands it on: any effort but none asks for thinking, too, where the client says nothing on that."""
    parser, body, places = PLACES[api]

    def arguments(**fields: Any) -> dict[str, Any]:
        parsed = parser(json.dumps({"model": "m", **body, **fields}).encode(), {})
        return dict(parsed.template_arguments)

    assert arguments() == {}
    assert arguments(chat_template_kwargs={"enable_thinking": False}) == {"enable_thinking": False}
    *own, by_name = places
    assert arguments(**by_name("low")) == {"reasoning_effort": "low"}
    for place in own:
        assert arguments(**place("low")) == {"reasoning_effort": "low", "enable_thinking": True}
        assert arguments(**place("none")) == {"reasoning_effort": "none", "enable_thinking": False}
        both = arguments(**place("low"), chat_template_kwargs={"enable_thinking": False, "x": 1})
        assert both == {"reasoning_effort": "low", "enable_thinking": False, "x": 1}
