"""Any bytes at all: nothing is raised, nothing piles up, and how they are cut changes nothing."""

from __future__ import annotations

import sys
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.transport import frames
from epp.transport.calls import CallCancelled, Calls, CallStarted, MessageReceived
from epp.transport.connection import Connection
from epp.transport.events import ConnectionFailed, DataReceived, StreamEnded, StreamReset
from epp.transport.status import Status
from tests.kit.http2 import PATH, REQUEST, Client, cut, message, settings

#: Blocks without a dynamic table, so that frames may be left out and put elsewhere.
_BLOCK = b"".join(
    b"\x00" + bytes((len(name),)) + name + bytes((len(value),)) + value for name, value in REQUEST
)

_numbers = st.sampled_from([0, 1, 2, 3, 5, 7, 9])
_payloads = st.one_of(
    st.binary(max_size=40),
    st.just(_BLOCK),
    st.just(_BLOCK[:20]),
    st.binary(max_size=30).map(message),
    st.integers(0, 2**32 - 1).map(lambda number: number.to_bytes(4, "big")),
)
_any_frame = st.builds(frames.frame, st.integers(0, 11), st.integers(0, 255), _numbers, _payloads)
_good = st.one_of(
    _numbers.map(lambda number: frames.frame(frames.HEADERS, frames.END_HEADERS, number | 1, _BLOCK)),
    st.builds(
        lambda number, body: frames.frame(frames.DATA, 0, number | 1, message(body)),
        _numbers,
        st.binary(max_size=99),
    ),
    _numbers.map(lambda number: frames.frame(frames.DATA, frames.END_STREAM, number | 1)),
    st.builds(
        lambda number, body, padding: Client().data(number | 1, message(body), padding=padding),
        _numbers,
        st.binary(max_size=30),
        st.integers(0, 255),
    ),
    st.builds(frames.window_update, _numbers, st.integers(0, 70_000)),
    st.integers(0, 100_000).map(lambda size: settings(initial_window_size=size)),
    _numbers.map(lambda number: frames.rst_stream(number | 1, 8)),
)
_streams = st.lists(st.one_of(_good, _good, _any_frame), max_size=25).map(b"".join)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(data), *(at for at in cuts if at < len(data))})
    return [data[begin:end] for begin, end in pairwise(places)]


def told(events: list[Any]) -> list[tuple[object, ...]]:
    """Events in a form that compares, neighbouring data as one."""
    found: list[tuple[object, ...]] = []
    for event in events:
        number = 0 if isinstance(event, ConnectionFailed) else event.stream.number
        if isinstance(event, DataReceived):
            data = bytes(event.data)
            if found and found[-1][:2] == (DataReceived, number):
                data = bytes(found.pop()[2]) + data  # type: ignore[call-overload]
            found.append((DataReceived, number, data))
        else:
            code = event.code if isinstance(event, StreamReset | ConnectionFailed) else 0
            found.append((type(event), number, code))
    return found


@given(data=_streams, cuts=st.lists(st.integers(0, 3000), max_size=40))
def test_how_bytes_are_cut_changes_nothing(data: bytes, cuts: list[int]) -> None:
    data = Client().hello() + data
    at_once, in_pieces = Connection(), Connection()
    whole = told(at_once.receive(data, 0.0))
    events: list[Any] = []
    for piece in pieces(data, cuts):
        events += in_pieces.receive(piece, 0.0)
    assert told(events) == whole
    assert in_pieces.output() == at_once.output()
    assert in_pieces.closed == at_once.closed


@pytest.mark.parametrize("padding", [1, 2, 10, 255])
def test_padding_may_be_cut_anywhere(padding: int) -> None:
    client = Client()
    begin = client.hello() + client.headers(1)
    data = client.data(1, b"abc", padding=padding) + client.data(1, b"defghijk" * 40, end=True)
    for place in range(len(data)):
        connection = Connection()
        events = [*connection.receive(begin, 0.0), *connection.receive(data[:place], 0.0)]
        assert told(events + connection.receive(data[place:], 0.0))[1:] == [
            (DataReceived, 1, b"abc" + b"defghijk" * 40),
            (StreamEnded, 1, 0),
        ]


@given(data=st.binary(max_size=400))
def test_noise_raises_nothing(data: bytes) -> None:
    for begin in (b"", frames.PREFACE, frames.PREFACE + settings()):
        connection = Connection()
        connection.receive(begin + data, 0.0)
        cut(connection.output())


@given(data=_streams, cuts=st.lists(st.integers(0, 3000), max_size=10), chosen=st.integers(0, 3))
def test_every_call_ends_once_and_what_is_written_are_frames(
    data: bytes, cuts: list[int], chosen: int
) -> None:
    calls = Calls({PATH}, max_receive_bytes=1000, max_send_bytes=1000)
    open_now, ended = set(), []
    for piece in pieces(Client().hello() + data, cuts):
        for event in calls.receive(piece, 0.0):
            if isinstance(event, CallStarted):
                open_now.add(event.call)
            elif isinstance(event, CallCancelled):
                open_now.discard(event.call)  # finished, its last may still have waited
                ended.append(event.call)
            elif isinstance(event, MessageReceived) and not event.call.over:
                event.call.send(b"x" * 900)
                if len(event.message) % 4 == chosen:
                    event.call.finish(Status.OK)
                    open_now.remove(event.call)
        cut(calls.connection.output())
    assert set(calls.open) == open_now
    for event in calls.lost():
        open_now.discard(event.call)
    assert not open_now
    assert all(call.over for call in ended)


def test_what_a_connection_holds_is_bounded_by_its_windows() -> None:
    """A stream of tiny frames that never makes a message must not cost more than what it says."""
    calls, client = Calls({PATH}, max_receive_bytes=100_000, max_send_bytes=1000), Client()
    (started,) = calls.receive(client.hello() + client.headers(1), 0.0)
    calls.receive(client.data(1, message(b"x" * 90_000)[:5]), 0.0)
    tiny = client.data(1, b"x")
    for _ in range(900):
        assert not calls.receive(tiny * 99, 0.0)
    assert sys.getsizeof(started.call.reader._held) < 200_000
    assert len(cut(calls.connection.output())) <= 4, "settings, the connection's window, and no frame a frame"
