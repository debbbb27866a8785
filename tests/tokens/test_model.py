"""Loading, counting and remembering: what an operator and a conversation see."""

from __future__ import annotations

import shutil
from array import array
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("tokenizers")

from epp.apis.content import prompt_content
from epp.apis.openai import Chat, Completion
from epp.apis.types import NotCountableError
from epp.config.schema import ModelTokenizer
from epp.errors import ConfigError
from epp.tokens.load import load_model
from epp.tokens.template import ChatTemplate
from tests.kit.tokenizers import DATA, folder
from tests.tokens.texts import chat, chat_body

if TYPE_CHECKING:
    from pathlib import Path

    from epp.tokens.model import TokenizerModel

WEATHER = {"type": "function", "function": {"name": "weather", "arguments": '{"city": "Łódź"}'}, "id": "c1"}


def load(source: str, base: Path = DATA, **more: Any) -> TokenizerModel:
    return load_model("m", ModelTokenizer(source=source, **more), base, "epp.yaml")


def canonical(messages: list[dict[str, Any]], **more: Any) -> bytes:
    return Chat.parse(chat_body(messages, **more), {}).canonical


def test_tools_and_calls_are_rendered() -> None:
    messages: list[dict[str, Any]] = [
        {
            "role": "user",
            "content": [{"type": "text", "text": "How is"}, {"type": "text", "text": "the weather?"}],
        },
        {"role": "assistant", "content": None, "tool_calls": [WEATHER]},
        {"role": "tool", "tool_call_id": "c1", "content": "Rain."},
    ]
    tools = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
    (text,) = load("bytes").rendered(prompt_content(canonical(messages, tools=tools)))
    assert text.decode() == (
        '<|im_start|>system\nTools:{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}'
        "<|im_end|>\n<|im_start|>user\nHow is\nthe weather?<|im_end|>\n<|im_start|>assistant\n"
        '<tool_call>weather {"city": "Łódź"}</tool_call><|im_end|>\n<|im_start|>tool\nRain.<|im_end|>\n'
        "<|im_start|>assistant\n"
    )


def test_media_cost_their_estimate() -> None:
    made = load("bytes")
    text = {"type": "text", "text": "What is this?"}
    image = {"type": "image_url", "image_url": {"url": "https://example.test/a.png"}}
    with_image = canonical([{"role": "user", "content": [text, image]}])
    media = prompt_content(with_image).media_tokens
    assert media > 0
    without = made.count(canonical([{"role": "user", "content": [text]}]), 256)[0]
    assert made.count(with_image, 256)[0] == without + media


@pytest.mark.parametrize(
    ("source", "messages", "more"),
    [
        ("pieces", [{"role": "oracle", "content": "hm"}], {}),
        ("bytes", [{"role": "user", "content": "hm"}], {"chat_template": "{{ messages }}"}),
    ],
)
def test_chats_that_nothing_renders_are_not_countable(
    source: str, messages: list[Any], more: dict[str, Any]
) -> None:
    with pytest.raises(NotCountableError, match="template"):
        load(source).count(canonical(messages, **more), 256)


