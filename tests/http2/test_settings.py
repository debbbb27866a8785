"""What the other side's settings allow, and from when on: it relies on them once it has read that we took them."""

from __future__ import annotations

from epp.http2 import frames
from epp.http2.events import RequestReceived, StreamDrained
from tests.kit.http2 import greeted, sent, settings


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
