"""Answers that pass by: the same is known of them however they are cut, and at a bounded cost."""

from __future__ import annotations

import json
import math
import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.apis.answer import HEAD_BYTES, TAIL_BYTES, WATCH_BYTES, AnswerWatch
from epp.apis.usage import NO_USAGE, Usage

USAGE = {"prompt_tokens": 1200, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 1024}}
KNOWN = Usage(1200, 7, 1024)


def event(fields: object) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


TOKEN = event({"choices": [{"delta": {"content": 'say \\"usage\\": {} here'}}], "usage": None})
END = event({"choices": [], "usage": USAGE}) + b"data: [DONE]\n\n"


EVENTS = {"content-type": "Text/Event-Stream; charset=utf-8"}


def watched(*pieces: bytes, headers: dict[str, str] = EVENTS) -> AnswerWatch:
    watch = AnswerWatch()
    watch.started(200, headers)
    for number, piece in enumerate(pieces):
        watch.feed(piece, float(number))
    return watch


@settings(deadline=None)
@given(
    tokens=st.sampled_from([0, 1, 3, 40, 60, 400, 2000]),
    cuts=st.lists(st.integers(0, 300_000), max_size=30),
    headers=st.sampled_from([EVENTS, {"content-type": "application/json"}, {}]),
)
def test_the_cut_does_not_matter(tokens: int, cuts: list[int], headers: dict[str, str]) -> None:
    answer = TOKEN * tokens + END
    places = sorted({0, len(answer), *(cut % len(answer) for cut in cuts)})
    watch = watched(*(answer[a:b] for a, b in pairwise(places)), headers=headers)
    assert watch.usage() == KNOWN
    assert watch.response_bytes == len(answer)
    assert watch.chunks == len(places) - 1


@pytest.mark.parametrize("tokens", [0, 5, 5000])
def test_what_the_first_event_tells_is_kept(tokens: int) -> None:
    first = event({"type": "message_start", "message": {"usage": {"input_tokens": 30, "output_tokens": 1}}})
    last = event({"type": "message_delta", "usage": {"output_tokens": 99}})
    watch = watched(first, *[event({"type": "delta", "text": "word"})] * tokens, last)
    assert watch.usage() == Usage(30, 99, None)


TOLD = {"usage": {"prompt_tokens": 999, "prompt_tokens_details": {"cached_tokens": 0}}}
TOLD_BEFORE = {
    "messages": (
        {
            "content": [{"type": "tool_use", "input": TOLD}],
            "usage": {"input_tokens": 100, "cache_read_input_tokens": 5000, "output_tokens": 20},
        },
        Usage(5100, 20, 5000),
    ),
    "responses": (
        {
            "tools": [{"type": "function", "parameters": TOLD}] * 2,
            "usage": {"input_tokens": 5100, "output_tokens": 20},
        },
        Usage(5100, 20, None),
    ),
    "responses of SGLang": (
        {
            "usage": {"input_tokens": 5100, "output_tokens": 20},
            "tools": [{"type": "function", "parameters": {"usage": {"type": "string"}}}],
        },
        Usage(5100, 20, None),
    ),
}


@pytest.mark.parametrize("name", TOLD_BEFORE)
@given(data=st.data())
def test_what_a_model_or_a_client_calls_usage_is_not_the_answers(name: str, data: st.DataObject) -> None:
    fields, known = TOLD_BEFORE[name]
    body = json.dumps(fields).encode()
    streamed = event({"type": "response.completed", "response": fields})
    for answer, headers in ((body, {"content-type": "application/json"}), (streamed, EVENTS)):
        places = sorted({0, len(answer), *data.draw(st.lists(st.integers(0, len(answer)), max_size=6))})
        assert watched(*(answer[a:b] for a, b in pairwise(places)), headers=headers).usage() == known


