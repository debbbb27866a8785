"""Bodies that are too much: long, deep, many, said twice; over every API, a request or a 4xx and no exception."""

from __future__ import annotations

import json
import struct

import pytest

from epp.apis.canonical import MAX_VALUES, Frames
from epp.apis.decode import MAX_BODY_VALUES, has_too_many_values
from epp.apis.media import MAX_PARTS
from epp.apis.openai import Chat
from epp.apis.registry import find_parser
from epp.errors import ClientError
from epp.types import MAX_MODEL_CHARS
from tests.kit.apis import APIS, Api

EVERY = pytest.mark.parametrize("api", [pytest.param(api, id=api.name) for api in APIS])


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
        ("/generate", '{"text":"a","image_data":HOLE}', "1", MAX_PARTS),
        ("/rerank", '{"query":{"content":HOLE},"documents":["d"]}', "{}", MAX_PARTS),
        ("/v1/chat/completions", '{"model":"m","tools":HOLE,"messages":[{"role":"u"}]}', "1", MAX_VALUES),
        ("/v1/responses", '{"model":"m","input":HOLE}', '{"type":"x"}', MAX_VALUES),
        ("/v1/completions", '{"model":"m","prompt":HOLE}', '""', MAX_VALUES),
        ("/score", '{"text_1":"","text_2":HOLE}', '""', MAX_VALUES),
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


def test_ids_of_all_lengths_and_no_others_are_framed() -> None:
    def framed(prompts: list[list[int]]) -> bytes:
        frames = Frames()
        frames.add_ids(prompts, "prompt")
        return frames.bytes()

    assert framed([[1, 0xFFFF_FFFE], [], [256]]) == (
        b"\xffI" + struct.pack("<5I", 1, 0xFFFF_FFFE, 0xFFFF_FFFF, 0xFFFF_FFFF, 256)
    )
    assert framed([[0xFFFF_FF00, 0x00FF_FFFF]]), "the mark's bytes, over a border"
    assert framed([[0xFFFF_0000, 0xFFFF]])
    for wrong in (-1, 0xFFFF_FFFF, 1 << 32, 1 << 80):
        with pytest.raises(ClientError, match="token ids must be from 0 to 4294967294"):
            framed([[1], [wrong, 1]])


@pytest.mark.parametrize("value", ["{}", "[]", '""', '{"a":[]}'])
def test_a_body_of_too_many_values_is_not_even_decoded(value: str) -> None:
    body = '{"model":"m","messages":[{"role":"u"}],"unknown":' + many(value, MAX_BODY_VALUES)
    with pytest.raises(ClientError, match="more than 600000 texts, lists and objects"):
        Chat.parse(body.encode(), {})  # what is behind the last value is never seen


def test_no_value_is_what_only_looks_like_one_inside_of_a_text() -> None:
    rows = json.dumps([{"name": 'a "b" \\', "tags": ["x", "{", "\\\\"]}] * 200_000)
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": rows}]}).encode()
    assert body.count(b"{") + body.count(b"[") + body.count(b'"') // 2 > MAX_BODY_VALUES
    assert len(Chat.parse(body, {}).canonical) > len(rows)
    assert has_too_many_values(rows.encode())
