"""Request bodies with another model, or asked for their usage: what changes, and that nothing else does."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.apis.openai import Chat
from epp.apis.rewrite import rewrite
from epp.errors import ClientError

SERVED = 'org/größe "7B" \\ 模型'


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ('{"model":"p","n":[1.50 , 1e400],"z":{"model":"p"}}', '{"model":"s","n":[1.50 , 1e400],"z":{"model":"p"}}'),
        (' {\n "temperature" : 0.10,\t"model" : "p" }\n', '{"temperature":0.10,"model":"s"}'),
        ('{"model":"a","x":"\\u00e9\\/","model":"b"}', '{"model":"s","x":"\\u00e9\\/"}'),
        ('{"mod\\u0065l":"p","a\\"b":1}', '{"model":"s","a\\"b":1}'),
        ('{"messages":[{"content":"\\"model\\":\\"p\\""}],"model":"p"}',
         '{"messages":[{"content":"\\"model\\":\\"p\\""}],"model":"s"}'),
        ('{"model":"p","big":123456789012345678901234567890}', '{"model":"s","big":123456789012345678901234567890}'),
        ('{"model":"模型","text":"né"}', '{"model":"s","text":"né"}'),
    ],
)  # fmt: skip
def test_values_keep_their_bytes(body: str, wanted: str) -> None:
    assert rewrite(body.encode(), model="s") == wanted.encode()


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ('{"stream":true}', '{"stream":true,"stream_options":{"include_usage":true}}'),
        ('{"stream_options":null}', '{"stream_options":{"include_usage":true}}'),
        ('{"stream_options":{}}', '{"stream_options":{"include_usage":true}}'),
        ('{"stream_options": {"x" : 1 }}', '{"stream_options":{"x":1,"include_usage":true}}'),
        ('{"stream_options":{"include_usage":null}}', '{"stream_options":{"include_usage":true}}'),
        ('{"stream_options":{"include_usage":true}}', '{"stream_options":{"include_usage":true}}'),
        ('{"stream_options":{"include_usage":false}}', '{"stream_options":{"include_usage":false}}'),
        ('{"stream_options":{"include_usage":false},"stream_options":{}}',
         '{"stream_options":{"include_usage":true}}'),
    ],
)  # fmt: skip
def test_usage_is_asked_for_where_the_client_says_nothing(body: str, wanted: str) -> None:
    assert rewrite(body.encode(), include_usage=True) == wanted.encode()


@given(st.binary(max_size=200))
def test_any_bytes_give_a_body_or_a_400(body: bytes) -> None:
    try:
        out = rewrite(body, model=SERVED, include_usage=True)
    except ClientError:
        return
    members = msgspec.json.decode(out, type=dict[str, msgspec.Raw])
    assert members["model"] == json.dumps(SERVED, ensure_ascii=False).encode()


@pytest.mark.parametrize("number", ["NaN", "-Infinity"])
def test_a_model_is_renamed_around_numbers_that_pythons_json_alone_takes(number: str) -> None:
    body = b'{"model": "public", "temperature": %s, "n": 1}' % number.encode()
    assert rewrite(body, model="served") == (b'{"model":"served","temperature":%s,"n":1}' % number.encode())
    for no_object in (b"[NaN]", b"NaN", b"{NaN}"):
        with pytest.raises(ClientError):
            rewrite(no_object, model="served")


def test_a_model_is_renamed_around_half_a_character_which_stays() -> None:
    body = rb'{"messages": [{"content": "\ud800 \\ud800 \uDC00"}], "model": "public"}'
    assert rewrite(body, model="served") == (
        rb'{"messages":[{"content": "\ud800 \\ud800 \udc00"}],"model":"served"}'
    )
    assert Chat.parse(body.replace(b'{"content"', b'{"role": "user", "content"'), {}).canonical.endswith(b"?")
