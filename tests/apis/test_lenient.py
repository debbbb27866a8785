"""What engines read in a body, whoever spelled it so, is no reason for a 400."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from epp.apis.content import prompt_content
from epp.apis.registry import PARSERS
from epp.errors import ClientError
from tests.kit.apis import APIS, Api

if TYPE_CHECKING:
    from epp.apis.types import ParsedRequest

PARSER = {parser.name: parser for parser in PARSERS}
BOM = b"\xef\xbb\xbf"


def parse(name: str, **fields: Any) -> ParsedRequest:
    return PARSER[name].parse(json.dumps({"model": "m"} | fields).encode(), {})


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
def test_a_byte_order_mark_is_no_part_of_a_body(api: Api) -> None:
    """Python's `json.loads`, by which engines read bodies, passes over it; some editors write it."""
    body = json.dumps(api.body).encode()
    assert PARSER[api.name].parse(BOM + body, {}) == PARSER[api.name].parse(body, {})


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("openai-chat", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 512.0}),
        ("anthropic-messages", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 512.0}),
        ("sglang-generate", {"text": "x", "sampling_params": {"max_new_tokens": 512.0}}),
    ],
)
def test_a_whole_number_may_be_spelled_as_a_fraction(name: str, fields: dict[str, Any]) -> None:
    """As Python writes `2048 / 4`; pydantic, by which engines check bodies, takes it for the whole number."""
    parsed = parse(name, **fields)
    assert parsed.max_output_tokens == 512
    assert type(parsed.max_output_tokens) is int
    with pytest.raises(ClientError, match="int") as caught:
        PARSER[name].parse(json.dumps({"model": "m"} | fields).replace("512.0", "512.5").encode(), {})
    assert caught.value.status == 400


def test_a_completion_may_be_asked_of_embeddings_alone() -> None:
    """vLLM's `prompt_embeds`: a tensor in base64, or several, with a prompt, an empty one, or none."""
    one, other = "A" * 100_000, "B" * 100_000
    alone = parse("openai-completions", prompt_embeds=one)
    assert parse("openai-completions", prompt="", prompt_embeds=one) == alone
    assert parse("openai-completions", prompt=None, prompt_embeds=[one]) == alone
    others = [
        parse("openai-completions", prompt_embeds=[one, other]),
        parse("openai-completions", prompt="x", prompt_embeds=one),
        parse("openai-completions", prompt=[1, 2], prompt_embeds=one),
    ]
    assert len({parsed.canonical for parsed in (alone, *others)}) == 4
    assert all(len(parsed.canonical) < 1000 for parsed in others)
    with pytest.raises(ClientError) as caught:
        parse("openai-completions", prompt_embeds=[])
    assert caught.value.param == "prompt"


def test_what_comes_behind_a_gap_is_part_of_the_prompt() -> None:
    """SGLang's `suffix`: models that fill gaps are given both, one after the other."""
    plain = parse("openai-completions", prompt="def f():")
    filled = parse("openai-completions", prompt="def f():", suffix="    return 5")
    assert filled.canonical.startswith(plain.canonical)
    assert prompt_content(filled.canonical).texts == ["def f():    return 5"]
    alone = parse("openai-completions", prompt=[1, 2])
    assert parse("openai-completions", prompt=[1, 2], suffix="x") == alone


def test_an_item_may_stand_before_the_query() -> None:
    """SGLang's `item_first`: then prompts share what their items share, and not the query."""

    def scored(query: str, first: object) -> bytes:
        items = ["item " * 50, "other"]
        return parse("vllm-score", query=query, items=items, item_first=first).canonical

    assert scored("a", True).index(b"item") < scored("a", True).index(b"\xffQ")
    assert scored("a", False).index(b"item") > scored("a", False).index(b"\xffQ")


def test_vllms_plugins_get_what_is_no_text() -> None:
    """vLLM's `/pooling` hands `data` of any kind to an IO processor's plugin."""
    one = parse("vllm-pooling", data={"data": "https://a.example/tile.tiff", "data_format": "url"})
    assert one.canonical != parse("vllm-pooling", data={"data": "https://b.example/tile.tiff"}).canonical
    assert parse("vllm-pooling", data="any").canonical != parse("vllm-pooling", data=[1, 2]).canonical
    for name in ("vllm-pooling", "vllm-classify", "openai-embeddings"):
        with pytest.raises(ClientError, match="input"):
            parse(name, **({} if name == "vllm-pooling" else {"data": "any"}))


