"""Bodies that are too much: long, deep, many, said twice; over every API, a request or a 4xx and no exception."""

from __future__ import annotations

import json
import random
import struct
from typing import Any

import pytest

from epp.apis import body_values
from epp.apis.body_values import MAX_BODY_NUMBERS, MAX_BODY_VALUES, MAX_LONG_DIGITS, too_many_values
from epp.apis.canonical import MAX_TEXTS, MAX_VALUES, frame_token_ids, text_bytes
from epp.apis.media import MAX_PARTS
from epp.apis.registry import find_parser
from epp.errors import ClientError
from epp.types import MAX_MODEL_CHARS
from tests.kit.apis import APIS, CHAT, Api

EVERY = pytest.mark.parametrize("api", [pytest.param(api, id=api.name) for api in APIS])
LONG = "word " * 4_000_000
#: Where each API has its words.
WORDS = {"messages", "prompt", "input", "documents", "text_2", "text", "query"}


def outcome(api: Api, body: bytes) -> int:
    """Canonical bytes, -1 for a 4xx."""
    parser = find_parser("POST", api.paths[0], {})
    assert parser is not None
    try:
        return len(parser.parse(body, {}).canonical)
    except ClientError as error:
        told = json.loads(parser.error_body(error.status, error.message, error.param))
        assert (error.status, told["error"]["message"]) == (400, error.message)  # noqa: PT017 - both are right
        return -1


def long(value: Any, field: str = "") -> Any:
    """The body with its words made long."""
    if isinstance(value, dict):
        return {name: long(inner, name if name in WORDS else field) for name, inner in value.items()}
    if isinstance(value, list):
        return [long(inner, field) for inner in value]
    return LONG if field and isinstance(value, str) and value in ("a", "b", "c") else value


@EVERY
def test_twenty_megabytes_are_read(api: Api) -> None:
    body = json.dumps(long(api.body)).encode()
    if api.name == "vllm-generate":
        body = json.dumps(api.body | {"token_ids": list(range(1_000_000))}).encode()
    size = outcome(api, body)
    if api.name == "anthropic-count-tokens":
        assert size == 0
    else:
        assert size >= (4_000_000 if api.name == "vllm-generate" else 20_000_000)


@EVERY
@pytest.mark.parametrize("depth", [50, 1000, 100_000])
@pytest.mark.parametrize("nested", ['{"a":', "[", '{"content":[{"content":['])
def test_depth_is_read_or_refused(api: Api, depth: int, nested: str) -> None:
    closing = "".join({"{": "}", "[": "]"}[mark] for mark in reversed(nested) if mark in "{[")
    value = nested * depth + "1" + closing * depth
    for name in (*api.body, "tools", "unknown", "metadata", "features"):
        body = json.dumps(api.body | {name: "hole"}).replace('"hole"', value)
        assert outcome(api, body.encode()) >= -1


@EVERY
def test_of_equal_keys_the_last_counts(api: Api) -> None:
    body = json.dumps(api.body)
    before = {name: "other" if isinstance(value, str) else value for name, value in api.body.items()}
    twice = f"{json.dumps(before)[:-1]}, {body[1:]}"
    assert outcome(api, twice.encode()) == outcome(api, body.encode())


@EVERY
@pytest.mark.parametrize(
    "odd", ["NaN", "Infinity", "1e999", r'"\ud800"', r'"\u0000"', "9" * 5000, "-0.0", "1E1"]
)
def test_odd_values_are_read_or_refused(api: Api, odd: str) -> None:
    for name in (*api.body, "max_tokens", "user", "stream", "unknown", "cache_salt"):
        body = json.dumps(api.body | {name: "hole"}).replace('"hole"', odd)
        assert outcome(api, body.encode()) >= -1


@EVERY
def test_the_name_of_a_model_is_bounded(api: Api) -> None:
    parser = find_parser("POST", api.paths[0], {})
    assert parser is not None
    longest = "m" * MAX_MODEL_CHARS
    assert parser.parse(json.dumps(api.body | {"model": longest}).encode(), {}).model == longest
    with pytest.raises(ClientError, match="'model' must not be longer than 512 characters") as caught:
        parser.parse(json.dumps(api.body | {"model": longest + "m"}).encode(), {})
    assert (caught.value.status, caught.value.param) == (400, "model")


def many(value: str, count: int) -> str:
    return "[" + ",".join([value] * count) + "]"


