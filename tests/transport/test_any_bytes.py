"""Any bytes at all: nothing is raised, nothing piles up, and how they are cut changes nothing."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.rpc.http2 import frames
from epp.rpc.http2.connection import CallCancelled, CallEnded, CallStarted, MessageReceived
from epp.rpc.http2.status import Status
from tests.kit.http2 import REQUEST, Client, message, sent, serving, settings

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


def described(events: list[Any]) -> list[tuple[object, ...]]:
    """Events in a form that compares."""
    return [
        (type(event), event.call.number, bytes(event.message) if isinstance(event, MessageReceived) else b"")
        for event in events
    ]


@given(data=_streams, cuts=st.lists(st.integers(0, 3000), max_size=40))
def test_how_bytes_are_cut_changes_nothing(data: bytes, cuts: list[int]) -> None:
    data = Client().hello() + data
    at_once, in_pieces = serving(), serving()
    whole = described(at_once.receive(data, 0.0))
    events: list[tuple[object, ...]] = []
    for piece in pieces(data, cuts):
        events += described(in_pieces.receive(piece, 0.0))
    assert events == whole
    assert in_pieces.output() == at_once.output()
    assert in_pieces.closed == at_once.closed


@pytest.mark.parametrize("padding", [1, 2, 255])
def test_padding_may_be_cut_anywhere(padding: int) -> None:
    client = Client()
    begin = client.hello() + client.headers(1)
    whole = message(b"abcdefgh" * 40)
    data = client.data(1, whole[:9], padding=padding) + client.data(1, whole[9:], end=True)
    for place in range(len(data)):
        connection = serving()
        events = [*connection.receive(begin, 0.0), *connection.receive(data[:place], 0.0)]
        events += connection.receive(data[place:], 0.0)
        assert described(events)[1:] == [(MessageReceived, 1, whole[5:]), (CallEnded, 1, b"")]


@given(data=_streams, cuts=st.lists(st.integers(0, 3000), max_size=10), chosen=st.integers(0, 3))
def test_every_call_ends_once_and_what_is_written_are_frames(
    data: bytes, cuts: list[int], chosen: int
) -> None:
    connection = serving(1000)
    open_now, ended = set(), []
    for piece in pieces(Client().hello() + data, cuts):
        for event in connection.receive(piece, 0.0):
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
        sent(connection)
    assert {call for call in connection.streams if call.started and not call.over} == open_now
    for event in connection.lost():
        open_now.discard(event.call)
    assert not open_now
    assert all(call.over for call in ended)
