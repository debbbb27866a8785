"""What engines read in a body, whoever spelled it so, is no reason for a 400."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from epp.apis.content import prompt_content
from epp.apis.registry import PARSERS
from epp.apis.rewrite import rewrite
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


def test_a_rewritten_body_has_no_byte_order_mark() -> None:
    assert json.loads(rewrite(BOM + b'{"model": "public"}', model="own")) == {"model": "own"}


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("openai-chat", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 512.0}),
        ("openai-chat", {"messages": [{"role": "user", "content": "x"}], "max_completion_tokens": 512.0}),
        ("openai-completions", {"prompt": "x", "max_tokens": 512.0}),
        ("openai-responses", {"input": "x", "max_output_tokens": 512.0}),
        ("anthropic-messages", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 512.0}),
        ("vllm-generate", {"token_ids": [1], "sampling_params": {"max_tokens": 512.0}}),
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


LIMITED: list[tuple[str, dict[str, Any]]] = [
    ("openai-chat", {"messages": [{"role": "user", "content": "null"}], "max_tokens": "512"}),
    ("openai-completions", {"prompt": ["1", "null"], "max_tokens": "512"}),
    ("openai-responses", {"input": "1", "max_output_tokens": "512"}),
    ("anthropic-messages", {"messages": [{"role": "user", "content": "1"}], "max_tokens": "512"}),
    ("sglang-generate", {"text": "true", "sampling_params": {"max_new_tokens": "512"}}),
]


@pytest.mark.parametrize(("name", "fields"), LIMITED)
def test_a_limit_may_be_any_number(name: str, fields: dict[str, Any]) -> None:
    """Greater ones than a fraction can be, too: no limit at all, and no traceback."""
    body = json.dumps({"model": "m"} | fields)
    for digits in (20, 400, 4000):
        parsed = PARSER[name].parse(body.replace('"512"', "9" * digits).encode(), {})
        assert parsed.max_output_tokens == 1 << 53
    assert PARSER[name].parse(body.replace('"512"', "512e0").encode(), {}).max_output_tokens == 512


@pytest.mark.parametrize(("name", "fields"), LIMITED)
def test_numbers_and_truth_values_may_be_texts(name: str, fields: dict[str, Any]) -> None:
    """Forms send them so; pydantic takes them for what they spell. What is a text stays one."""
    plain = parse(name, **json.loads(json.dumps(fields).replace('"512"', "512")), stream=True)
    for yes in ("true", 1):
        assert parse(name, **fields, stream=yes, user="1") == parse(name, **fields, stream=True, user="1")
    assert parse(name, **fields, stream="true") == plain
    assert plain.max_output_tokens == 512
    for odd in ("512.5", "many", "NaN", "nan", "Infinity", "inf", "-inf", "1e400", ""):
        with pytest.raises(ClientError) as caught:
            parse(name, **json.loads(json.dumps(fields).replace('"512"', json.dumps(odd))))
        assert caught.value.status == 400


def test_a_completion_may_be_asked_of_embeddings_alone() -> None:
    """vLLM's `prompt_embeds`: a tensor in base64, or several, with a prompt, an empty one, or none."""
    one, other = "A" * 100_000, "B" * 100_000
    alone = parse("openai-completions", prompt_embeds=one)
    assert parse("openai-completions", prompt="", prompt_embeds=one) == alone
    assert parse("openai-completions", prompt=None, prompt_embeds=[one]) == alone
    told_apart = [
        alone,
        parse("openai-completions", prompt_embeds=other),
        parse("openai-completions", prompt_embeds=[one, other]),
        parse("openai-completions", prompt="x", prompt_embeds=one),
        parse("openai-completions", prompt="x"),
        parse("openai-completions", prompt=[1, 2], prompt_embeds=one),
        parse("openai-completions", prompt=[1, 2]),
    ]
    assert len({parsed.canonical for parsed in told_apart}) == len(told_apart)
    assert all(len(parsed.canonical) < 1000 for parsed in told_apart)
    nothing: tuple[dict[str, Any], ...] = (
        {},
        {"prompt": None},
        {"prompt_embeds": None},
        {"prompt_embeds": []},
    )
    for fields in nothing:
        with pytest.raises(ClientError) as caught:
            parse("openai-completions", **fields)
        assert caught.value.param == "prompt"