@pytest.mark.parametrize(
    ("path", "body", "value", "most"),
    [
        ("/v1/chat/completions", '{"model":"m","messages":[{"role":"u","content":HOLE}]}', "{}", MAX_PARTS),
        ("/v1/responses", '{"model":"m","input":[{"role":"u","content":HOLE}]}', "{}", MAX_PARTS),
        ("/generate", '{"text":"a","image_data":HOLE}', "1", MAX_PARTS),
        ("/generate", '{"input_ids":[1],"audio_data":HOLE}', "[1]", MAX_PARTS),
        ("/rerank", '{"query":"q","documents":{"content":HOLE}}', "{}", MAX_PARTS),
        ("/rerank", '{"query":{"content":HOLE},"documents":["d"]}', "{}", MAX_PARTS),
        ("/pooling", '{"messages":[{"role":"u","content":HOLE}]}', "{}", MAX_PARTS),
        (
            "/v1/messages",
            '{"model":"m","max_tokens":1,"messages":[{"role":"u","content":HOLE}]}',
            '{"type":"image"}',
            MAX_PARTS,
        ),
        (
            "/v1/messages",
            '{"model":"m","max_tokens":1,"messages":[{"role":"u","content":HOLE}]}',
            "{}",
            MAX_VALUES,
        ),
        ("/v1/chat/completions", '{"model":"m","tools":HOLE,"messages":[{"role":"u"}]}', "1", MAX_VALUES),
        ("/v1/responses", '{"model":"m","input":HOLE}', '{"type":"x"}', MAX_VALUES),
        ("/v1/chat/completions", '{"model":"m","messages":[{"role":"u","content":HOLE}]}', '""', MAX_TEXTS),
        ("/v1/completions", '{"model":"m","prompt":HOLE}', '""', MAX_TEXTS),
        ("/v1/completions", '{"model":"m","prompt":HOLE}', "[]", MAX_TEXTS),
        ("/v1/embeddings", '{"model":"m","input":HOLE}', '""', MAX_TEXTS),
        ("/score", '{"text_1":"","text_2":HOLE}', '""', MAX_TEXTS),
        ("/rerank", '{"query":"","documents":HOLE}', '{"content":[]}', MAX_TEXTS),
        ("/generate", '{"text":HOLE}', '""', MAX_TEXTS),
        ("/generate", '{"input_ids":HOLE}', "[1]", MAX_TEXTS),
    ],
)
def test_what_costs_more_than_its_bytes_is_refused_when_there_is_too_much(
    path: str, body: str, value: str, most: int
) -> None:
    parser = find_parser("POST", path, {})
    assert parser is not None
    assert parser.parse(body.replace("HOLE", many(value, most)).encode(), {}).canonical
    with pytest.raises(ClientError, match=f"more than {most} ") as caught:
        parser.parse(body.replace("HOLE", many(value, most + 1)).encode(), {})
    assert caught.value.status == 400


@EVERY
@pytest.mark.parametrize("value", ["{}", "[]", '""', '{"a":[]}'])
def test_a_body_of_too_many_values_is_not_even_decoded(api: Api, value: str) -> None:
    parser = find_parser("POST", api.paths[0], {})
    assert parser is not None
    body = json.dumps(api.body | {"unknown": "HOLE"}).replace('"HOLE"', many(value, MAX_BODY_VALUES))
    with pytest.raises(ClientError, match="more than 600000 texts, lists and objects") as caught:
        parser.parse(body[:-1].encode(), {})  # what is behind the last value is never seen
    assert caught.value.status == 400


@pytest.mark.parametrize(
    ("path", "body", "value", "read"),
    [
        ("/v1/embeddings", '{"input":HOLE,"model":"m"}', "1", True),
        ("/v1/completions", '{"prompt":HOLE,"model":"m"}', "1", True),
        ("/inference/v1/generate", '{"token_ids":HOLE,"sampling_params":{}}', "1", True),
        ("/v1/chat/completions", '{"tools":[HOLE],"messages":[{"role":"u"}],"model":"m"}', "1.5", True),
        ("/score", '{"text_1":"","text_2":HOLE}', "1", True),
        ("/v1/embeddings", '{"input":HOLE,"model":"m"}', "1.5", False),  # vectors are no input
    ],
)
def test_a_body_of_too_many_numbers_is_not_even_decoded(path: str, body: str, value: str, read: bool) -> None:
    parser = find_parser("POST", path, {})
    assert parser is not None
    allowed = MAX_BODY_NUMBERS - body.count(",")
    most = body.replace("HOLE", many(value, allowed + 1)).encode()
    if read:
        assert len(parser.parse(most, {}).canonical) > 2 * allowed
    with pytest.raises(ClientError, match=r"more than .* 4000000 numbers") as caught:
        parser.parse(body.replace("HOLE", many(value, allowed + 2)).encode()[:-1], {})
    assert caught.value.status == 400