def test_an_adapter_of_tensorrt_llm_keeps_prefixes_apart() -> None:
    """It comes beside the model: equal prompts of two adapters share no KV cache, in one engine and one name."""

    def salt(adapter: Any, **fields: Any) -> str:
        asked = parse("openai-completions", prompt="x", lora_request=adapter, **fields)
        said = [{"role": "user", "content": "x"}]
        assert (
            parse("openai-chat", messages=said, lora_request=adapter, **fields).cache_salt == asked.cache_salt
        )
        return asked.cache_salt

    one, two = ({"lora_name": f"a{number}", "lora_int_id": number, "lora_path": "/x"} for number in (1, 2))
    assert len({salt(one), salt(two), salt(None), salt(one, cache_salt="s"), salt(None, cache_salt="s")}) == 5
    assert salt(one) == salt(one | {"lora_path": "/y"})
    assert salt(None) == ""


PARTS = [{"type": "text", "text": "a cat"}, {"type": "image_url", "image_url": {"url": "https://x/cat.png"}}]


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("vllm-score", {"query": "q", "items": ["a", "b"], "label_token_ids": [1, 2]}),
        ("vllm-rerank", {"query": "q", "documents": [PARTS, "b"]}),
        ("openai-embeddings", {"input": [{"text": "a cat", "image": "https://x/cat.png"}, {"text": "b"}]}),
        ("vllm-classify", {"text": [["question", "answer"]]}),
        ("vllm-classify", {"input_ids": [[1, 2], [3]]}),
    ],
)
def test_what_sglang_scores_ranks_embeds_and_classifies_is_read(name: str, fields: dict[str, Any]) -> None:
    """SGLang's bodies for the paths that vLLM has, too: other names, and parts of content where vLLM has texts."""
    parsed = parse(name, **fields)
    assert parsed.canonical
    told_apart = {field: [*value, *value] for field, value in fields.items() if isinstance(value, list)}
    assert not told_apart or parse(name, **fields | told_apart).canonical != parsed.canonical


USER = {"role": "user", "content": "hi"}


@pytest.mark.parametrize("name", [api.name for api in APIS if api.name != "openai-responses"])
def test_a_model_may_be_missing(name: str) -> None:
    api = next(api for api in APIS if api.name == name)
    body = {field: value for field, value in api.body.items() if field != "model"}
    for more in ({}, {"model": None}, {"model": ""}):
        assert PARSER[name].parse(json.dumps(body | more).encode(), {}).model == ""


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_numbers_that_pythons_json_takes_are_taken(number: str) -> None:
    """As engines read bodies; what they make of them is their business."""
    body = json.dumps({"model": "m", "messages": [USER], "temperature": 1}).replace("1}", number + "}")
    assert number in body
    plain = parse("openai-chat", messages=[USER])
    assert PARSER["openai-chat"].parse(body.encode(), {}) == plain
    tool = {"type": "function", "function": {"name": "f", "arguments": f'{{"a": {number}}}'}}
    assert parse("openai-chat", messages=[USER, {"role": "assistant", "tool_calls": [tool]}]).canonical


@pytest.mark.parametrize(
    "odd",
    [
        {"refusal": False},
        {"audio": "x"},
        {"function_call": "none"},
        {"tools": "x"},
        {"annotations": 0},
    ],
)
def test_members_of_messages_that_no_engine_reads_so_are_passed_over(odd: dict[str, Any]) -> None:
    said = {"role": "assistant", "content": "yes"}
    plain = parse("openai-chat", messages=[USER, said, USER])
    assert parse("openai-chat", messages=[USER, said | odd, USER]).canonical == plain.canonical


@pytest.mark.parametrize(
    "odd",
    [
        {"documents": "x"},
        {"functions": {}},
        {"chat_template": 5},
        {"stream_options": "usage"},
        {"stream_options": {"include_usage": "always"}},
        {"lora_request": "x"},
        {"lora_path": {"a": 1}, "documents": "x", "input_ids": "y"},
        {"session_params": [1]},
        {"n": "many", "best_of": {}, "truncate_prompt_tokens": "x", "logprobs": [], "truncation_side": 1},
        {"reasoning_effort": 5, "chat_template_kwargs": [1]},
    ],
)
def test_fields_that_some_engines_do_not_know_are_passed_over(odd: dict[str, Any]) -> None:
    assert parse("openai-chat", messages=[USER], **odd) == parse("openai-chat", messages=[USER])


def test_messages_need_no_limit() -> None:
    assert parse("anthropic-messages", messages=[USER]).max_output_tokens is None
