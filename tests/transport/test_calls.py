"""gRPC on top of HTTP/2: messages cut from bytes, statuses in trailers, what is refused and in which words."""

from __future__ import annotations

from itertools import pairwise
from typing import cast
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.transport import frames
from epp.transport.calls import (
    STREAM_BYTES,
    Call,
    CallCancelled,
    CallEnded,
    CallEvent,
    Calls,
    CallStarted,
    MessageReceived,
    NoRoom,
)
from epp.transport.frames import ErrorCode
from epp.transport.messages import BodilessLimit, MessageError, MessageReader
from epp.transport.status import Status, percent_encoded
from tests.kit.http2 import PATH, REQUEST, Client, Fields, message, only, sent

LONGEST = 1000
#: What an answer that waits takes beside its bytes.
ITEM = 512


def calls() -> tuple[Calls, Client]:
    made, client = Calls({PATH}, max_receive_bytes=LONGEST, max_send_bytes=LONGEST), Client()
    assert not made.receive(client.hello(), 0.0)
    sent(made)
    return made, client


def begun(fields: Fields = REQUEST) -> tuple[Calls, Client, Call]:
    made, client = calls()
    (event,) = made.receive(client.headers(1, fields), 0.0)
    assert isinstance(event, CallStarted)
    return made, client, event.call


def messages(events: list[CallEvent]) -> list[bytes]:
    return [bytes(event.message) for event in events if isinstance(event, MessageReceived)]


def status(made: Calls, client: Client) -> tuple[Status, str]:
    """What the call was told at its end, and that nothing compressed is taken."""
    last: dict[bytes, bytes] = {}
    for frame in only(sent(made), frames.HEADERS):
        last = client.fields(frame)
        assert last.get(b"grpc-accept-encoding", b"identity") == b"identity"
        ended = frame.ends
    assert ended
    return Status(int(last[b"grpc-status"])), unquote(last.get(b"grpc-message", b"").decode())


def test_messages_answers_and_the_end_in_one_write() -> None:
    made, client, call = begun()
    assert (call.path, call.timeout_s) == (PATH, None)
    events = made.receive(client.data(1, message(b"one") + message(b"") + message(b"three")[:4]), 0.0)
    assert messages(events) == [b"one", b""]
    call.send(b"answer")
    call.finish(Status.OK, last=b"last")
    head, first, second, end, _ = sent(made)
    assert client.fields(head)[b":status"] == b"200"
    assert (first.payload, second.payload) == (message(b"answer"), message(b"last"))
    assert client.fields(end) == {b"grpc-status": b"0"}
    call.send(b"late")
    call.finish(Status.INTERNAL)
    assert not sent(made)
    assert not made.open


def test_the_end_of_the_other_side_and_its_going() -> None:
    made, client, call = begun()
    assert made.receive(client.data(1, message(b"x"), end=True), 0.0)[-1] == CallEnded(call)
    made, client, call = begun()
    assert made.receive(frames.rst_stream(1, 8), 0.0) == [CallCancelled(call)]
    assert call.over
    made, client, call = begun()
    assert made.receive(frames.window_update(0, 0), 0.0) == [CallCancelled(call)]
    assert made.failed
    made, client, call = begun()
    assert made.lost() == [CallCancelled(call)]
    assert not made.lost()


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        (
            tuple((name, b"/no/such" if name == b":path" else value) for name, value in REQUEST),
            Status.UNIMPLEMENTED,
        ),
        ((*REQUEST, (b"grpc-encoding", b"gzip")), Status.UNIMPLEMENTED),
        ((*REQUEST, (b"grpc-timeout", b"soon")), Status.INTERNAL),
    ],
)
def test_what_is_not_served_gets_a_status_alone(fields: Fields, code: Status) -> None:
    made, client = calls()
    assert not made.receive(client.headers(1, fields), 0.0)
    assert status(made, client)[0] is code
    assert not made.open


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        (b":method", b"GET", b"405"),
        (b"content-type", b"application/json", b"415"),
        (b"content-type", b"application/grpcx", b"415"),
    ],
)
def test_who_speaks_no_grpc_is_told_in_http(name: bytes, value: bytes, code: bytes) -> None:
    made, client = calls()
    fields = tuple((key, value if key == name else was) for key, was in REQUEST)
    assert not made.receive(client.headers(1, fields) + client.data(1, b"{}", end=True), 0.0)
    head, body = sent(made)
    assert client.fields(head)[b":status"] == code
    assert body.ends
    assert b"only" in body.payload


@pytest.mark.parametrize("kind", [b"application/grpc+proto", b"application/grpc;charset=utf-8"])
def test_subtypes_are_grpc(kind: bytes) -> None:
    begun(tuple((name, kind if name == b"content-type" else value) for name, value in REQUEST))