def test_what_comes_behind_a_gap_is_part_of_the_prompt() -> None:
    """SGLang's `suffix`: models that fill gaps are given both, one after the other."""
    plain = parse("openai-completions", prompt="def f():")
    filled = parse("openai-completions", prompt="def f():", suffix="    return 5")
    assert filled.canonical.startswith(plain.canonical)
    assert prompt_content(filled.canonical).texts == ["def f():    return 5"]
    for nothing in (None, "", 5):
        assert parse("openai-completions", prompt="def f():", suffix=nothing) == plain
    for several in (["a", "b"], [1, 2]):
        alone = parse("openai-completions", prompt=several)
        assert parse("openai-completions", prompt=several, suffix="x") == alone


def test_an_item_may_stand_before_the_query() -> None:
    """SGLang's `item_first`: then prompts share what their items share, and not the query."""

    def scored(query: str, first: object) -> bytes:
        items = ["item " * 50, "other"]
        return parse("vllm-score", query=query, items=items, item_first=first).canonical

    for no in (None, False, "false"):
        assert scored("a", no) == parse("vllm-score", query="a", items=["item " * 50, "other"]).canonical
    assert scored("a", True) == scored("a", "true") != scored("a", False)
    assert scored("a", True).index(b"item") < scored("a", True).index(b"\xffQ")
    assert scored("a", False).index(b"item") > scored("a", False).index(b"\xffQ")
    texts = {"text_1": "a", "text_2": ["b"]}
    assert parse("vllm-score", **texts, item_first=True) == parse("vllm-score", **texts)


def test_vllms_plugins_get_what_is_no_text() -> None:
    """vLLM's `/pooling` hands `data` of any kind to an IO processor's plugin."""
    one = parse("vllm-pooling", data={"data": "https://a.example/tile.tiff", "data_format": "url"})
    assert one.canonical != parse("vllm-pooling", data={"data": "https://b.example/tile.tiff"}).canonical
    assert parse("vllm-pooling", data="any").canonical != parse("vllm-pooling", data=[1, 2]).canonical
    for name in ("vllm-pooling", "vllm-classify", "openai-embeddings"):
        with pytest.raises(ClientError, match="input"):
            parse(name, **({} if name == "vllm-pooling" else {"data": "any"}))


@pytest.mark.parametrize(
    ("fields", "salt"),
    [
        ({}, ""),
        ({"cache_salt": "s"}, "s"),
        ({"cache_salt": ["s", "t"]}, '[["s","t"],null,null]'),
        ({"extra_key": "k"}, '[null,"k",null]'),
        ({"lora_path": "adapter"}, '[null,null,"adapter"]'),
        ({"cache_salt": "s", "lora_path": ["adapter", None]}, '["s",null,["adapter",null]]'),
    ],
)
def test_sglangs_salts_keep_prefixes_apart_in_openais_apis_too(fields: dict[str, Any], salt: str) -> None:
    assert parse("openai-completions", prompt=["x", "y"], **fields).cache_salt == salt
    assert parse("openai-chat", messages=[{"role": "user", "content": "x"}], **fields).cache_salt == salt


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


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("openai-chat", '{"model":"m","messages":[{"role":"user","content":"x"}],"tools":[{"a":HUGE}]}'),
        ("openai-completions", '{"model":"m","prompt":"x","metadata":{"a":HUGE}}'),
        ("openai-responses", '{"model":"m","input":"x","tools":[{"a":HUGE}]}'),
        ("openai-embeddings", '{"model":"m","input":[{"image":{"a":HUGE}}]}'),
        (
            "anthropic-messages",
            '{"model":"m","messages":[{"role":"user","content":[{"a":HUGE}]}],"max_tokens":1}',
        ),
        ("anthropic-count-tokens", '{"model":"m","messages":[{"role":"user","content":[{"a":HUGE}]}]}'),
        ("vllm-pooling", '{"data":[HUGE]}'),
        ("vllm-rerank", '{"query":"q","documents":[{"a":HUGE}]}'),
        ("vllm-score", '{"text_1":"a","text_2":{"a":HUGE}}'),
        ("sglang-generate", '{"input_embeds":[[HUGE]]}'),
    ],
)
def test_fractions_beyond_the_greatest_are_read_as_engines_read_them(name: str, body: str) -> None:
    """Python's `json.loads` makes infinity of them. It is by its way with fractions, too, that a body of four
    million near the greatest (1e308) holds the event loop for one second and not for half a minute."""
    for huge in ("1e999", "-1e999", "1e308", "123456789e400"):
        assert PARSER[name].parse(body.replace("HUGE", huge).encode(), {}).model in ("m", "")


