"""HTTP/2 connections: what is answered, refused and counted, frame by frame; `h2spec` tries what RFC 9113 forbids."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from epp.rpc.http2 import frames
from epp.rpc.http2.connection import CallCancelled, CallDrained, CallStarted
from epp.rpc.http2.frames import ErrorCode
from epp.rpc.http2.limits import Limits, Rate
from epp.rpc.http2.status import Status
from tests.kit.http2 import PATH, REQUEST, Client, greeted, message, only, sent, settings

if TYPE_CHECKING:
    from epp.rpc.http2.connection import Call, Connection

CANCEL = int(ErrorCode.CANCEL)
LOW = Limits(idle_frames=Rate(500, 50), useless_streams=Rate(5, 1))


def opened(connection: Connection, client: Client, number: int = 1, *, end: bool = False) -> Call:
    event = connection.receive(client.headers(number, end=end), 0.0)[0]
    assert isinstance(event, CallStarted)
    return event.call


def broken(connection: Connection, data: bytes, *, now_s: float = 0.0) -> ErrorCode:
    connection.receive(data, now_s)
    assert connection.finished
    assert not connection.streams
    return ErrorCode(sent(connection)[-1].code)


def test_a_block_means_something_else_once_the_table_has_moved() -> None:
    connection, client = greeted()
    client.encoder.header_table_size = 200
    paths = [PATH, b"/" + b"b" * 60, PATH, b"/" + b"c" * 60, PATH]
    for at, path in enumerate(paths):
        fields = tuple((name, path if name == b":path" else value) for name, value in REQUEST)
        for repeat in range(3):
            events = connection.receive(client.headers(1 + 6 * at + 2 * repeat, fields), 0.0)
            assert bool(events) is (path == PATH), "others are not served"


def test_the_last_data_and_the_trailers_are_one_write_and_the_open_stream_is_reset() -> None:
    connection, client = greeted()
    opened(connection, client).finish(Status.OK, last=b"pick")
    head, data, end, reset = sent(connection)
    assert (head.kind, data.payload, end.ends) == (frames.HEADERS, message(b"pick"), True)
    assert (reset.kind, reset.code) == (frames.RST_STREAM, ErrorCode.NO_ERROR)
    assert not connection.receive(client.data(1, b"late") + client.headers(1, ((b"x", b"y"),), end=True), 0.0)
    assert not sent(connection), "what was on its way is forgiven"
    opened(connection, client, 3, end=True).finish(Status.OK)
    assert [frame.kind for frame in sent(connection)] == [frames.HEADERS], "both have ended it"
    assert not connection.streams


def test_streams_take_turns_at_the_connections_window() -> None:
    connection, client = greeted(initial_window_size=1 << 20)
    calls = [opened(connection, client, number) for number in (1, 3, 5)]
    for call in calls:
        call.send(bytes(99_995))
    assert sum(len(frame.payload) for frame in only(sent(connection), frames.DATA)) == 65_535
    events = connection.receive(frames.window_update(0, 120_000), 0.0)
    found = sent(connection)
    assert {frame.number for frame in found} == {1, 3, 5}
    assert max(len(frame.payload) for frame in found) <= frames.DEFAULT_FRAME_BYTES
    events += connection.receive(frames.window_update(0, 1 << 20), 0.0)
    assert sorted(event.call.number for event in events) == [1, 3, 5]
    assert sum(len(frame.payload) for frame in found + sent(connection)) == 300_000 - 65_535


def test_settings_make_windows_negative_and_let_more_go_behind_their_acknowledgement() -> None:
    connection, client = greeted(initial_window_size=100)
    call = opened(connection, client)
    call.send(b"x" * 95)
    connection.receive(settings(initial_window_size=20), 0.0)
    call.send(b"y" * 40_000)
    assert [len(frame.payload) for frame in only(sent(connection), frames.DATA)] == [100]
    assert not connection.receive(frames.window_update(1, 80), 0.0)
    assert not sent(connection)
    more = settings(initial_window_size=50_000, max_frame_size=20_000)
    assert connection.receive(more, 0.0) == [CallDrained(call)]
    told = [(frame.kind, len(frame.payload)) for frame in sent(connection)]
    assert told == [(frames.SETTINGS, 0), (frames.DATA, 20_000), (frames.DATA, 20_000), (frames.DATA, 5)]


def test_windows_are_enlarged_in_steps_and_not_for_streams_that_are_held() -> None:
    connection, client = greeted(Limits(stream_window_bytes=65_535, connection_window_bytes=200_000))
    call = opened(connection, client)
    connection.receive(client.data(1, bytes(16_000)), 0.0)
    assert not sent(connection)
    connection.receive(client.data(1, bytes(16_000)), 0.0)
    assert [frame.number for frame in sent(connection)] == [1]
    call.hold()
    for _ in range(3):
        connection.receive(client.data(1, bytes(16_000)), 0.0)
    assert [frame.number for frame in sent(connection)] == [0], "others go on"
    call.release()
    assert [frame.number for frame in sent(connection)] == [1]
    call.hold()
    events = connection.receive(client.data(1, bytes(33_000)) * 2, 0.0)
    assert events[-1] == CallCancelled(call)
    assert sent(connection)[-1].code == ErrorCode.FLOW_CONTROL_ERROR


def test_the_table_that_the_other_side_forbids_is_given_up_aloud() -> None:
    connection, client = greeted(header_table_size=0)
    client.decoder.max_allowed_table_size = 0
    opened(connection, client).finish(Status.OK, last=b"")
    first, _, second, _ = sent(connection)
    assert client.fields(first)[b":status"] == b"200"
    assert client.fields(second) == {b"grpc-status": b"0"}


def test_a_drain_hears_what_was_on_its_way_and_nothing_later() -> None:
    connection, client = greeted()
    opened(connection, client)
    connection.drain()
    connection.drain()
    goaway, ping = sent(connection)
    assert int.from_bytes(goaway.payload[:4], "big") == frames.STREAM_MASK
    call = opened(connection, client, 3)
    connection.receive(frames.frame(frames.PING, frames.ACK, 0, ping.payload), 0.0)
    (goaway,) = sent(connection)
    assert int.from_bytes(goaway.payload[:4], "big") == 3
    late = client.headers(5) + client.data(5, b"x", end=True) + frames.rst_stream(5, 8)
    assert not connection.receive(late + frames.window_update(5, 1), 0.0)
    assert not connection.finished
    call.finish(Status.OK)
    connection.receive(frames.rst_stream(1, CANCEL), 0.0)
    assert connection.finished
    assert not connection.failed


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (frames.frame(frames.HEADERS, 4, 3, b"\xff\xff\xff"), ErrorCode.COMPRESSION_ERROR),
        (frames.window_update(0, frames.MAX_WINDOW), ErrorCode.FLOW_CONTROL_ERROR),
        (settings(max_frame_size=1), ErrorCode.PROTOCOL_ERROR),
        (frames.frame(frames.DATA, frames.PADDED, 1, b"\x05abc"), ErrorCode.PROTOCOL_ERROR),
        (frames.head(frames.DATA, 0, 1, 2**20), ErrorCode.FRAME_SIZE_ERROR),
        (frames.head(frames.HEADERS, 0, 3, 2**15 + 1), ErrorCode.FRAME_SIZE_ERROR),
        (
            frames.frame(frames.HEADERS, 0, 3, b"") + frames.frame(frames.CONTINUATION, 0, 3, b"") * 100,
            ErrorCode.ENHANCE_YOUR_CALM,
        ),
    ],
)
def test_what_breaks_a_connection(frame: bytes, code: ErrorCode) -> None:
    connection, client = greeted()
    call = opened(connection, client)
    assert connection.receive(frame, 0.0) == [CallCancelled(call)]
    goaway = sent(connection)[-1]
    assert (goaway.kind, goaway.code) == (frames.GOAWAY, code)
    assert not connection.receive(client.headers(5), 0.0)


@pytest.mark.parametrize(
    "flood",
    [
        frames.frame(frames.PING, 0, 0, bytes(8)),
        frames.frame(frames.SETTINGS, 0, 0),
        frames.frame(frames.SETTINGS, frames.ACK, 0),
        frames.frame(frames.DATA, frames.PADDED, 1, b"\x01\x00"),
        frames.frame(frames.PRIORITY, 0, 1, bytes(5)),
        frames.frame(200, 0, 1, b"unknown"),
    ],
)
def test_floods_end_the_connection_and_a_slow_stream_of_the_same_does_not(flood: bytes) -> None:
    connection, client = greeted(LOW)
    opened(connection, client)
    assert broken(connection, flood * 501) == ErrorCode.ENHANCE_YOUR_CALM
    connection, client = greeted(LOW)
    opened(connection, client)
    for second in range(20):
        connection.receive(flood, float(1 + 2 * second))
    assert not connection.closed


@pytest.mark.parametrize(
    "given_up", [frames.rst_stream(1, 8), frames.window_update(1, 0)], ids=["theirs", "ours"]
)
def test_rapid_resets_end_the_connection_and_used_streams_do_not_count(given_up: bytes) -> None:
    connection, client = greeted(LOW)
    numbers = [1 + 2 * at for at in range(8)]
    reset = [client.headers(number) + given_up[:8] + bytes((number,)) + given_up[9:] for number in numbers]
    assert broken(connection, b"".join(reset)) == ErrorCode.ENHANCE_YOUR_CALM
    connection, client = greeted(LOW)
    for number in numbers:
        used = client.headers(number) + client.data(number, b"x") + frames.rst_stream(number, 8)
        assert len(connection.receive(used, 0.0)) == 2
    assert not connection.closed


def test_the_reset_that_answers_an_early_end_costs_nothing_and_further_ones_are_a_flood() -> None:
    connection, client = greeted(LOW)
    for at in range(2000):
        number = 1 + 2 * at
        opened(connection, client, number).finish(Status.OK)
        sent(connection)
        late = frames.window_update(number, 100) + client.data(number, b"late")
        assert not connection.receive(late + frames.rst_stream(number, CANCEL), 0.0)
    assert not connection.closed
    assert broken(connection, frames.rst_stream(1, CANCEL) * 501) == ErrorCode.ENHANCE_YOUR_CALM


def test_what_was_on_its_way_on_as_many_streams_as_may_be_open_is_forgiven() -> None:
    """All of them end in a moment, and the other side has said its last on each before it reads that."""
    connection, client = greeted()
    numbers = [1 + 2 * at for at in range(Limits().max_streams)]
    for number in numbers:
        opened(connection, client, number).finish(Status.OK)
    late = [client.data(number, b"late", end=True) for number in numbers]
    late += [client.headers(number, ((b"x-end", b"1"),), end=True) for number in numbers]
    late += [frames.rst_stream(number, CANCEL) for number in numbers]
    assert not connection.receive(b"".join(late), 0.0)
    assert not connection.closed
