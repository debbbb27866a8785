"""Request bodies with another model, or asked for their usage: what changes, and that nothing else does."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.apis.rewrite import rewrite
from epp.errors import ClientError

SERVED = 'org/größe "7B" \\ 模型'
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=8), VALUES), st.booleans())
def test_only_the_model_changes(members: dict[str, Any], ascii_only: bool) -> None:
    body = json.dumps(members | {"model": "public"}, ensure_ascii=ascii_only).encode(errors="surrogatepass")
    try:
        body.decode()
        msgspec.json.decode(body)
    except (UnicodeError, msgspec.DecodeError):  # half a character: no parser of ours lets it in
        return
    assert json.loads(rewrite(body, model=SERVED)) == members | {"model": SERVED}


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


def test_both_at_once() -> None:
    assert rewrite(b'{"model":"p","stream":true}', model="s", include_usage=True) == (
        b'{"model":"s","stream":true,"stream_options":{"include_usage":true}}'
    )


@pytest.mark.parametrize(
    "body", [b"", b"[]", b'"model"', b'{"model":', b'{"\xff":1}', b'{"stream_options":7}']
)
def test_what_is_no_object_is_the_clients_mistake(body: bytes) -> None:
    with pytest.raises(ClientError) as caught:
        rewrite(body, model="s", include_usage=True)
    assert caught.value.status == 400


@given(st.binary(max_size=200))
def test_any_bytes_give_a_body_or_a_400(body: bytes) -> None:
    try:
        out = rewrite(body, model=SERVED, include_usage=True)
    except ClientError:
        return
    members = msgspec.json.decode(out, type=dict[str, msgspec.Raw])
    assert members["model"] == json.dumps(SERVED, ensure_ascii=False).encode()
