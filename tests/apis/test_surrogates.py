"""Lone surrogates in JSON: what msgspec refuses and Python reads, in a spelling that both read."""

from __future__ import annotations

import json
import re

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from epp.apis.openai import ChatParser
from epp.apis.rewrite import rewrite
from epp.apis.surrogates import with_private_escapes
from epp.errors import ClientError

#: Escapes and what is none, side by side in any order.
PIECES = st.lists(
    st.sampled_from([r"\ud800", r"\uDbff", r"\udc00", r"\uDFFF", r"\\", r"\"", r"\n", "ud800", "x"])
)


@given(PIECES)
@example([r"\\", "ud800", r"\udc00"])
def test_each_lone_surrogate_alone_gets_another_spelling(pieces: list[str]) -> None:
    body = '"' + "".join(pieces) + '"'
    wanted = json.loads(body)
    private = re.sub("[\ud800-\udfff]", lambda one: chr(ord(one[0]) + 0x1000), wanted)
    if private == wanted:
        assert with_private_escapes(body.encode()) is None
    else:
        other = with_private_escapes(body.encode())
        assert other is not None
        assert msgspec.json.decode(other) == private


def test_a_model_is_renamed_around_them_and_they_stay() -> None:
    body = rb'{"messages": [{"content": "\ud800 \\ud800 \uDC00"}], "model": "public"}'
    assert rewrite(body, model="served") == (
        rb'{"messages":[{"content": "\ud800 \\ud800 \udC00"}],"model":"served"}'
    )


def test_prompts_with_different_ones_are_different_prompts() -> None:
    body = rb'{"model": "m", "messages": [{"role": "user", "content": "%s"}]}'
    high, low = (ChatParser().parse(body % one, {}).canonical for one in (rb"\ud800", rb"\udc00"))
    assert high != low


@pytest.mark.parametrize("text", [rb"\ud800" * 10_001, rb"\ud800" + b"x" * (9 << 20)], ids=["many", "long"])
def test_the_search_is_bounded(text: bytes) -> None:
    with pytest.raises(ClientError):
        ChatParser().parse(b'{"model": "m", "messages": [{"role": "user", "content": "%s"}]}' % text, {})
