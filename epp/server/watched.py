"""Connections of the HTTP listeners: so many at once as are allowed, and none that is silent for long.

Owns how long. What is spoken on a connection is another protocol's, aiohttp's or that of first tokens. Both
wait without end: for a request, for the rest of one, for an answer to be read. Where the number of
connections is bounded, whoever opens them and leaves them there would keep others out for good.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from epp.server.accepting import Acceptor

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable


#: Longer than it is from scrape to scrape, so that a scraper's connection lasts.
SILENT_S = 120.0


class Watched(asyncio.Protocol):
    """One connection.

    Args:
        spoken: what is spoken on it.
        acceptor: what it came from.
    """

    def __init__(self, spoken: asyncio.Protocol, acceptor: Acceptor[Watched]) -> None:
        self._spoken, self._acceptor = spoken, acceptor
        self._loop = asyncio.get_running_loop()
        self._heard_s = self._loop.time()
        self._transport: asyncio.Transport | None = None
        self._looks: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to speak."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's derives from no asyncio class
        self._acceptor.begun(self)
        self._heard_s = self._loop.time()
        self._looks = self._loop.call_later(SILENT_S, self._look)
        self._spoken.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Pass on what was heard."""
        self._heard_s = self._loop.time()
        self._spoken.data_received(data)

    def eof_received(self) -> bool | None:
        """Note the end of what is heard."""
        return self._spoken.eof_received()

    def pause_writing(self) -> None:
        """Wait: the socket takes no more."""
        self._spoken.pause_writing()

    def resume_writing(self) -> None:
        """Write on."""
        self._spoken.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        self._transport = None
        if self._looks is not None:
            self._looks.cancel()
        self._acceptor.gone(self)
        self._spoken.connection_lost(exc)

    def abort(self) -> None:
        """Close it at once."""
        if self._transport is not None:
            self._transport.abort()

    def _look(self) -> None:
        # One timer a connection that is put off when it comes: a request costs none.
        left_s = self._heard_s + SILENT_S - self._loop.time()
        if left_s > 0.0:
            self._looks = self._loop.call_later(left_s, self._look)
        else:
            self.abort()


def watching(
    new_protocol: Callable[[], asyncio.Protocol],
    *,
    most: int,
    tls: ssl.SSLContext | None,
    on_refused: Callable[[], None],
) -> Acceptor[Watched]:
    """Make an `Acceptor` whose connections are watched; its arguments, and what makes a protocol."""
    acceptor: Acceptor[Watched] = Acceptor(
        lambda: Watched(new_protocol(), acceptor), most=most, tls=tls, on_refused=on_refused
    )
    return acceptor
