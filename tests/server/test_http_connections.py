"""How many connections the listeners for metrics and first tokens take, on real sockets, and how long silent ones."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from epp.server.accepting import SILENT_S
from tests.kit.apps import app_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from epp.server.app import App

ASKED = {
    "http": b"GET /livez HTTP/1.1\r\nhost: picker\r\n\r\n",
    "first_token": b"POST /first-token/one HTTP/1.1\r\nhost: picker\r\n\r\n",
}
BOTH = pytest.mark.parametrize("listener", list(ASKED))
MOST = 3


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
        return head.startswith((b"HTTP/1.1 200", b"HTTP/1.1 204"))

    async def ended(self) -> bool:
        """Wait until the other side has hung up."""
        try:
            async with asyncio.timeout(30):
                return await self.reader.read() == b""
        except ConnectionError:
            return True

    async def close(self) -> None:
        self.writer.transport.abort()


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[App]:
    any_port = dict.fromkeys(("grpc", "http", "first_token"), "127.0.0.1:0")
    (tmp_path / "endpoints.yaml").write_text("endpoints: []")
    app = app_of(tmp_path, listen={**any_port, "max_connections": MOST})
    await app.start()
    yield app
    await app.stop(0.0)


@BOTH
async def test_connections_beyond_the_bound_are_closed_and_room_is_made_by_those_that_go(
    app: App, listener: str
) -> None:
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


@BOTH
async def test_silent_connections_are_closed_and_make_room(
    app: App, listener: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    later_s = 0.0
    loop = app._health._loop if listener == "http" else asyncio.get_running_loop()
    monkeypatch.setattr(loop, "time", lambda: time.monotonic() + later_s)
    spoken, unfinished, mute = [await Peer.connect(app, listener) for _ in range(MOST)]
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
