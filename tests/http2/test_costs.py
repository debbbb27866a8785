"""What a peer can ask for with few bytes costs no more than many bytes would: work counted, not time."""

from __future__ import annotations

import struct
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from epp.http2 import frames
from epp.http2.frames import ErrorCode, Setting
from epp.http2.stream import Lately
from tests.kit.http2 import greeted, sent

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from epp.http2.connection import Connection


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
        assert {stream.send_window for stream in connection._streams.values()} == {200}
    assert costs[1] < costs[0] * 2


@pytest.mark.parametrize("value", [(Setting.MAX_FRAME_SIZE, 1), (Setting.ENABLE_PUSH, 2)])
def test_a_wrong_setting_is_one_however_many_stand_beside_it(value: tuple[int, int]) -> None:
    connection = with_streams(1)
    payload = struct.pack(">HL", Setting.INITIAL_WINDOW_SIZE, 100) + struct.pack(">HL", *value)
    connection.receive(frames.frame(frames.SETTINGS, 0, 0, payload), 0.0)
    assert sent(connection)[-1].code == ErrorCode.PROTOCOL_ERROR


def test_the_newest_streams_that_ended_are_remembered_and_found_by_a_hash() -> None:
    lately = Lately(100)
    for number in range(1000):
        lately.add(number)
        assert all(newer in lately for newer in range(max(0, number - 99), number + 1))
        assert len(lately) <= 200