def test_offsets_of_blocks_follow_the_text() -> None:
    made = load("bytes")
    dense, words = "".join(f"{number:04}" for number in range(2000)), "word and word " * 600
    prompt = canonical([{"role": "user", "content": dense}, {"role": "user", "content": words}])
    counted = made.count(prompt, 256)
    offsets = counted[1]
    assert len(offsets) == len(prompt) // 256
    assert list(offsets) == sorted(offsets)
    assert offsets[-1] <= counted[0]
    in_dense = made.count(canonical([{"role": "user", "content": dense}]), 256)[0]
    assert offsets[len(dense) // 256 - 1] == pytest.approx(in_dense, rel=0.05)


class TestTemplates:
    def test_what_templates_expect_is_there(self) -> None:
        source = (
            "{% for m in messages %}{% if loop.index > 2 %}{% break %}{% endif %}{% generation %}{{ m.content }}"
            "{% endgeneration %}{% endfor %}{{ tools | tojson(indent=1) }}{{ strftime_now('%%') }}{{ bos_token }}"
        )
        content = prompt_content(canonical([{"role": "user", "content": text} for text in "abc"]))
        content.tools = [{"é": 1}]
        assert (
            ChatTemplate(source, constants={"bos_token": "<s>"}).render(content)
            == 'ab[\n {\n  "é": 1\n }\n]%<s>'
        )

    def test_the_sandbox_holds(self) -> None:
        content = prompt_content(canonical([{"role": "user", "content": "a"}]))
        for source in (
            "{{ messages.append(1) }}",
            "{{ ''.__class__.__mro__ }}",
            "{{ raise_exception('no') }}",
        ):
            with pytest.raises(NotCountableError):
                ChatTemplate(source).render(content)

    def test_chats_with_tools_have_their_own_where_there_is_one(self) -> None:
        plain, tools = canonical(chat(1)), canonical(chat(1), tools=[{"type": "function"}])
        template = ChatTemplate("plain", "tools")
        assert [template.render(prompt_content(data)) for data in (plain, tools)] == ["plain", "tools"]


class TestConfiguration:
    @pytest.fixture
    def base(self, tmp_path: Path) -> Path:
        shutil.copytree(folder("bytes"), tmp_path / "good")
        shutil.copytree(folder("bytes"), tmp_path / "bad")
        return tmp_path

    def error(self, base: Path, **more: Any) -> str:
        with pytest.raises(ConfigError) as caught:
            load("bad", base, **more)
        assert str(caught.value).startswith("epp.yaml: tokens.models.m.")
        return str(caught.value)

    def test_a_broken_tokenizer_file(self, base: Path) -> None:
        (base / "bad" / "tokenizer.json").write_text('{"version": "1.0"')
        assert "is no tokenizer" in self.error(base)

    def test_a_model_that_takes_no_chats(self, base: Path) -> None:
        (base / "bad" / "tokenizer_config.json").unlink()
        with pytest.raises(NotCountableError, match="template"):
            load("bad", base, chat_template="none").count(canonical(chat(1)), 256)

    def test_arguments_of_clients_reach_the_template_and_replace_nothing_else(self, base: Path) -> None:
        text = (
            "{{ messages | length }} {{ bos_token }} {{ thinking }} {{ effort }} {{ range(2) | list }}"
            "{% if add_generation_prompt %} go{% endif %}"
        )
        (base / "mine.jinja").write_text(text)
        (base / "good" / "tokenizer_config.json").write_text('{"bos_token": "<s>"}')
        counted = load("good", base, chat_template="mine.jinja")
        asked = Chat.parse(
            chat_body(
                [{"role": "user", "content": "hm"}],
                chat_template_kwargs={
                    "thinking": False, "effort": 0.5, "messages": "x", "bos_token": "y", "range": "z",
                    "list": [1], "long": "x" * 300,
                },
                reasoning_effort="low",
            ),
            {},
        )  # fmt: skip
        assert {name for name, _ in asked.template_arguments} >= {"thinking", "effort", "reasoning_effort"}
        assert "long" not in dict(asked.template_arguments)
        assert dict(asked.template_arguments)["list"] == [1]
        rendered = counted.rendered(prompt_content(asked.canonical), asked.template_arguments)
        assert rendered == [b"1 <s> False 0.5 [0, 1] go"]
        silent = counted.rendered(prompt_content(asked.canonical), (("add_generation_prompt", False),))
        assert silent == [b"1 <s>   [0, 1]"]

    def test_a_template_with_a_mistake(self, base: Path) -> None:
        (base / "bad" / "chat_template.jinja").write_text("fine\n{% for m in messages %}")
        assert "chat_template.jinja is no template: line 2" in self.error(base)
        assert "m.chat_template: " in self.error(base, chat_template="absent.jinja")

    def test_the_file_beside_wins_over_the_one_inside_and_the_configured_over_both(self, base: Path) -> None:
        prompt = canonical(chat(1))
        (base / "good" / "chat_template.jinja").write_text("beside")
        assert load("good", base).rendered(prompt_content(prompt)) == [b"beside"]
        (base / "mine.jinja").write_text("mine")
        assert load("good", base, chat_template="mine.jinja").rendered(prompt_content(prompt)) == [b"mine"]


@pytest.mark.parametrize("kind", ["gpt2", "bytes"])
def test_token_ids_are_those_of_the_whole_text(kind: str) -> None:
    made = load(str(folder(kind)))
    prompt = canonical(chat(6))
    before = made.count(prompt, 256)
    assert not before.ids
    made.keeps_ids = True
    told = made.count(prompt, 256)
    (text,) = made.rendered(prompt_content(prompt))
    whole = made._tokenizer.encode(text.decode(), add_special_tokens=False).ids
    assert array("I", told.ids).tolist() == whole
    assert (told.tokens, list(told.offsets)) == (before.tokens, list(before.offsets))
    assert made.count(prompt, 256) == told


def test_a_completions_ids_have_what_the_tokenizer_puts_around_a_text() -> None:
    made = load(str(folder("bytes")))
    made.keeps_ids = True
    prompt = Completion.parse(b'{"model": "m", "prompt": "hello there"}', {}).canonical
    assert array("I", made.count(prompt, 256).ids).tolist() == made._tokenizer.encode("hello there").ids
