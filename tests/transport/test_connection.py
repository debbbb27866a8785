"""HTTP/2 connections: what is answered, refused and counted, frame by frame."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from epp.transport import frames
from epp.transport.connection import Connection
from epp.transport.events import (
    ConnectionFailed,
    DataReceived,
    Event,
    RequestReceived,
    StreamDrained,
    StreamEnded,
    StreamReset,
)
from epp.transport.frames import ErrorCode
from epp.transport.headers import encode
from epp.transport.limits import Limits, Rate
from tests.kit.http2 import PATH, REQUEST, Client, Fields, cut, greeted, only, sent, settings

if TYPE_CHECKING:
    from epp.transport.stream import Stream

OK = encode(((b":status", b"200"),))
TRAILERS = encode(((b"grpc-status", b"0"),))


def opened(connection: Connection, client: Client, number: int = 1, *, end: bool = False) -> Stream:
    event = connection.receive(client.headers(number, end=end), 0.0)[0]
    assert isinstance(event, RequestReceived)
    return event.stream


def failed(events: list[Event]) -> ErrorCode:
    assert isinstance(events[-1], ConnectionFailed)
    return events[-1].code


def test_a_request_with_padding_continuation_and_trailers() -> None:
    connection, client = greeted()
    block: bytes = client.encoder.encode(REQUEST)
    first = frames.frame(
        frames.HEADERS,
        frames.PADDED | frames.WITH_PRIORITY,
        1,
        bytes((3,)) + bytes(4) + b"\x10" + block[:5] + bytes(3),
    )
    rest = frames.frame(frames.CONTINUATION, 0, 1, block[5:7]) + frames.frame(
        frames.CONTINUATION, frames.END_HEADERS, 1, block[7:]
    )
    events = connection.receive(first + rest + client.data(1, b"abc", padding=7), 0.0)
    assert isinstance(events[0], RequestReceived)
    assert (events[0].head.method, events[0].head.path) == (b"POST", PATH)
    assert isinstance(events[1], DataReceived)
    assert bytes(events[1].data) == b"abc"
    events = connection.receive(client.headers(1, ((b"x-end", b"1"),), end=True), 0.0)
    assert [type(event) for event in events] == [StreamEnded]


def test_equal_blocks_are_decoded_once_and_a_changed_table_is_followed() -> None:
    connection, client = greeted()
    again = [opened(connection, client, number) for number in (1, 3, 5)]
    assert len(again) == 3
    other = (*REQUEST[:2], (b":path", b"/other"), *REQUEST[3:])
    for number, fields in enumerate([other, REQUEST, other, REQUEST, other] * 3):
        event = connection.receive(client.headers(7 + 2 * number, fields), 0.0)[0]
        assert isinstance(event, RequestReceived)
        assert event.head.path == dict(fields)[b":path"]
        assert event.head.fields[b"content-type"] == b"application/grpc"


def test_a_block_means_something_else_once_the_table_has_moved() -> None:
    connection, client = greeted()
    client.encoder.header_table_size = 200
    values = [b"a" * 60, b"b" * 60, b"c" * 60, b"a" * 60, b"b" * 60]
    for at, value in enumerate(values):
        for repeat in range(3):
            event = connection.receive(
                client.headers(1 + 6 * at + 2 * repeat, (*REQUEST, (b"x-id", value))), 0.0
            )
            assert isinstance(event[0], RequestReceived)
            assert event[0].head.fields[b"x-id"] == value


def test_the_last_data_and_the_trailers_are_one_write_and_the_open_stream_is_reset() -> None:
    connection, client = greeted()
    stream = opened(connection, client)
    connection.send_headers(stream, OK)
    connection.send_data(stream, b"pick", prefix=b"12345")
    connection.send_headers(stream, TRAILERS, end=True)
    head, data, end, reset = sent(connection)
    assert (head.kind, data.payload, end.ends) == (frames.HEADERS, b"12345pick", True)
    assert (reset.kind, reset.code) == (frames.RST_STREAM, ErrorCode.NO_ERROR)
    assert not connection.receive(client.data(1, b"late") + client.headers(1, ((b"x", b"y"),), end=True), 0.0)
    assert not sent(connection), "what was on its way is forgiven"
    assert connection.streams == 0


def test_a_stream_that_both_have_ended_needs_no_reset() -> None:
    connection, client = greeted()
    stream = opened(connection, client, end=True)
    connection.send_headers(stream, OK, end=True)
    assert [frame.kind for frame in sent(connection)] == [frames.HEADERS]


def test_data_waits_for_both_windows_and_trailers_for_data() -> None:
    connection, client = greeted(initial_window_size=10)
    stream = opened(connection, client)
    connection.send_data(stream, b"x" * 25)
    connection.send_headers(stream, TRAILERS, end=True)
    assert [len(frame.payload) for frame in sent(connection)] == [10]
    assert not connection.receive(frames.window_update(1, 5), 0.0)
    assert [len(frame.payload) for frame in sent(connection)] == [5]
    events = connection.receive(frames.window_update(1, 10), 0.0)
    assert [type(event) for event in events] == [StreamDrained]
    data, end, _ = sent(connection)
    assert (len(data.payload), end.ends) == (10, True)


def test_streams_take_turns_at_the_connections_window() -> None:
    connection, client = greeted(initial_window_size=1 << 20)
    streams = [opened(connection, client, number) for number in (1, 3, 5)]
    for stream in streams:
        connection.send_data(stream, b"x" * 100_000)
    assert sum(len(frame.payload) for frame in sent(connection)) == frames.DEFAULT_WINDOW_BYTES
    events = connection.receive(frames.window_update(0, 120_000), 0.0)
    found = sent(connection)
    assert {frame.number for frame in found} == {1, 3, 5}
    assert max(len(frame.payload) for frame in found) <= frames.DEFAULT_FRAME_BYTES
    events += connection.receive(frames.window_update(0, 1 << 20), 0.0)
    assert sorted(event.stream.number for event in events if isinstance(event, StreamDrained)) == [1, 3, 5]
    assert sum(len(frame.payload) for frame in found + sent(connection)) == 300_000 - 65_535


def test_a_window_may_be_negative_after_settings() -> None:
    connection, client = greeted(initial_window_size=100)
    stream = opened(connection, client)
    connection.send_data(stream, b"x" * 100)
    connection.receive(settings(initial_window_size=20), 0.0)
    connection.send_data(stream, b"y" * 10)
    assert [len(frame.payload) for frame in only(sent(connection), frames.DATA)] == [100]
    assert not connection.receive(frames.window_update(1, 80), 0.0)
    assert not sent(connection)
    connection.receive(settings(initial_window_size=40), 0.0)
    assert [frame.payload for frame in only(sent(connection), frames.DATA)] == [b"y" * 10]


def test_a_socket_that_takes_no_more_holds_data_alone() -> None:
    connection, client = greeted()
    stream = opened(connection, client)
    connection.cork()
    connection.send_headers(stream, OK)
    connection.send_data(stream, b"x")
    connection.receive(frames.frame(frames.PING, 0, 0, b"12345678"), 0.0)
    assert [frame.kind for frame in sent(connection)] == [frames.HEADERS, frames.PING]
    assert connection.uncork() == [StreamDrained(stream)]
    assert [frame.kind for frame in sent(connection)] == [frames.DATA]


def test_windows_are_made_good_in_steps_and_not_for_streams_that_are_held() -> None:
    limits = Limits(stream_window_bytes=65_535, connection_window_bytes=200_000)
    connection, client = greeted(limits)
    stream, other = opened(connection, client), opened(connection, client, 3)
    connection.receive(client.data(1, bytes(16_000)), 0.0)
    assert not sent(connection)
    connection.receive(client.data(1, bytes(16_000)), 0.0)
    assert [frame.number for frame in sent(connection)] == [1]
    connection.hold(stream)
    for _ in range(3):
        connection.receive(client.data(1, bytes(16_000)), 0.0)
    assert not sent(connection)
    connection.receive(client.data(3, bytes(17_000)), 0.0)
    assert [frame.number for frame in sent(connection)] == [3], "others go on"
    connection.release(stream)
    assert sorted(frame.number for frame in sent(connection)) == [0, 1]
    connection.reset(other, ErrorCode.CANCEL)
    assert connection.streams == 1


def test_more_than_a_window_is_an_error_of_the_stream_or_the_connection() -> None:
    limits = Limits(stream_window_bytes=65_535, connection_window_bytes=100_000)
    connection, client = greeted(limits)
    stream, other = opened(connection, client), opened(connection, client, 3)
    connection.hold(stream)
    connection.hold(other)
    events = []
    for _ in range(5):
        events += connection.receive(client.data(1, bytes(16_000)), 0.0)
    assert isinstance(events[-1], StreamReset)
    assert events[-1].code == ErrorCode.FLOW_CONTROL_ERROR
    for _ in range(4):
        events += connection.receive(client.data(3, bytes(16_000)), 0.0)
    assert not connection.closed
    assert isinstance(events[-1], DataReceived)


def test_the_table_that_the_other_side_forbids_is_given_up_aloud() -> None:
    connection, client = greeted(header_table_size=0)
    client.decoder.max_allowed_table_size = 0
    stream = opened(connection, client)
    connection.send_headers(stream, OK)
    connection.send_headers(stream, TRAILERS, end=True)
    first, second, _ = sent(connection)
    assert client.fields(first) == {b":status": b"200"}
    assert client.fields(second) == {b"grpc-status": b"0"}


def test_a_drain_hears_what_was_on_its_way_and_nothing_later() -> None:
    connection, client = greeted()
    opened(connection, client)
    connection.drain()
    connection.drain()
    goaway, ping = sent(connection)
    assert int.from_bytes(goaway.payload[:4], "big") == frames.STREAM_MASK
    stream = opened(connection, client, 3)
    connection.receive(frames.frame(frames.PING, frames.ACK, 0, ping.payload), 0.0)
    (goaway,) = sent(connection)
    assert int.from_bytes(goaway.payload[:4], "big") == 3
    late = client.headers(5) + client.data(5, b"x", end=True) + frames.rst_stream(5, 8)
    assert not connection.receive(late + frames.window_update(5, 1), 0.0)
    assert not connection.finished
    connection.send_headers(stream, OK, end=True)
    connection.receive(frames.rst_stream(1, ErrorCode.CANCEL), 0.0)
    assert connection.finished
    assert not connection.closed


_HEAD = Client().encoder.encode(REQUEST)


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", ErrorCode.PROTOCOL_ERROR),
        (frames.PREFACE + frames.frame(frames.PING, 0, 0, bytes(8)), ErrorCode.PROTOCOL_ERROR),
        (frames.PREFACE + frames.frame(frames.SETTINGS, 0, 0, bytes(5)), ErrorCode.FRAME_SIZE_ERROR),
    ],
)
def test_a_wrong_beginning_ends_the_connection(wrong: bytes, code: ErrorCode) -> None:
    connection = Connection()
    assert failed(connection.receive(wrong, 0.0)) == code
    assert sent(connection)[-1].code == code
    assert connection.finished
    assert not connection.receive(b"more", 0.0)


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (frames.frame(frames.DATA, 0, 0, b"x"), ErrorCode.PROTOCOL_ERROR),
        (frames.frame(frames.DATA, 0, 5, b"x"), ErrorCode.PROTOCOL_ERROR),
        (frames.frame(frames.HEADERS, 4, 2, _HEAD), ErrorCode.PROTOCOL_ERROR),
        (frames.frame(frames.HEADERS, 4, 3, b"\xff\xff\xff"), ErrorCode.COMPRESSION_ERROR),
        (
            frames.frame(frames.HEADERS, 0, 3, _HEAD) + frames.frame(frames.PING, 0, 0, bytes(8)),
            ErrorCode.PROTOCOL_ERROR,
        ),
        (frames.frame(frames.CONTINUATION, 4, 1, _HEAD), ErrorCode.PROTOCOL_ERROR),
        (frames.frame(frames.PUSH_PROMISE, 4, 1, _HEAD), ErrorCode.PROTOCOL_ERROR),
        (frames.frame(frames.PING, 0, 0, b"short"), ErrorCode.FRAME_SIZE_ERROR),
        (frames.frame(frames.PING, 0, 1, bytes(8)), ErrorCode.PROTOCOL_ERROR),
        (frames.rst_stream(7, 0), ErrorCode.PROTOCOL_ERROR),
        (frames.window_update(0, 0), ErrorCode.PROTOCOL_ERROR),
        (frames.window_update(0, frames.MAX_WINDOW), ErrorCode.FLOW_CONTROL_ERROR),
        (frames.window_update(9, 1), ErrorCode.PROTOCOL_ERROR),
        (settings(initial_window_size=2**31), ErrorCode.FLOW_CONTROL_ERROR),
        (settings(max_frame_size=1), ErrorCode.PROTOCOL_ERROR),
        (settings(enable_push=2), ErrorCode.PROTOCOL_ERROR),
        (frames.frame(frames.SETTINGS, frames.ACK, 0, bytes(6)), ErrorCode.FRAME_SIZE_ERROR),
        (frames.frame(frames.DATA, frames.PADDED, 1, b"\x05abc"), ErrorCode.PROTOCOL_ERROR),
        (frames.head(frames.DATA, 0, 1, 2**20), ErrorCode.FRAME_SIZE_ERROR),
        (frames.head(frames.HEADERS, 0, 3, 2**15 + 1), ErrorCode.FRAME_SIZE_ERROR),
    ],
)
def test_what_breaks_a_connection(frame: bytes, code: ErrorCode) -> None:
    connection, client = greeted()
    opened(connection, client)
    events = connection.receive(frame, 0.0)
    assert failed(events) == code
    goaway = sent(connection)[-1]
    assert (goaway.kind, goaway.code) == (frames.GOAWAY, code)
    assert connection.streams == 0


def _but(name: bytes, value: bytes | None) -> Fields:
    return tuple(
        (key, value if key == name and value is not None else was)
        for key, was in REQUEST
        if key != name or value is not None
    )


@pytest.mark.parametrize(
    "fields",
    [
        _but(b":method", None),
        _but(b":path", b""),
        _but(b":scheme", None),
        _but(b"te", b"gzip"),
        (*REQUEST, (b":path", b"/late")),
        (*REQUEST, (b"Upper", b"case")),
        (*REQUEST, (b"connection", b"close")),
        (*REQUEST, (b"x", b"line\nbreak")),
        (*REQUEST, (b"x", b" blank")),
        (*REQUEST, (b"content-length", b"many")),
        ((b":status", b"200"), *REQUEST),
        ((b":method", b"GET"), *REQUEST),
        (*REQUEST, *((b"x-%d" % at, b"y" * 900) for at in range(20))),
    ],
)
def test_a_malformed_request_costs_its_stream_alone(fields: Fields) -> None:
    connection, client = greeted()
    assert not connection.receive(client.headers(1, fields), 0.0)
    assert [frame.kind for frame in sent(connection)] == [frames.RST_STREAM]
    assert opened(connection, client, 3).number == 3


@pytest.mark.parametrize("pieces", [(b"abc",), (b"abcd", b"ef"), (b"abcdef",)])
def test_content_length_is_held_to(pieces: tuple[bytes, ...]) -> None:
    connection, client = greeted()
    connection.receive(client.headers(1, (*REQUEST, (b"content-length", b"5"))), 0.0)
    events: list[Event] = []
    for at, piece in enumerate(pieces):
        events += connection.receive(client.data(1, piece, end=at == len(pieces) - 1), 0.0)
    assert isinstance(events[-1], StreamReset)
    assert events[-1].code == ErrorCode.PROTOCOL_ERROR


def test_too_many_streams_are_refused_one_by_one() -> None:
    connection, client = greeted(Limits(max_streams=2))
    opened(connection, client, 1)
    opened(connection, client, 3)
    assert not connection.receive(client.headers(5), 0.0)
    (refused,) = sent(connection)
    assert (refused.number, refused.code) == (5, ErrorCode.REFUSED_STREAM)


_LOW = Limits(pings=Rate(5, 1), settings=Rate(5, 1), idle_frames=Rate(5, 1), useless_streams=Rate(5, 1))


@pytest.mark.parametrize(
    "flood",
    [
        frames.frame(frames.PING, 0, 0, bytes(8)),
        frames.frame(frames.SETTINGS, 0, 0),
        frames.frame(frames.SETTINGS, frames.ACK, 0),
        frames.frame(frames.DATA, 0, 1),
        frames.frame(frames.DATA, frames.PADDED, 1, b"\x01\x00"),
        frames.frame(frames.PRIORITY, 0, 1, bytes(5)),
        frames.frame(200, 0, 1, b"unknown"),
        frames.frame(frames.GOAWAY, 0, 0, bytes(8)),
    ],
)
def test_floods_end_the_connection_and_a_slow_stream_of_the_same_does_not(flood: bytes) -> None:
    connection, client = greeted(_LOW)
    opened(connection, client)
    assert failed(connection.receive(flood * 8, 0.0)) == ErrorCode.ENHANCE_YOUR_CALM
    connection, client = greeted(_LOW)
    opened(connection, client)
    for second in range(20):
        connection.receive(flood, float(1 + 2 * second))
    assert not connection.closed


@pytest.mark.parametrize(
    "given_up", [frames.rst_stream(1, 8), frames.window_update(1, 0)], ids=["by-them", "by-us"]
)
def test_rapid_resets_end_the_connection_and_used_streams_do_not_count(given_up: bytes) -> None:
    connection, client = greeted(_LOW)
    numbers = [1 + 2 * at for at in range(8)]
    reset = [client.headers(number) + given_up[:8] + bytes((number,)) + given_up[9:] for number in numbers]
    assert failed(connection.receive(b"".join(reset), 0.0)) == ErrorCode.ENHANCE_YOUR_CALM
    connection, client = greeted(_LOW)
    used = [client.headers(number) + client.data(number, b"x") for number in numbers]
    cancelled = [used[at] + frames.rst_stream(1 + 2 * at, 8) for at in range(8)]
    events = connection.receive(b"".join(cancelled), 0.0)
    assert [type(event) for event in events] == [RequestReceived, DataReceived, StreamReset] * 8


def test_a_block_without_end_ends_the_connection() -> None:
    connection, _ = greeted()
    endless = frames.frame(frames.HEADERS, 0, 1, b"") + frames.frame(frames.CONTINUATION, 0, 1, b"") * 100
    assert failed(connection.receive(endless, 0.0)) == ErrorCode.ENHANCE_YOUR_CALM


def test_long_frames_are_allowed_and_handed_on_as_they_come() -> None:
    connection = Connection()
    told = cut(connection.output())[0].payload
    assert told[told.index(b"\x00\x05") + 2 :][:4] == (256 * 1024).to_bytes(4, "big")
    client = Client()
    connection.receive(client.hello() + client.headers(1), 0.0)
    whole = client.data(1, bytes(200_000), end=True)
    events = connection.receive(whole[:50_000], 0.0)
    assert isinstance(events[0], DataReceived)
    assert len(events[0].data) == 50_000 - frames.HEAD_BYTES
    assert isinstance(connection.receive(whole[50_000:], 0.0)[-1], StreamEnded)
