"""What a peer can ask for with few bytes costs no more than many bytes would: work counted, not time."""

from __future__ import annotations

import struct
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from hpack import Encoder

from epp.rpc.http2 import frames
from epp.rpc.http2.connection import CallCancelled
from epp.rpc.http2.frames import ErrorCode, Setting
from epp.rpc.http2.headers import encode
from epp.rpc.http2.status import Status
from tests.kit.http2 import REQUEST, greeted, message, only, sent

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from epp.rpc.http2.connection import Connection


def lines_run(work: Callable[[], object]) -> int:
    """How many lines of Python ran."""
    count = 0

    def traced(_frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal count
        count += event == "line"
        return traced

    before = sys.gettrace()
    sys.settrace(traced)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def with_streams(count: int) -> Connection:
    connection, client = greeted()
    for number in range(1, 2 * count, 2):
        connection.receive(client.headers(number), 0.0)
    return connection


def test_a_setting_told_a_thousand_times_in_one_frame_touches_every_stream_once() -> None:
    window = struct.pack(">HL", Setting.INITIAL_WINDOW_SIZE, 100)
    other = struct.pack(">HL", Setting.INITIAL_WINDOW_SIZE, 200)
    costs = []
    for times in (1, 1000):
        connection = with_streams(100)
        frame = frames.frame(frames.SETTINGS, 0, 0, (window + other) * times)
        costs.append(lines_run(partial(connection.receive, frame, 0.0)))
        assert {stream.send_window for stream in connection.streams} == {200}
    assert costs[1] < costs[0] * 2


def huffman(count: int) -> bytes:
    """A block with a value of so many bytes, a character in 5 bits."""
    return Encoder().encode([*REQUEST, (b"x-long", b"0" * count)], huffman=True)


def headers(block: bytes) -> Callable[[int], bytes]:
    """HEADERS with this block on stream after stream."""
    return lambda at: frames.frame(frames.HEADERS, frames.END_HEADERS, 3 + 2 * at, block)


def changing(block: bytes) -> Callable[[int], bytes]:
    """The same, each with another field, so that none is known."""
    return lambda at: headers(block + encode(((b"x", str(at).encode()),)))(at)


@pytest.mark.parametrize(
    "frame",
    [
        lambda _: frames.window_update(0, 1),
        lambda _: frames.window_update(1, 1),
        lambda _: frames.frame(frames.DATA, 0, 1, b"x"),
        lambda _: frames.frame(frames.DATA, frames.PADDED, 1, b"\x01xx"),
        lambda _: frames.frame(frames.PRIORITY, 0, 3, bytes(5)),
        headers(Encoder().encode(REQUEST)),
        changing(Encoder().encode(REQUEST) + b"\x90" * 400),
        changing(huffman(4000)),
    ],
    ids=[
        "window of the connection", "window of a stream", "data", "padding", "priority", "headers", "indexed",
        "huffman",
    ],
)  # fmt: skip
def test_a_slice_is_bounded_whatever_it_is_full_of_and_the_rest_comes_with_the_next(
    frame: Callable[[int], bytes],
) -> None:
    many = b"".join(frame(at) for at in range(2000))[: 64 * 1024]
    whole, sliced = with_streams(1), with_streams(1)
    events = [type(event) for event in whole.receive(many, 0.0)]
    found: list[type] = []
    slices = 0
    data, units = many, 500
    while True:
        sliced.reader.units = units
        lines = lines_run(lambda: found.extend(map(type, sliced.receive(data, 0.0))))  # noqa: B023
        assert lines < 100_000
        assert sliced.reader.units > -units
        slices += 1
        data = b""
        if not sliced.reader.more:
            break
    assert slices >= 3
    assert found == events
    assert sliced.output() == whole.output()


def test_a_block_that_changes_the_tables_size_again_and_again_is_not_decoded() -> None:
    connection, _ = greeted()
    block = b"\x20" * 30_000
    assert lines_run(partial(connection.receive, headers(block)(0), 0.0)) < 1000
    assert sent(connection)[-1].code == ErrorCode.COMPRESSION_ERROR


def test_a_call_of_empty_messages_alone_is_ended_before_all_are_cut() -> None:
    connection, client = greeted()
    data = client.headers(1) + client.data(1, message(b"") * 50_000)
    events = connection.receive(data, 0.0)
    assert len(events) < 9000
    assert isinstance(events[-1], CallCancelled)
    trailers = client.fields(only(sent(connection), frames.HEADERS)[-1])
    assert trailers[b"grpc-status"] == b"%d" % Status.RESOURCE_EXHAUSTED
