"""A stream says the same however it is cut, and a cut-off stream is no success."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.lab.compare.sse import AnswerReader


def event(content: str | None = None, **more: Any) -> bytes:
    delta = {"content": content} if content is not None else {"role": "assistant"}
    body = {"id": "x", "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} | more
    return b"data: " + json.dumps(body, ensure_ascii=False).encode() + b"\n\n"


USAGE = {"prompt_tokens": 900, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 512}}
HEAD = b": hello\n\n" + event() + event("")
FIRST = event("ça ")
REST = event("va ") + event("bien") + event(choices=[], usage=USAGE) + b"data: [DONE]\n\n"
STREAM = HEAD + FIRST + REST


def read(*chunks: bytes) -> AnswerReader:
    reader = AnswerReader()
    for position, chunk in enumerate(chunks):
        reader.feed(chunk, float(position))
    return reader


@given(cuts=st.lists(st.integers(0, len(STREAM)), max_size=12), windows=st.booleans())
@settings(max_examples=150)
def test_cuts_anywhere_change_nothing(cuts: list[int], windows: bool) -> None:
    stream = STREAM.replace(b"\n", b"\r\n") if windows else STREAM
    edges = [0, *sorted(cuts), len(stream)]
    chunks = [stream[a:b] for a, b in pairwise(edges)]
    reader = read(*chunks)
    answer = reader.finish()
    assert (answer.content, answer.content_events, answer.error) == ("ça va bien", 3, "")
    assert (answer.prompt_tokens, answer.completion_tokens, answer.cached_tokens) == (900, 3, 512)
    # The first token's chunk is the one that holds the end of the first event with text.
    line_end = stream.index(b"\n", stream.index("ça".encode())) + 1
    assert reader.first_token_at == next(i for i, b in enumerate(edges[1:]) if b >= line_end)


def test_an_opening_without_text_is_no_first_token() -> None:
    assert read(HEAD).first_token_at is None
    assert read(HEAD, FIRST).first_token_at == 1.0


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_a_thought_is_a_first_token_and_no_part_of_the_answer(name: str) -> None:
    delta = {name: "hm", "content": None}
    thought = event(choices=[{"index": 0, "delta": delta, "finish_reason": None}])
    reader = read(HEAD, thought, thought, FIRST + REST)
    assert reader.first_token_at == 1.0
    answer = reader.finish()
    assert (answer.content, answer.content_events, answer.error) == ("ça va bien", 5, "")


def test_completions_carry_text_in_another_place() -> None:
    chunk = b'data: {"choices": [{"text": "hi", "finish_reason": "stop"}]}\n\n'
    answer = read(chunk).finish()
    assert (answer.content, answer.error) == ("hi", "")


@pytest.mark.parametrize(
    ("stream", "words"),
    [
        (b"", "stopped before its end"),
        (HEAD + FIRST, "stopped before its end"),
        (HEAD + FIRST + b'data: {"choi', "unreadable"),
        (
            HEAD + FIRST + b'data: {"choices": [{"delta": {"content": "\xe4\xb8"}}]}\n\ndata: [DONE]\n\n',
            "unreadable",
        ),
        (HEAD + b'data: {"error": {"message": "out of memory"}}\n\n', "out of memory"),
    ],
)
def test_an_answer_that_did_not_come_whole_is_an_error(stream: bytes, words: str) -> None:
    assert words in read(stream).finish().error


def test_a_finish_reason_ends_a_stream_without_done() -> None:
    last = event(choices=[{"delta": {}, "finish_reason": "length"}])
    assert not read(HEAD, FIRST, last).finish().error


def test_usage_may_be_missing_or_null() -> None:
    answer = read(event("a", usage=None), b"data: [DONE]\n\n").finish()
    assert (answer.prompt_tokens, answer.cached_tokens, answer.error) == (None, None, "")


def test_an_endless_answer_is_dropped_not_kept() -> None:
    reader = AnswerReader(max_bytes=100)
    for _ in range(10):
        reader.feed(event("x" * 50), 0.0)
    assert "longer than 100 bytes" in reader.finish().error