def test_no_number_is_what_only_looks_like_one_inside_of_a_text() -> None:
    rows = "1,2,3,\n" * (MAX_BODY_NUMBERS // 3 + 1)
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": rows}]}).encode()
    assert body.count(b",") > MAX_BODY_NUMBERS
    assert outcome(CHAT, body) > len(rows)


@EVERY
def test_a_body_of_long_numbers_is_not_even_decoded(api: Api) -> None:
    """Reading one takes time that grows with the square of its digits."""
    parser = find_parser("POST", api.paths[0], {})
    assert parser is not None
    body = json.dumps(api.body | {"unknown": "HOLE"})
    for digits in (4000, 1023):
        assert parser.parse(body.replace('"HOLE"', many("7" * digits, 250)).encode(), {})
        with pytest.raises(ClientError, match=f"or {MAX_LONG_DIGITS} digits of long numbers") as caught:
            parser.parse(body.replace('"HOLE"', many("-" + "7" * digits, 2100))[:-1].encode(), {})
        assert caught.value.status == 400
    assert parser.parse(body.replace("HOLE", "7" * 3_000_000).encode(), {})
    assert parser.parse(body.replace('"HOLE"', many("1234567890", 300_000)).encode(), {})


def test_no_value_is_what_only_looks_like_one_inside_of_a_text() -> None:
    rows = json.dumps([{"name": 'a "b" \\', "tags": ["x", "{", "\\\\"]}] * 200_000)
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": rows}]}).encode()
    assert body.count(b"{") + body.count(b"[") + body.count(b'"') // 2 > MAX_BODY_VALUES
    assert not too_many_values(body)
    assert outcome(CHAT, body) > len(rows)


@pytest.mark.parametrize("window_bytes", [1, 7, 1 << 18])
def test_values_are_counted_as_a_decoder_makes_them(
    monkeypatch: pytest.MonkeyPatch, window_bytes: int
) -> None:
    monkeypatch.setattr(body_values, "_WINDOW_BYTES", window_bytes)
    draw = random.Random(7)
    texts = ["", '"', "\\", '\\"', "\n{", "[]", "é", '{"a": ["b"]}', '\\\\"[', "\u2028"]

    def made(depth: int) -> Any:
        kind = draw.randrange(2 if depth else 4)
        if depth and kind == 0:
            return {draw.choice(texts) + str(at): made(depth - 1) for at in range(draw.randrange(4))}
        if depth and kind == 1:
            return [made(depth - 1) for _ in range(draw.randrange(4))]
        return draw.choice([*texts, 1, -2.5e7, True, None])

    def values(value: Any) -> int:
        if isinstance(value, dict):
            return 1 + sum(1 + values(inner) for inner in value.values())
        if isinstance(value, list):
            return 1 + sum(map(values, value))
        return int(isinstance(value, str))

    def commas(value: Any) -> int:
        if not isinstance(value, dict | list):
            return 0
        inner = value.values() if isinstance(value, dict) else value
        return max(len(value) - 1, 0) + sum(map(commas, inner))

    for _ in range(300):
        value = made(4)
        for name, count in (("MAX_BODY_VALUES", values(value)), ("MAX_BODY_NUMBERS", commas(value))):
            other = {"MAX_BODY_VALUES": "MAX_BODY_NUMBERS"}.get(name, "MAX_BODY_VALUES")
            monkeypatch.setattr(body_values, other, 1 << 60)
            for ensure_ascii in (True, False):
                body = json.dumps(value, ensure_ascii=ensure_ascii, indent=draw.choice([None, 1])).encode()
                for most in (count - 1, count):
                    monkeypatch.setattr(body_values, name, most)
                    assert too_many_values(body) == (most < count and len(body) > 2 * most)


def test_ids_of_all_lengths_and_no_others_are_framed() -> None:
    assert frame_token_ids([[1, 0xFFFF_FFFE], [], [256]]) == (
        b"\xffI" + struct.pack("<5I", 1, 0xFFFF_FFFE, 0xFFFF_FFFF, 0xFFFF_FFFF, 256)
    )
    assert frame_token_ids([[0xFFFF_FF00, 0x00FF_FFFF]]), "the mark's bytes, over a border"
    assert frame_token_ids([[0xFFFF_0000, 0xFFFF]])
    for wrong in (-1, 0xFFFF_FFFF, 1 << 32, 1 << 80):
        with pytest.raises(ValueError, match="token ids must be from 0 to 4294967294"):
            frame_token_ids([[1], [wrong, 1]])


def test_places_of_media_among_token_ids_are_bounded() -> None:
    def body(places: int) -> bytes:
        features = {
            "mm_hashes": {"image": ["x"] * places},
            "mm_placeholders": {"image": [{"offset": 0, "length": 0}] * places},
        }
        return json.dumps({"token_ids": [1], "sampling_params": {}, "features": features}).encode()

    parser = find_parser("POST", "/inference/v1/generate", {})
    assert parser is not None
    assert parser.parse(body(MAX_PARTS), {}).canonical
    with pytest.raises(ClientError, match=f"more than {MAX_PARTS} places"):
        parser.parse(body(MAX_PARTS + 1), {})


def test_media_are_found_behind_any_number_of_texts() -> None:
    texts = b"\xffPa" * 50_000
    assert text_bytes(texts) == len(texts)
    assert text_bytes(texts + b"\xffM" + b"0" * 32) == 0


@EVERY
def test_many_media_are_bounded(api: Api) -> None:
    if api.media is None:
        pytest.skip("no media in this API")
    one = json.dumps(api.media[0])
    part = one[one.index("[{") + 1 : one.rindex("}]") + 1] if "[{" in one else ""
    body = one.replace(part, ", ".join([part] * 3000)) if part else one
    assert outcome(api, body.encode()) < 3 * len(body) + 4 * 300_000
