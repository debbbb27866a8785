"""Answers that pass by: the same is known of them however they are cut, and at a bounded cost."""

from __future__ import annotations

import json
import math
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.apis.usage import NO_USAGE, WATCH_BYTES, AnswerWatch, Usage

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


@pytest.mark.parametrize("headers", [EVENTS, {"content-type": "application/json"}])
@given(cuts=st.lists(st.integers(0, 200), max_size=9))
def test_the_id_of_a_response_is_told_once_when_it_has_come(cuts: list[int], headers: dict[str, str]) -> None:
    answer = event(
        {"type": "response.created", "response": {"previous_response_id": "resp_0", "id": "resp_1-a"}}
    )
    watch, told, at = watched(headers=headers), list[tuple[str, int]](), 0
    for end in [*sorted(cut for cut in cuts if cut < len(answer)), len(answer)]:
        watch.feed(answer[at:end], 0.0)
        told.append((watch.response_id(), end))
        at = end
    needed = answer.index(b"resp_1-a") + len("resp_1-a") + 1
    assert [(name, end >= needed) for name, end in told if name] == [("resp_1-a", True)]
    watch.feed(event({"id": "resp_2"}), 0.0)
    assert watch.response_id() == ""


@pytest.mark.parametrize(
    ("status", "pieces", "first", "last"),
    [
        (200, [b"", b"data: a\n\n", b"data: b\n\n", b""], 1.0, 2.0),
        (200, [b": keep-alive\n\n", b"data: a\n\n"], 1.0, 1.0),
        (200, [b": keep-alive\n\ndata: a\n\n", b"data: b\n\n"], 0.0, 1.0),  # both in one piece
        (200, [b": a\r\n\r\n: b\r\n", b"\r\ndata: a\r\n\r\n"], 1.0, 1.0),
        (200, [b""], math.nan, math.nan),
        (500, [b"no"], math.nan, 0.0),
    ],
)
def test_the_first_and_the_last_piece_are_stamped(
    status: int, pieces: list[bytes], first: float, last: float
) -> None:
    watch = AnswerWatch()
    watch.started(status, EVENTS)
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
