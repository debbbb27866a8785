"""Real tokenizers in the path of a request: a real Envoy and picker, counts as the model's files give them."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("tokenizers")


from tests.kit.picker import Serving
from tests.kit.replicas import MODEL, quick_config
from tests.kit.tokenizers import folder

if TYPE_CHECKING:
    from pathlib import Path

WORDS = "An endpoint picker for inference, \u4f60\u597d\uff0c\u4e16\u754c, na\u00efve caf\u00e9 \U0001f600 and 1234 numbers. "
#: More rounds than a budget of a millisecond has, and a refusal.
SLOW = "{% for i in range(90000) %}{% if i == 89999 %}{{ messages[-1].content }}{% endif %}{% endfor %}"
REFUSING = "{{ raise_exception('no') }}"


def turns(count: int) -> list[dict[str, Any]]:
    messages = [{"role": "system", "content": WORDS * 40}]
    for number in range(count):
        messages.append({"role": "user", "content": f"Question {number}: {WORDS * 20}"})
        messages.append({"role": "assistant", "content": f"Answer {number}. {WORDS * 10}"})
    return [*messages, {"role": "user", "content": f"And {count}?"}]


def serving(tmp_path: Path, template: str = "", budget_ms: float = 10_000) -> Serving:
    shutil.copytree(folder("bytes"), tmp_path / "model")
    if template:
        (tmp_path / "model" / "chat_template.jinja").write_text(template)
    tokens = {"models": {MODEL: {"source": "model"}}, "budget_ms": budget_ms}
    return Serving(tmp_path, replicas=[quick_config("a")], tokens=tokens)


async def decision(picked: Serving) -> dict[str, Any]:
    async with picked.http.get(f"http://{picked.picker.http}/decisions/last") as answer:
        request: dict[str, Any] = (await answer.json())["request"]
    return request


@pytest.mark.parametrize(
    ("template", "budget_ms", "reason"), [(SLOW, 1, "late"), (REFUSING, 10_000, "template")]
)
async def test_a_tokenizer_that_is_slow_or_refuses_costs_nobody_an_answer(
    tmp_path: Path, template: str, budget_ms: float, reason: str
) -> None:
    async with serving(tmp_path, template, budget_ms) as picked:
        for count in range(3):
            status, _ = await picked.chat(messages=turns(count))
            assert status == 200
            text_bytes = sum(len(message["content"].encode()) for message in turns(count))
            assert (await decision(picked))["prompt_tokens"] == pytest.approx(text_bytes / 4, rel=0.05)
        assert await picked.picker.metric("epp_token_estimates_total", reason=reason) == 3


async def test_prompts_part_where_the_template_puts_an_argument_first(tmp_path: Path) -> None:
    """What was cached for one setting is not expected for the other, whose prompts begin in another way."""
    first = "{% if enable_thinking %}<|think|>{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}"
    async with serving(tmp_path, first) as picked:
        for thinks, known in ((True, False), (True, True), (False, False), (False, True), (None, True)):
            arguments: dict[str, Any] = (
                {} if thinks is None else {"chat_template_kwargs": {"enable_thinking": thinks}}
            )
            assert (await picked.chat(messages=turns(4), **arguments))[0] == 200
            async with picked.http.get(f"http://{picked.picker.http}/decisions/last") as answer:
                signals = (await answer.json())["signals"]
            assert (signals["cached_tokens"][0] > signals["uncached_tokens"][0]) == known
