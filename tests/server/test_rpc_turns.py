"""Floods on the gRPC listener: what they may take, what becomes of them, and who is served beside them."""

from __future__ import annotations

import asyncio
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from epp.server.rpc_protocol import RpcConnection
from epp.server.turns import Peer
from epp.transport import frames
from tests.kit.http2 import PATH, Client, message, serving
from tests.kit.rawpeer import RawPeer, Serving
from tests.server.test_connections import answered

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from epp.extproc.body_budget import Reclaim
    from epp.server.rpc_server import RpcServer
    from epp.server.turns import Turn
    from epp.transport.calls import Call
    from epp.transport.connection import Connection

FLOODS = {
    "window updates": frames.window_update(0, 1) * 300_000,
    "data of one byte": Client().headers(1) + Client().data(1, b"\0") * 100_000,
    "fields from a table": b"".join(
        frames.frame(frames.HEADERS, frames.END_HEADERS, number, b"\x82\x86\x84" + b"\x90" * 400)
        for number in range(1, 8000, 2)
    ),
}


@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS)
async def test_a_flood_is_ended_and_others_of_its_address_are_served_meanwhile(
    tmp_path: Path, flood: bytes
) -> None:
    serving = await Serving.start(tmp_path)
    quiet = await RawPeer.connect(serving.address)
    number = 1
    for _ in range(3):  # the budget outlives the connection
        attack = await RawPeer.connect(serving.address)
        attack.write(flood)
        while not attack.ended():
            assert await answered(quiet, number)
            number += 2
            await asyncio.sleep(0.02)
        await attack.close()
    late = await RawPeer.connect(serving.address)
    assert await answered(late)
    assert not quiet.ended()
    assert await serving.metric('epp_connections_closed_total{listener="grpc",reason="flood"}') > 0
    assert await serving.metric("epp_connections_throttled_seconds_total") > 0
    for peer in (quiet, late):
        await peer.close()
    await serving.stop()


class Handler:
    """Takes a second for each message."""

    def __init__(self, call: Call, place: Place) -> None:
        self.call, self.place, self.messages, self.ends = call, place, list[bytes](), list[str]()

    def message(self, told: Any) -> None:
        self.messages.append(bytes(told))
        self.place.now_s += 1.0

    def ended(self) -> None:
        self.ends.append("ended")

    def cancelled(self) -> None:
        self.ends.append("cancelled")


class Wire(asyncio.Transport):
    """Says whether it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.reading, self.written, self.closed = True, b"", False

    def write(self, data: Any) -> None:
        self.written += data

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """There are none."""

    def is_closing(self) -> bool:
        return self.closed

    def abort(self) -> None:
        self.closed = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


class Place:
    """Of connections whose turns a test gives."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s, self.handlers = 100.0, list[Handler]()
        self.waiting: list[Callable[[], None]] = []
        self.methods: Any = {PATH: self._make}
        self.ended, self.throttled_s = list[str](), 0.0
        self.peer = Peer(self.now_s)
        loop = SimpleNamespace(
            time=lambda: self.now_s,
            call_later=self._later,
            call_soon=lambda callback: self._later(0.0, callback),
        )
        monkeypatch.setattr(asyncio, "get_running_loop", lambda: loop)
        self.client, self.wire, self.connection = Client(), Wire(), RpcConnection(cast("RpcServer", self))
        self.connection.connection_made(self.wire)
        self.connection.data_received(self.client.hello() + self.client.headers(1))

    def _make(self, call: Call, _flush: Callable[[], None]) -> Handler:
        self.handlers.append(Handler(call, self))
        return self.handlers[-1]

    def _later(self, _delay_s: float, callback: Callable[..., None], *arguments: Any) -> Any:
        self.waiting.append(partial(callback, *arguments))
        return SimpleNamespace(cancel=lambda: None)

    def new_connection(self, _reclaim: Reclaim) -> Connection:
        return serving()

    def opened(self, _connection: RpcConnection, _certificate: bytes | None) -> Peer:
        self.waiting.clear()
        return self.peer

    def closed(self, connection: RpcConnection) -> None:
        """Nobody waits for it."""

    def queue(self, _peer: Peer, turn: Turn) -> None:
        self.waiting.append(turn)

    def on_ended(self, reason: str) -> None:
        self.ended.append(reason)

    def on_throttled(self, waited_s: float) -> None:
        self.throttled_s += waited_s

    def turn(self) -> None:
        waiting, self.waiting = self.waiting, []
        for callback in waiting:
            callback()


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Place:
    made = Place(monkeypatch)
    made.waiting.clear()  # the timer of the greeting
    return made


def test_messages_of_one_read_that_take_long_are_served_in_turns(place: Place) -> None:
    client = place.client
    place.connection.data_received(
        b"".join(client.data(1, message(bytes((at,)))) for at in range(3)) + client.data(1, b"", end=True)
    )
    (handler,) = place.handlers
    for served in (1, 2, 3):
        assert len(handler.messages) == served
        assert not place.wire.reading
        place.turn()
    assert handler.messages == [b"\0", b"\1", b"\2"]
    assert handler.ends == ["ended"]
    assert place.wire.reading
    assert not place.waiting


def test_what_waits_for_a_turn_when_the_socket_goes_ends_once(place: Place) -> None:
    client = place.client
    more = b"".join(client.data(1, message(b"x")) for _ in range(3)) + client.headers(3) + client.headers(5)
    place.connection.data_received(more + frames.rst_stream(1, 8))
    place.connection.connection_lost(None)
    place.turn()
    (handler,) = place.handlers
    assert handler.messages == [b"x"]
    assert handler.ends == ["cancelled"]
    assert not place.connection._connection.streams


def test_frames_are_cut_in_slices_and_the_socket_is_not_read_before_the_last(place: Place) -> None:
    place.connection.data_received(frames.window_update(0, 1) * 5000)
    turns = 0
    while not place.wire.reading:
        turns += 1
        place.turn()
    assert turns > 5
    assert place.connection._connection.sender.window == frames.DEFAULT_WINDOW_BYTES + 5000


def test_over_the_budget_a_connection_that_does_much_is_not_read_and_ended_in_the_end(place: Place) -> None:
    place.peer.units = -60_000
    place.connection.data_received(frames.window_update(0, 1) * 20_000)
    waited = 0
    while not place.wire.closed:
        place.peer.units = -60_000
        place.now_s += 0.05
        waited += 1
        place.turn()
        assert not place.wire.reading
        assert waited < 100
    assert place.ended == ["flood"]
    assert place.throttled_s == pytest.approx(0.5, abs=0.15)


def test_over_the_budget_a_connection_that_does_little_is_read(place: Place) -> None:
    for _ in range(100):
        place.peer.units = -60_000
        place.now_s += 0.1
        place.connection.data_received(frames.window_update(0, 1) * 100)
        for _ in range(3):
            place.turn()
        assert place.wire.reading
    assert not place.ended
    assert place.connection._connection.sender.window == frames.DEFAULT_WINDOW_BYTES + 10_000


def test_connections_over_the_budget_that_wait_with_what_was_read_are_few(place: Place) -> None:
    place.peer.units, place.peer.throttled = -60_000, 64
    place.connection.data_received(frames.window_update(0, 1) * 20_000)
    while not place.wire.closed:
        assert place.waiting
        place.turn()
    assert place.ended == ["flood"]
    place.connection.connection_lost(None)
    assert place.peer.throttled == 64
