"""What a connection keeps of a call's deadline: nothing beyond the call, whoever ended it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from epp.server.rpc_protocol import RpcConnection
from epp.server.turns import Peer
from epp.transport.calls import Call, Calls
from epp.transport.status import Status
from tests.kit.http2 import PATH, REQUEST, Client, message

if TYPE_CHECKING:
    from collections.abc import Callable

    from epp.extproc.body_budget import Reclaim
    from epp.server.turns import Turn


class Handler:
    """Ends its call where it is told to."""

    def __init__(self, call: Call, flush: Callable[[], None]) -> None:
        self.call, self.flush, self.cancels = call, flush, 0

    def message(self, told: bytes) -> None:
        if bytes(told) == b"end":
            self.call.finish(Status.OK)

    def ended(self) -> None:
        """Nothing comes of it."""

    def cancelled(self) -> None:
        self.cancels += 1


class Wire(asyncio.Transport):
    """Takes all that is written."""

    def write(self, data: Any) -> None:
        """Nobody reads it."""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """There are none."""

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        """It stays."""


class Place:
    """Of one connection, whose loop has no time of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[Handler] = []
        self.timers: list[tuple[float, Callable[..., None], tuple[Any, ...]]] = []
        self.methods: Any = {PATH: self._make}
        monkeypatch.setattr(
            asyncio, "get_running_loop", lambda: SimpleNamespace(time=lambda: 0.0, call_later=self._later)
        )
        self.client, self.connection = Client(), RpcConnection(self)
        self.connection.connection_made(Wire())
        timed = self.client.headers(1, (*REQUEST, (b"grpc-timeout", b"1H")))
        self.connection.data_received(self.client.hello() + timed)

    def _make(self, call: Call, flush: Callable[[], None]) -> Handler:
        self.made.append(Handler(call, flush))
        return self.made[-1]

    def _later(self, delay_s: float, callback: Callable[..., None], *arguments: Any) -> Any:
        timer = delay_s, callback, arguments
        self.timers.append(timer)
        return SimpleNamespace(cancel=lambda: self.timers.remove(timer))

    def new_calls(self, _reclaim: Reclaim) -> Calls:
        return Calls({PATH}, max_receive_bytes=100, max_send_bytes=100)

    def opened(self, _connection: RpcConnection, _certificate: bytes | None) -> Peer:
        """It is the only one."""
        return Peer(0.0)

    def on_ended(self, _reason: str) -> None:
        """Nothing is ended."""

    def on_throttled(self, _waited_s: float) -> None:
        """Nothing waits."""

    def queue(self, _peer: Peer, _turn: Turn) -> None:
        """Nothing waits for a turn."""

    def closed(self, connection: RpcConnection) -> None:
        """Nobody waits for it."""

    @property
    def deadlines(self) -> list[float]:
        """How long the calls that are timed were given."""
        return [delay_s for delay_s, _, arguments in self.timers if arguments]


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Place:
    return Place(monkeypatch)


def test_a_call_that_its_own_task_ends_keeps_no_deadline(place: Place) -> None:
    assert place.deadlines == [3600.0]
    (handler,) = place.made
    handler.call.finish(Status.OK)
    handler.flush()
    assert place.deadlines == []
    assert not place.connection._deadlines


@pytest.mark.parametrize("ends", ["message", "reset", "lost"])
def test_nor_does_one_that_ends_as_the_socket_is_read(place: Place, ends: str) -> None:
    if ends == "message":
        place.connection.data_received(place.client.data(1, message(b"end")))
    elif ends == "reset":
        place.connection.data_received(b"\0\0\4\3\0\0\0\0\1\0\0\0\x08")
    else:
        place.connection.connection_lost(None)
    assert place.deadlines == []
    assert not place.connection._deadlines


def test_a_deadline_that_passes_cancels_its_call_once(place: Place) -> None:
    ((_, expire, arguments),) = [timer for timer in place.timers if timer[2]]
    expire(*arguments)
    assert place.made[0].cancels == 1
    assert place.made[0].call.over
    assert not place.connection._deadlines