@pytest.mark.parametrize(
    ("told", "seconds"), [(b"5S", 5.0), (b"250m", 0.25), (b"1H", 3600.0), (b"10u", 1e-5)]
)
def test_timeouts(told: bytes, seconds: float) -> None:
    assert begun((*REQUEST, (b"grpc-timeout", told)))[2].timeout_s == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("data", "code", "words"),
    [
        (message(b"x" * (LONGEST + 1))[:9], Status.RESOURCE_EXHAUSTED, "larger than max (1001 vs. 1000)"),
        (message(b"x", flag=1), Status.INTERNAL, "no compression"),
        (message(b"x", flag=2), Status.INTERNAL, "flag 2"),
    ],
)
def test_messages_that_are_not_taken(data: bytes, code: Status, words: str) -> None:
    made, client, call = begun()
    events = made.receive(client.data(1, message(b"good") + data), 0.0)
    assert messages(events) == [b"good"]
    assert events[-1] == CallCancelled(call)
    told, said = status(made, client)
    assert told is code
    assert words in said


def test_a_call_that_ends_within_a_message() -> None:
    made, client, call = begun()
    assert made.receive(client.data(1, message(b"abc")[:-1], end=True), 0.0) == [CallCancelled(call)]
    assert status(made, client)[0] is Status.INTERNAL


def test_an_answer_that_is_too_long_ends_the_call() -> None:
    made, client, call = begun()
    call.finish(Status.OK, last=b"x" * (LONGEST + 1))
    told, said = status(made, client)
    assert told is Status.RESOURCE_EXHAUSTED
    assert said == "Sent message larger than max (1001 vs. 1000)"
    assert call.over


@pytest.mark.parametrize(
    ("length", "begin", "taken"),
    [(20, b"other", True), (21, b"other", False), (21, b"body", True), (LONGEST, b"body", True)],
)
@pytest.mark.parametrize("size", [1, 7, LONGEST])
def test_messages_without_a_body_have_a_limit_of_their_own(
    length: int, begin: bytes, taken: bool, size: int
) -> None:
    """It is known from the first bytes: no more of a message that is too long is kept."""
    bodiless = BodilessLimit(
        20, lambda long, first: long == length and len(first) == 8 and first[:4] == b"body"
    )
    reader = MessageReader(LONGEST, bodiless=bodiless)
    data, kept, found = message(begin + bytes(length - len(begin))), 0, list[bytes]()

    def feed_all() -> None:
        nonlocal kept
        for at in range(0, len(data), size):
            found.extend(bytes(one) for one in reader.feed(memoryview(data[at : at + size])))
            kept = max(kept, reader.taken_bytes)

    if taken:
        feed_all()
        assert [len(one) for one in found] == [length]
    else:
        with pytest.raises(MessageError, match=r"without a body larger than max \(21 vs. 20\)") as caught:
            feed_all()
        assert caught.value.status is Status.RESOURCE_EXHAUSTED
        assert kept <= 13


@given(words=st.text(max_size=300))
def test_words_survive_the_trailers(words: str) -> None:
    encoded = percent_encoded(words)
    assert unquote(encoded.decode("ascii"), errors="replace") == words.encode("utf-8", "replace").decode()
    assert not encoded or all(0x20 <= byte < 0x7F for byte in encoded)


