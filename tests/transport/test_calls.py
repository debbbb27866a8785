"""gRPC on top of HTTP/2: messages cut from bytes, statuses in trailers, what is refused and in which words."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.rpc.http2 import frames
from epp.rpc.http2.connection import STREAM_BYTES, CallCancelled, CallStarted, MessageReceived, NoRoom
from epp.rpc.http2.frames import ErrorCode
from epp.rpc.http2.messages import BodilessLimit, MessageError, MessageReader
from epp.rpc.http2.status import Status, percent_encoded
from tests.kit.http2 import REQUEST, Client, Fields, message, only, sent, serving

if TYPE_CHECKING:
    from epp.rpc.http2.connection import Call, CallEvent, Connection

LONGEST = 1000
#: What an answer that waits takes beside its bytes.
ITEM = 512


def begun(fields: Fields = REQUEST, data: bytes = b"") -> tuple[Connection, Client, list[CallEvent]]:
    connection, client = serving(LONGEST), Client()
    connection.receive(client.hello(), 0.0)
    sent(connection)
    return connection, client, connection.receive(client.headers(1, fields) + data, 0.0)


def messages(events: list[CallEvent]) -> list[bytes]:
    return [bytes(event.message) for event in events if isinstance(event, MessageReceived)]


def status(connection: Connection, client: Client) -> tuple[Status, str]:
    """How the call ended, and that nothing compressed is taken."""
    last: dict[bytes, bytes] = {}
    for frame in only(sent(connection), frames.HEADERS):
        last = client.fields(frame)
        assert last.get(b"grpc-accept-encoding", b"identity") == b"identity"
        ended = frame.ends
    assert ended
    return Status(int(last[b"grpc-status"])), unquote(last.get(b"grpc-message", b"").decode())


def test_messages_answers_and_what_comes_behind_the_end() -> None:
    connection, client, (started,) = begun()
    call = started.call
    events = connection.receive(client.data(1, message(b"one") + message(b"") + message(b"three")[:4]), 0.0)
    assert messages(events) == [b"one", b""]
    call.send(b"answer")
    assert call.finish(Status.OK, last=b"last")
    head, first, second, end, _ = sent(connection)
    assert client.fields(head)[b":status"] == b"200"
    assert (first.payload, second.payload) == (message(b"answer"), message(b"last"))
    assert client.fields(end) == {b"grpc-status": b"0"}
    call.send(b"late")
    call.finish(Status.INTERNAL)
    assert not sent(connection)


def _with(name: bytes, value: bytes) -> Fields:
    return (
        *((key, value if key == name else was) for key, was in REQUEST),
        (b"x-" + name.strip(b":"), value),
    )


@pytest.mark.parametrize("fields", [_with(b":path", b"/no/such"), (*REQUEST, (b"grpc-encoding", b"gzip"))])
def test_what_is_not_served_gets_a_status_alone(fields: Fields) -> None:
    connection, client, events = begun(fields)
    assert not events
    assert status(connection, client)[0] is Status.UNIMPLEMENTED


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        (b":method", b"GET", b"405"),
        (b"content-type", b"application/json", b"415"),
        (b"content-type", b"application/grpcx", b"415"),
        (b"content-type", b"application/grpc+proto", None),
    ],
)
def test_who_speaks_no_grpc_is_answered_in_http(name: bytes, value: bytes, code: bytes | None) -> None:
    connection, client, events = begun(_with(name, value))
    assert bool(events) is (code is None)
    if code is not None:
        assert not connection.receive(client.data(1, b"{}", end=True), 0.0)
        head, body = sent(connection)
        assert client.fields(head)[b":status"] == code
        assert body.ends


@pytest.mark.parametrize(
    ("data", "code", "words"),
    [
        (message(b"x" * (LONGEST + 1))[:9], Status.RESOURCE_EXHAUSTED, "larger than max (1001 vs. 1000)"),
        (message(b"x", flag=1), Status.INTERNAL, "no compression"),
        (message(b"abc")[:-1], Status.INTERNAL, "within a message"),
    ],
)
def test_messages_that_are_not_taken(data: bytes, code: Status, words: str) -> None:
    connection, client, events = begun(data=Client().data(1, message(b"good") + data, end=True))
    assert messages(events) == [b"good"]
    assert events[-1] == CallCancelled(events[0].call)
    ended, said = status(connection, client)
    assert ended is code
    assert words in said


def test_an_answer_that_is_too_long_ends_the_call() -> None:
    connection, client, (started,) = begun()
    assert not started.call.finish(Status.OK, last=b"x" * (LONGEST + 1))
    expected = (Status.RESOURCE_EXHAUSTED, "Sent message larger than max (1001 vs. 1000)")
    assert status(connection, client) == expected


@pytest.mark.parametrize(
    ("length", "begin", "taken"),
    [(20, b"other", True), (21, b"other", False), (21, b"body", True), (LONGEST, b"body", True)],
)
@pytest.mark.parametrize("size", [1, 7, LONGEST])
def test_messages_without_a_body_have_a_limit_of_their_own(
    length: int, begin: bytes, taken: bool, size: int
) -> None:
    """It is known from the first bytes: no more of a message that is too long is kept."""
    bodiless = BodilessLimit(20, lambda long, first: long == length and first[:4] == b"body")
    reader = MessageReader(LONGEST, bodiless=bodiless)
    data = message(begin + bytes(length - len(begin)))
    pieces = [memoryview(data[at : at + size]) for at in range(0, len(data), size)]
    if taken:
        assert [len(one) for piece in pieces for one in reader.feed(piece)] == [length]
    else:
        with pytest.raises(MessageError, match=r"without a body larger than max \(21 vs. 20\)"):
            [list(reader.feed(piece)) for piece in pieces]
        assert reader.taken_bytes <= 13


@given(words=st.text(max_size=300))
def test_words_survive_the_trailers(words: str) -> None:
    encoded = percent_encoded(words)
    assert unquote(encoded.decode("ascii"), errors="replace") == words.encode("utf-8", "replace").decode()
    assert not encoded or all(0x20 <= byte < 0x7F for byte in encoded)


class Scarce:
    """Room for so many bytes."""

    def __init__(self, free: int) -> None:
        self.free = free

    def reserve(self, size: int) -> bool:
        if size > self.free:
            return False
        self.free -= size
        return True

    def release(self, size: int) -> None:
        self.free += size


def crowded(free: int, **values: int) -> tuple[Connection, Client, Scarce, list[Call]]:
    """Two calls and room for so much that nobody has taken yet, what the calls take apart."""
    room, client = Scarce(free + STREAM_BYTES), Client()
    connection = serving(100_000, room=room)
    events = connection.receive(client.hello(**values) + client.headers(1) + client.headers(3), 0.0)
    assert room.free == free, "the first was alone"
    sent(connection)
    return connection, client, room, [event.call for event in events]


def test_a_part_that_finds_no_room_is_reported_once_behind_what_came_before_it() -> None:
    connection, client, room, (_, second) = crowded(20)
    assert not connection.receive(client.data(1, message(b"x" * 50)[:15]), 0.0)
    data = client.data(3, message(b"whole") + message(b"x" * 50)[:15]) + client.data(3, b"y" * 9)
    assert connection.receive(data, 0.0) == [MessageReceived(second, b"whole"), NoRoom(second)]
    assert room.free == 5
    assert not second.reader.partial, "none of it is kept, counted or not"
    second.finish(Status.OK, last=b"no room")
    assert not connection.receive(client.data(3, b"more"), 0.0)
    assert messages(connection.receive(client.data(1, b"x" * 40), 0.0)) == [b"x" * 50]
    assert room.free == 20 + STREAM_BYTES, "what the second took"


def test_an_open_stream_takes_room_unless_it_is_alone() -> None:
    connection, client, room, (first, second) = crowded(0)
    started, no_room = connection.receive(client.headers(5), 0.0)
    assert (type(started), type(no_room)) == (CallStarted, NoRoom)
    assert connection.receive(frames.rst_stream(5, 8), 0.0) == [CallCancelled(started.call)]
    second.finish(Status.OK)
    assert not connection.receive(client.headers(7, _with(b"content-type", b"text/plain")), 0.0)
    assert room.free == 0, "whatever it is for"
    connection.receive(client.data(7, b"", end=True), 0.0)
    first.finish(Status.OK)
    assert len(connection.receive(client.headers(9), 0.0)) == 1
    assert room.free == STREAM_BYTES


def test_a_long_answer_that_must_wait_and_finds_no_room_ends_its_call() -> None:
    waits = 40_005 - 10_000 + ITEM
    connection, _, room, (first, second) = crowded(50_000, initial_window_size=10_000)
    for call in (first, second):
        call.send(b"x" * 40_000)
    assert room.free == 50_000 - waits + STREAM_BYTES, "the second has gone with what it took"
    assert (first.over, second.over) == (False, True)
    assert [frame.code for frame in only(sent(connection), frames.RST_STREAM)] == [
        ErrorCode.ENHANCE_YOUR_CALM
    ]
    assert not first.finish(Status.OK, last=b"x" * 90_000)
    assert room.free == 50_000 + STREAM_BYTES


def test_one_short_answer_waits_without_room_and_what_is_given_up_is_given_back() -> None:
    connection, client, room, (first, second) = crowded(30_000, initial_window_size=0)
    first.send(b"x" * 20_000)
    second.send(b"x" * 1000)
    assert room.free == 30_000 - 20_005 - ITEM
    second.finish(Status.OK, last=b"x" * 1000)
    assert room.free == 30_000 - 20_005 - ITEM - 1005 - ITEM
    assert not connection.receive(client.data(1, message(b"x" * 50)[:15]), 0.0)
    assert connection.receive(frames.rst_stream(1, 8), 0.0) == [CallCancelled(first)]
    assert connection.lost() == [CallCancelled(second)], "its last was not sent"
    assert room.free == 30_000 + STREAM_BYTES
    assert not connection.receive(client.headers(5), 0.0), "nothing comes of what was still read"
