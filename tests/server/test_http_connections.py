"""How many connections the listeners for metrics and first tokens take, on real sockets, and how long silent ones."""

from __future__ import annotations

import asyncio
import time
import zlib
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import aiohttp
import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from epp.rpc import accepting
from epp.rpc.accepting import SILENT_S
from tests.kit.apps import app_of
from tests.kit.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from epp.server.app import App

ASKED = {
    "http": b"GET /livez HTTP/1.1\r\nhost: picker\r\n\r\n",
    "first_token": b"POST /first-token/one HTTP/1.1\r\nhost: picker\r\n\r\n",
}
BOTH = pytest.mark.parametrize("listener", list(ASKED))
NOT_READY = b"HTTP/1.1 503"
MOST, HALF = 6, 3


@dataclass
class Peer:
    """One connection to a listener."""

    listener: str
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @classmethod
    async def connect(cls, app: App, listener: str) -> Peer:
        address = app.addresses[listener]
        host, _, port = address.rpartition(":")
        return cls(listener, *await asyncio.open_connection(host, int(port)))

    async def answered(self, text: bytes = b"") -> bool:
        """Whether a request is, False when the other side hangs up instead."""
        self.writer.write(text or ASKED[self.listener])
        try:
            head = await self.reader.readuntil(b"\r\n\r\n")
            if b"Content-Length: 3" in head:
                await self.reader.readexactly(3)
        except (asyncio.IncompleteReadError, ConnectionError):
            return False
        return head.startswith((b"HTTP/1.1 200", b"HTTP/1.1 204", NOT_READY))

    async def ended(self) -> bool:
        """Wait until the other side has hung up."""
        try:
            async with asyncio.timeout(240):
                return await self.reader.read() == b""
        except ConnectionError:
            return True

    async def close(self) -> None:
        self.writer.transport.abort()


@pytest.fixture
async def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[App]:
    any_port = dict.fromkeys(("grpc", "http", "first_token", "health"), "127.0.0.1:0")
    monkeypatch.setattr(accepting, "_KEPT", KEPT)
    (tmp_path / "endpoints.yaml").write_text("endpoints: []")
    app = app_of(tmp_path, listen={**any_port, "max_connections": MOST}, records={"folder": "records"})
    await app.start()
    yield app
    await app.stop(0.0)


async def test_connections_beyond_the_bound_are_closed_and_room_is_made_by_those_that_go(app: App) -> None:
    listener = "first_token"
    inside = [await Peer.connect(app, listener) for _ in range(MOST)]
    for peer in inside[1:]:  # the first says nothing
        assert await peer.answered()
    for _ in range(5):
        outside = await Peer.connect(app, listener)
        assert await outside.ended()
        await outside.close()
    text = (await app.metrics.page()).decode()
    assert f'epp_connections_closed_total{{listener="{listener}",reason="limit"}} 5.0' in text
    assert all([await peer.answered() for peer in inside])
    await inside.pop().close()
    while not await (late := await Peer.connect(app, listener)).answered():
        await late.close()
    for peer in (*inside, late):
        await peer.close()


#: Places kept for probes.
KEPT = 4
FEEDBACK = b"POST /decisions/one/feedback HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n"


async def test_an_address_has_half_of_the_places_and_its_oldest_idle_connection_makes_room(app: App) -> None:
    mute, *spoken = [await Peer.connect(app, "http") for _ in range(HALF)]
    assert all([await peer.answered() for peer in spoken])
    late = await Peer.connect(app, "http")
    assert await late.answered()
    assert await mute.ended()
    text = (await app.metrics.page()).decode()
    assert 'epp_connections_closed_total{listener="http",reason="room"} 1.0' in text
    assert all([await peer.answered() for peer in (*spoken, late)])
    for peer in (mute, *spoken, late):
        await peer.close()


async def test_probes_are_answered_while_others_hold_all_places(app: App) -> None:
    busy = [await Peer.connect(app, "http") for _ in range(HALF)]
    for peer in busy:
        peer.writer.write(FEEDBACK)  # a slow client: its body does not come
    acceptor: Any = app._health._acceptors[0]
    await until(lambda: sum(each.spoken._request_in_progress for each in list(acceptor.open)) == HALF)
    slow = [await Peer.connect(app, "http") for _ in range(2 * KEPT)]
    for path in (b"/livez", b"/readyz") * KEPT:
        probe = await Peer.connect(app, "http")
        assert await probe.answered(b"GET %s HTTP/1.1\r\nhost: picker\r\n\r\n" % path)
        await probe.close()
    other = await Peer.connect(app, "http")
    assert not await other.answered(b"GET /metrics HTTP/1.1\r\nhost: picker\r\n\r\n"), "it is no probe"
    assert all([await peer.ended() for peer in slow[:KEPT]]), "the oldest make room"
    for peer in (*busy, *slow, other):
        await peer.close()


async def test_health_checks_are_answered_while_watchers_hold_all_places(app: App) -> None:
    own = [("grpc.use_local_subchannel_pool", 1)]  # a connection each
    async with AsyncExitStack() as open_channels:

        async def stub() -> health_pb2_grpc.HealthStub:
            channel = grpc.aio.insecure_channel(app.addresses["health"], own)
            return health_pb2_grpc.HealthStub(await open_channels.enter_async_context(channel))

        asked = health_pb2.HealthCheckRequest()
        watches = [(await stub()).Watch(asked) for _ in range(HALF)]
        for watch in watches:
            assert (await watch.read()).status
        for _ in range(2 * KEPT):
            assert (await (await stub()).Check(asked)).status
        for watch in watches:
            assert not watch.done()


@BOTH
async def test_silent_connections_are_closed_and_make_room(
    app: App, listener: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    later_s = 0.0
    loop = app._health._loop if listener == "http" else asyncio.get_running_loop()
    monkeypatch.setattr(loop, "time", lambda: time.monotonic() + later_s)
    spoken, unfinished, mute = [await Peer.connect(app, listener) for _ in range(HALF)]
    assert await spoken.answered()
    unfinished.writer.write(ASKED[listener][:20])
    for _ in range(3):  # who speaks within the time is left alone
        later_s += 0.7 * SILENT_S
        assert await spoken.answered()
    for silent in (mute, unfinished):
        assert await silent.ended()
    later_s += 1.1 * SILENT_S
    assert await spoken.ended()
    late = await Peer.connect(app, listener)
    assert await late.answered()
    for peer in (spoken, unfinished, mute, late):
        await peer.close()


async def test_a_body_is_never_decompressed(app: App) -> None:
    """Or a small one would be a large one."""
    body = zlib.compress(b'{"correct": true}')
    headers = {"content-encoding": "deflate", "content-type": "application/json"}
    url = f"http://{app.addresses['http']}/decisions/one/feedback"
    async with aiohttp.ClientSession() as http, http.post(url, data=body, headers=headers) as answer:
        assert answer.status == 400