PARTS = [{"type": "text", "text": "a cat"}, {"type": "image_url", "image_url": {"url": "https://x/cat.png"}}]


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("vllm-score", {"query": "q", "items": ["a", "b"], "label_token_ids": [1, 2]}),
        ("vllm-score", {"query": [1, 2], "items": [[3], [4]], "label_token_ids": [1, 2]}),
        ("vllm-rerank", {"query": "q", "documents": [PARTS, "b"]}),
        ("vllm-rerank", {"query": PARTS, "documents": ["a", "b"]}),
        ("openai-embeddings", {"input": [{"text": "a cat", "image": "https://x/cat.png"}, {"text": "b"}]}),
        ("openai-embeddings", {"input": [{"video": "https://x/cat.mp4"}]}),
        ("vllm-classify", {"text": "a"}),
        ("vllm-classify", {"text": ["a", "b"]}),
        ("vllm-classify", {"text": [["question", "answer"]]}),
        ("vllm-classify", {"input_ids": [1, 2]}),
        ("vllm-classify", {"input_ids": [[1, 2], [3]]}),
    ],
)
def test_what_sglang_scores_ranks_embeds_and_classifies_is_read(name: str, fields: dict[str, Any]) -> None:
    """SGLang's bodies for the paths that vLLM has, too: other names, and parts of content where vLLM has texts."""
    parsed = parse(name, **fields)
    assert parsed.canonical
    told_apart = {field: [*value, *value] for field, value in fields.items() if isinstance(value, list)}
    assert not told_apart or parse(name, **fields | told_apart).canonical != parsed.canonical


def test_an_object_is_named_by_all_that_it_holds() -> None:
    bodies: list[Any] = [
        [{"text": "a"}],
        [{"text": "a", "image": "https://x/1.png"}],
        [{"text": "a", "image": "https://x/2.png"}],
        [{"text": "a", "video": "https://x/1.png"}],
        [{"text": "a"}, {"image": "https://x/1.png"}],
    ]
    assert len({parse("openai-embeddings", input=body).canonical for body in bodies}) == len(bodies)
    assert (
        parse("vllm-rerank", query="q", documents=[PARTS]).canonical
        == parse("vllm-rerank", query="q", documents=[{"content": PARTS}]).canonical
    )


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("openai-embeddings", {"input": [{"text": "a"}, "b"]}),
        ("openai-embeddings", {"input": ["b", {"text": "a"}]}),
        ("vllm-classify", {"text": []}),
        ("vllm-classify", {"input_ids": []}),
        ("vllm-rerank", {"query": [{"type": "text", "text": "q"}, 1], "documents": ["a"]}),
    ],
)
def test_what_no_engine_reads_is_refused(name: str, fields: dict[str, Any]) -> None:
    with pytest.raises(ClientError) as caught:
        parse(name, **fields)
    assert caught.value.status == 400