@given(
    bodies=st.lists(st.binary(max_size=200), max_size=8),
    cuts=st.lists(st.integers(0, 2000), max_size=30),
)
def test_messages_are_the_same_however_their_bytes_are_cut(bodies: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(message(body) for body in bodies)
    places = sorted({0, len(stream), *(at for at in cuts if at < len(stream))})
    reader, found = MessageReader(LONGEST), []
    for begin, end in pairwise(places):
        found += [bytes(cast("memoryview", one)) for one in reader.feed(memoryview(stream[begin:end]))]
    assert found == bodies
    assert not reader.partial


def test_of_a_message_that_is_too_long_nothing_is_kept() -> None:
    reader = MessageReader(LONGEST)
    for byte in message(b"x" * 2000)[:4]:
        list(reader.feed(memoryview(bytes((byte,)))))
    with pytest.raises(MessageError):
        list(reader.feed(memoryview(b"\xd0")))


class Scarce:
    """Room for so many bytes."""

    def __init__(self, free: int) -> None:
        self.free = free

    def take_part(self, size: int) -> bool:
        if size > self.free:
            return False
        self.free -= size
        return True

    def give_back(self, size: int) -> None:
        self.free += size


def crowded(free: int, **values: int) -> tuple[Calls, Client, Scarce, list[Call]]:
    """Two calls and room for so much that nobody has taken yet, what the calls take apart."""
    room, client = Scarce(free + 2 * STREAM_BYTES), Client()
    made = Calls({PATH}, max_receive_bytes=100_000, max_send_bytes=100_000, room=room)
    told = made.receive(client.hello(**values) + client.headers(1) + client.headers(3), 0.0)
    sent(made)
    return made, client, room, [event.call for event in told]


def test_a_part_that_finds_no_room_is_told_once_behind_what_came_before_it() -> None:
    made, client, room, (first, second) = crowded(20)
    assert not made.receive(client.data(1, message(b"x" * 50)[:15]), 0.0)
    told = made.receive(
        client.data(3, message(b"whole") + message(b"x" * 50)[:15]) + client.data(3, b"y" * 9), 0.0
    )
    assert told == [MessageReceived(second, b"whole"), NoRoom(second)]
    assert room.free == 5
    second.finish(Status.OK, last=b"no room")
    assert not made.receive(client.data(3, b"more"), 0.0)
    assert messages(made.receive(client.data(1, b"x" * 40), 0.0)) == [b"x" * 50]
    assert room.free == 20 + STREAM_BYTES, "what the second took"
    assert list(made.open) == [first]


def test_a_call_without_room_that_is_not_finished_yet_is_cancelled_with_the_rest() -> None:
    made, client, _, (_, second) = crowded(10)
    half = message(b"x" * 50_000)[: 2 * STREAM_BYTES + 15]
    told = made.receive(client.data(3, half) + client.data(0, b"x"), 0.0)
    assert told[0] == NoRoom(second)
    assert CallCancelled(second) in told


def test_an_open_stream_takes_room_unless_it_is_alone() -> None:
    made, client, room, (first, second) = crowded(0)
    assert room.free == 0
    told = made.receive(client.headers(5), 0.0)
    assert told == [CallStarted(told[0].call), NoRoom(told[0].call)]
    told[0].call.finish(Status.RESOURCE_EXHAUSTED)
    first.finish(Status.OK)
    assert room.free == STREAM_BYTES
    wrong = tuple((key, b"text/plain" if key == b"content-type" else value) for key, value in REQUEST)
    assert not made.receive(client.headers(7, wrong), 0.0)
    assert room.free == 0, "whatever it is for"
    made.receive(client.data(7, b"", end=True), 0.0)
    second.finish(Status.OK)
    assert room.free == 2 * STREAM_BYTES
    assert len(made.receive(client.headers(9), 0.0)) == 1
    assert room.free == 2 * STREAM_BYTES


def test_a_long_answer_that_must_wait_and_finds_no_room_ends_its_call() -> None:
    waits = 40_005 - 10_000 + ITEM
    made, _, room, (first, second) = crowded(50_000, initial_window_size=10_000)
    for call in (first, second):
        call.send(b"x" * 40_000)
    assert room.free == 50_000 - waits + STREAM_BYTES, "the second has gone with what it took"
    assert (first.over, second.over, list(made.open)) == (False, True, [first])
    assert [frame.code for frame in only(sent(made), frames.RST_STREAM)] == [ErrorCode.ENHANCE_YOUR_CALM]
    first.finish(Status.OK, last=b"x" * 30_000)
    assert not made.open
    made.receive(frames.window_update(1, 100_000), 0.0)
    assert room.free == 50_000 + 2 * STREAM_BYTES
    _, _, room, (first, second) = crowded(50_000, initial_window_size=10_000)
    first.send(b"x" * 40_000)
    second.finish(Status.OK, last=b"x" * 40_000)
    assert second.over
    assert room.free == 50_000 - waits + STREAM_BYTES


def test_one_short_answer_waits_without_room_and_what_is_given_up_is_given_back() -> None:
    made, _, room, (first, second) = crowded(30_000, initial_window_size=0)
    first.send(b"x" * 20_000)
    second.send(b"x" * 1000)
    assert room.free == 30_000 - 20_005 - ITEM
    second.send(b"x" * 1000)
    assert room.free == 30_000 - 20_005 - ITEM - 1005 - ITEM
    made.receive(frames.rst_stream(1, 8) + frames.rst_stream(3, 8), 0.0)
    assert room.free == 30_000 + 2 * STREAM_BYTES


def test_what_waits_on_a_connection_that_is_lost_is_given_back() -> None:
    made, client, room, (first, second) = crowded(90_000, initial_window_size=10)
    first.send(b"x" * 40_000)
    second.finish(Status.OK, last=b"x" * 40_000)
    assert not made.receive(client.data(1, message(b"x" * 50)[:15]), 0.0)
    assert room.free == 90_000 - 2 * (40_005 - 10 + ITEM) - 15
    assert made.lost() == [CallCancelled(first), CallCancelled(second)], "its last was not sent"
    assert room.free == 90_000 + 2 * STREAM_BYTES
    assert not made.receive(client.headers(5), 0.0), "nothing comes of what was still read"