def test_what_the_ends_hold_does_not_join_over_the_gap() -> None:
    torn = b'"usage": {"prompt_tokens": 5' + b"." * HEAD_BYTES
    watch = watched(torn, b"x" * 10 * TAIL_BYTES, b'} "usage": {"completion_tokens": 3}')
    assert watch.usage() == Usage(None, 3, None)


def test_little_is_kept_of_a_long_answer() -> None:
    watch = watched()
    for number in range(50_000):
        watch.feed(b"x" * 300, float(number))
    kept = sum(map(len, watch._head)) + sum(map(len, watch._tail))
    assert kept >= HEAD_BYTES + TAIL_BYTES
    assert kept <= HEAD_BYTES + 2 * TAIL_BYTES + 600
    assert watch.response_bytes == 15_000_000


@pytest.mark.parametrize(
    ("status", "pieces", "first", "last"),
    [
        (200, [b"", b"data: a\n\n", b"data: b\n\n", b""], 1.0, 2.0),
        (200, [b": keep-alive\n\n", b"data: a\n\n"], 1.0, 1.0),
        (200, [b": keep-alive\n\ndata: a\n\n", b"data: b\n\n"], 0.0, 1.0),  # both in one piece
        (200, [b": keep-", b"alive\n", b"\n", b"data: a\n\n"], 3.0, 3.0),
        (200, [b": a\r\n\r\n: b\r\n", b"\r\ndata: a\r\n\r\n"], 1.0, 1.0),
        (200, [], math.nan, math.nan),
        (200, [b""], math.nan, math.nan),
        (500, [b"no"], math.nan, 0.0),
        (0, [b"{}"], 0.0, 0.0),
    ],
)
def test_the_first_and_the_last_piece_are_stamped(
    status: int, pieces: list[bytes], first: float, last: float
) -> None:
    watch = AnswerWatch()
    watch.started(status, {})
    firsts = [watch.feed(piece, float(number)) for number, piece in enumerate(pieces)]
    assert watch.first_s == pytest.approx(first, nan_ok=True)
    assert watch.last_s == pytest.approx(last, nan_ok=True)
    assert sum(firsts) == (not math.isnan(first))


def test_pieces_however_short_take_no_more_than_is_counted_for_a_watch() -> None:
    watch = AnswerWatch()
    watch.started(200, {"content-type": "text/event-stream"})
    pieces = [bytes((32 + at % 64,)) for at in range(100_000)]
    tracemalloc.start()
    try:
        for piece in pieces:
            watch.feed(piece * 2, 1.0)
        taken_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken_bytes < WATCH_BYTES
    assert watch.response_bytes == 2 * len(pieces)


@pytest.mark.parametrize(
    ("encoding", "known"), [("gzip", False), ("br", False), ("identity", True), ("", True)]
)
def test_compressed_answers_tell_no_usage(encoding: str, known: bool) -> None:
    watch = AnswerWatch()
    watch.started(200, {"content-encoding": encoding})
    watch.feed(END, 0.0)
    assert watch.encoded is not known
    assert watch.usage() == (KNOWN if known else NO_USAGE)


@pytest.mark.parametrize(
    ("last", "whole"),
    [
        (b"data: [DONE]\n\n", True),
        (b"data:[DONE]\r\n\r\n", True),
        (b"data: [DONE]\n", False),
        (event({"type": "message_stop"}), True),
        (event({"type": "response.completed", "response": {}}), True),
        (event({"choices": [{"delta": {"content": "data: [DONE]"}}]}), False),
        (event({"choices": [{"delta": {"content": '"type":"message_stop"'}}]}), False),
        (b"", False),
    ],
)
@pytest.mark.parametrize("tokens", [0, 5, 5000])
def test_a_stream_is_whole_with_its_last_event(last: bytes, whole: bool, tokens: int) -> None:
    answer = TOKEN * tokens + last
    assert watched(answer).has_last_event() is whole
    assert watched(*(answer[at : at + 700] for at in range(0, len(answer), 700))).has_last_event() is whole
    assert not watched(answer, headers={"content-type": "application/json"}).has_last_event()
