"""What settings allow, and from when on: the other side relies on its own once it has read that we took them."""

from __future__ import annotations

from epp.transport import frames
from epp.transport.events import RequestReceived, StreamDrained
from epp.transport.frames import ErrorCode
from tests.kit.http2 import REQUEST, greeted, sent, settings


def test_what_settings_allow_more_is_sent_behind_their_acknowledgement() -> None:
    connection, client = greeted(initial_window_size=10)
    (event,) = connection.receive(client.headers(1), 0.0)
    assert isinstance(event, RequestReceived)
    connection.send_data(event.stream, b"x" * 40_000)
    assert [len(frame.payload) for frame in sent(connection)] == [10]
    events = connection.receive(settings(initial_window_size=50_000, max_frame_size=20_000), 0.0)
    assert events == [StreamDrained(event.stream)]
    assert [(frame.kind, len(frame.payload)) for frame in sent(connection)] == [
        (frames.SETTINGS, 0),
        (frames.DATA, 20_000),
        (frames.DATA, 19_990),
    ]


def test_too_many_headers_cost_their_stream_in_one_frame_as_in_several() -> None:
    """Frames of this length are what our settings allow."""
    connection, client = greeted()
    many = (*REQUEST, (b"x-long", b"~" * 20_000))
    whole = client.headers(1, many)
    assert len(whole) > frames.DEFAULT_FRAME_BYTES
    assert not connection.receive(whole, 0.0)
    block = client.headers(3, many)[frames.HEAD_BYTES :]
    begin, rest = block[:16_000], block[16_000:]
    parts = frames.frame(frames.HEADERS, 0, 3, begin) + frames.frame(frames.CONTINUATION, 4, 3, rest)
    assert not connection.receive(parts, 0.0)
    (event,) = connection.receive(client.headers(5), 0.0)
    assert isinstance(event, RequestReceived)
    assert [(reset.number, reset.code) for reset in sent(connection)] == [
        (1, ErrorCode.ENHANCE_YOUR_CALM),
        (3, ErrorCode.ENHANCE_YOUR_CALM),
    ]
