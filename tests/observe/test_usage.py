"""Usage is found in any answer, however it was cut, and nothing that an engine sends raises."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.apis.usage import MAX_OBJECT_BYTES, NO_USAGE, Usage, UsageReader, parse_usage

if TYPE_CHECKING:
    from collections.abc import Iterable

CHAT = {"prompt_tokens": 12, "completion_tokens": 3, "total_tokens": 15}


def read(pieces: Iterable[bytes]) -> Usage:
    reader = UsageReader()
    for piece in pieces:
        reader.feed(piece)
    return reader.usage


def event(fields: object) -> bytes:
    return b"data: " + json.dumps(fields, ensure_ascii=False).encode() + b"\n\n"


STREAM = (
    event({"choices": [{"delta": {"content": 'say "usage": {"prompt_tokens": 99} né 你好'}}], "usage": None})
    + event({"choices": [], "usage": CHAT | {"prompt_tokens_details": {"cached_tokens": 8, "x": "}{\\"}}})
    + b"data: [DONE]\n\n"
)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (CHAT, Usage(12, 3, None)),
        (CHAT | {"prompt_tokens_details": {"cached_tokens": 0}}, Usage(12, 3, 0)),
        (CHAT | {"prompt_tokens_details": None}, Usage(12, 3, None)),
        (CHAT | {"prompt_tokens_details": {"cached_tokens": "8"}}, Usage(12, 3, None)),
        ({"prompt_tokens": True, "completion_tokens": -1}, Usage(None, -1, None)),
        ({"input_tokens": 9, "cache_read_input_tokens": -4}, Usage(-4, None, -4)),
        ({"prompt_tokens": 12.0, "completion_tokens": 1.5}, Usage(12, None, None)),
        ({"prompt_tokens": 1 << 70, "completion_tokens": [3]}, NO_USAGE),
        (
            {"input_tokens": 20, "output_tokens": 4, "input_tokens_details": {"cached_tokens": 16}},
            Usage(20, 4, 16),
        ),
        (
            {"input_tokens": 4, "cache_read_input_tokens": 16, "output_tokens": 2},
            Usage(20, 2, 16),
        ),
        ({}, NO_USAGE),
    ],
)
def test_what_the_fields_mean(fields: dict[str, object], expected: Usage) -> None:
    assert parse_usage(json.dumps(fields)) == expected
    assert read([json.dumps({"choices": [], "usage": fields}, indent=1).encode()]) == expected


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "null", "[" * 5000, '{"prompt_tokens": NaN}', "\ud800"])
def test_what_is_no_usage_is_unknown(text: str) -> None:
    assert parse_usage(text) == NO_USAGE


def test_words_of_an_answer_are_not_its_usage() -> None:
    assert read([STREAM]) == Usage(12, 3, 8)
    assert read([event({"choices": [{"delta": {"content": '"usage": {"prompt_tokens": 1}'}}]})]) == NO_USAGE
    assert read([event({"choices": [{"delta": {"content": "usage"}}]})]) == NO_USAGE


def test_later_counts_replace_earlier_ones_each_for_itself() -> None:
    begun = event({"type": "message_start", "message": {"usage": {"input_tokens": 9, "output_tokens": 1}}})
    ended = event({"type": "message_delta", "usage": {"output_tokens": 44}})
    assert read([begun, ended]) == Usage(9, 44, None)


def test_an_object_beyond_the_bound_is_passed_over() -> None:
    long = json.dumps({"usage": {"note": "x" * MAX_OBJECT_BYTES, "prompt_tokens": 1}}).encode()
    assert read([long, event({"usage": CHAT})]) == Usage(12, 3, None)


def test_memory_is_bounded() -> None:
    reader = UsageReader()
    for _ in range(100):
        reader.feed(b'"usage": {"a": "' + b"x" * 1000)
        assert len(reader._pending) < MAX_OBJECT_BYTES
    reader.feed(b"x" * 1_000_000)
    assert len(reader._pending) < MAX_OBJECT_BYTES


@st.composite
def cut(draw: st.DrawFn, data: bytes) -> list[bytes]:
    points = sorted(draw(st.lists(st.integers(0, len(data)), max_size=12)))
    return [data[a:b] for a, b in zip([0, *points], [*points, len(data)], strict=True)]


FRAGMENTS = st.sampled_from(
    [
        b'"usage"',
        b":",
        b" ",
        b"{",
        b"}",
        b'"',
        b"\\",
        b'"prompt_tokens":',
        b"7",
        b",",
        b"null",
        b"\xff",
        b"data: ",
    ]
)
GARBAGE = st.one_of(st.binary(max_size=300), st.lists(FRAGMENTS, max_size=60).map(b"".join))


@given(cut(STREAM))
def test_any_cut_of_a_stream_reads_the_same(pieces: list[bytes]) -> None:
    assert read(pieces) == Usage(12, 3, 8)


def test_every_single_cut_and_byte_by_byte() -> None:
    for at in range(len(STREAM)):
        assert read([STREAM[:at], STREAM[at:]]) == Usage(12, 3, 8)
    assert read(bytes([byte]) for byte in STREAM) == Usage(12, 3, 8)


@given(st.data(), GARBAGE, GARBAGE)
def test_garbage_never_raises_and_reads_the_same_in_any_cut(
    data: st.DataObject, before: bytes, after: bytes
) -> None:
    whole = before + STREAM + after
    assert read(data.draw(cut(whole))) == read([whole])


@given(st.data(), st.integers(0, 3 * MAX_OBJECT_BYTES))
def test_the_bound_does_not_depend_on_the_cut(data: st.DataObject, length: int) -> None:
    whole = b'"usage": {"n": "' + b"x" * length + b'", "prompt_tokens": 5}' + STREAM
    assert read(data.draw(cut(whole))) == read([whole])
