"""Streams that we end before the other side has, and what it may say of them afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epp.transport import frames
from epp.transport.events import ConnectionFailed, RequestReceived
from epp.transport.frames import ErrorCode
from epp.transport.headers import encode
from epp.transport.limits import Limits, Rate
from tests.kit.http2 import Client, greeted, sent

if TYPE_CHECKING:
    from epp.transport.connection import Connection

LIMITS = Limits(idle_frames=Rate(5, 1), useless_streams=Rate(5, 1))
TRAILERS = encode(((b":status", b"200"), (b"grpc-status", b"0")))
CANCEL = int(ErrorCode.CANCEL)


def finished_early(connection: Connection, client: Client, number: int) -> None:
    event = connection.receive(client.headers(number), 0.0)[0]
    assert isinstance(event, RequestReceived)
    connection.send_headers(event.stream, TRAILERS, end=True)
    assert [frame.kind for frame in sent(connection)] == [frames.HEADERS, frames.RST_STREAM]


def test_the_reset_that_answers_an_early_end_costs_nothing() -> None:
    connection, client = greeted(LIMITS)
    for at in range(2000):
        number = 1 + 2 * at
        finished_early(connection, client, number)
        late = frames.window_update(number, 100) + client.data(number, b"late")
        assert not connection.receive(late + frames.rst_stream(number, CANCEL), 0.0)
    assert not connection.closed
    assert connection.streams == 0


def test_answers_that_come_behind_further_streams_cost_nothing_either() -> None:
    connection, client = greeted(LIMITS)
    numbers = [1 + 2 * at for at in range(200)]
    for number in numbers:
        finished_early(connection, client, number)
    assert not connection.receive(
        b"".join(frames.rst_stream(number, CANCEL) for number in reversed(numbers)), 0.0
    )


def test_further_resets_of_a_stream_that_is_over_are_a_flood() -> None:
    connection, client = greeted(LIMITS)
    finished_early(connection, client, 1)
    assert not connection.receive(frames.rst_stream(1, CANCEL) * 6, 0.0)
    (event,) = connection.receive(frames.rst_stream(1, CANCEL), 0.0)
    assert isinstance(event, ConnectionFailed)
    assert event.code == ErrorCode.ENHANCE_YOUR_CALM


def test_resets_of_streams_that_we_did_not_end_are_a_flood_beside_those_that_we_did() -> None:
    connection, client = greeted(LIMITS)
    for at in range(6):
        finished_early(connection, client, 1 + 4 * at)
        given_up = client.headers(3 + 4 * at) + frames.rst_stream(3 + 4 * at, CANCEL)
        events = connection.receive(frames.rst_stream(1 + 4 * at, CANCEL) + given_up, 0.0)
        assert connection.closed is (at == 5)
    assert isinstance(events[-1], ConnectionFailed)


def test_what_was_on_its_way_on_as_many_streams_as_may_be_open_is_forgiven() -> None:
    """All of them end in a moment, and the other side has said its last on each before it reads that."""
    connection, client = greeted()
    numbers = [1 + 2 * at for at in range(Limits().max_streams)]
    events = connection.receive(b"".join(map(client.headers, numbers)), 0.0)
    for event in events:
        assert isinstance(event, RequestReceived)
        connection.send_headers(event.stream, TRAILERS, end=True)
    late = [client.data(number, b"late", end=True) for number in numbers]
    late += [client.headers(number, ((b"x-end", b"1"),), end=True) for number in numbers]
    late += [frames.rst_stream(number, CANCEL) for number in numbers]
    assert not connection.receive(b"".join(late), 0.0)
    assert not connection.closed
