"""The live page `/ui`: its files, and the stream of events that it shows.

Runs on the event loop of `listen.http`. While somebody listens it asks the picker's loop for a frame, and the
other pickers for theirs, every `TICK_S`; otherwise it does nothing. A stream ends after `STREAM_S`, because
the listener closes connections that send nothing; browsers open it anew.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web

from epp.console.frames import NOT_COSTS, offered, unpacked

if TYPE_CHECKING:
    from collections.abc import Callable

    from epp.console.frames import Sources

    _Event = tuple[str, dict[str, Any]]
    _Listener = asyncio.Queue[_Event | None]

TICK_S, STREAM_S = 0.5, 60.0
#: How long opinions of other pickers are waited for: not all of them need have a page.
OPINION_S = 15.0
#: Events that wait for a browser that reads slowly; further ones pass it by.
_WAITING = 16
_TYPES = {"ui.html": "text/html", "ui.js": "text/javascript", "ui.css": "text/css"}
_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; frame-ancestors 'none'; base-uri 'none'",
    "x-content-type-options": "nosniff",
    "cache-control": "no-cache",
}


class Page:
    """The page of one picker, which shows those that it shares with, too.

    Args:
        sources: of this picker.
        picker_loop: on which they are read.
    """

    def __init__(self, sources: Sources, picker_loop: asyncio.AbstractEventLoop) -> None:
        self._sources, self._picker_loop = sources, picker_loop
        self._loop = asyncio.get_running_loop()
        self._listeners: set[_Listener] = set()
        self._asking: dict[_Listener, str] = {}
        self._pickers = 1
        self._ticks: asyncio.Task[None] | None = None
        if sources.link is not None:
            sources.link.on_answer = self._answered

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer a request below `/ui`."""
        asked = request.match_info["rest"]
        if asked == "/events":
            return await self._stream(request)
        if asked == "/opinion":
            return await self._opinion(request)
        name = asked.removeprefix("/") or "ui.html"
        if name not in _TYPES:
            raise web.HTTPNotFound
        content = Path(__file__).with_name(name).read_bytes()
        return web.Response(body=content, content_type=_TYPES[name], charset="utf-8", headers=_HEADERS)

    def close(self) -> None:
        """End all streams."""
        for listener in (*self._listeners, *self._asking):
            _put(listener, None)

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        """Send events for as long as somebody listens."""
        begins = {"picker": self._sources.name, "policies": offered(), "not_costs": NOT_COSTS}
        listener: _Listener = asyncio.Queue(_WAITING)
        _put(listener, ("hello", begins))
        self._listeners.add(listener)
        if self._ticks is None:
            self._ticks = self._loop.create_task(self._tick())
        try:
            return await _send(request, listener, STREAM_S, lambda _: False)
        finally:
            self._listeners.discard(listener)

    async def _opinion(self, request: web.Request) -> web.StreamResponse:
        """Have a policy asked by each picker, and send what they say."""
        policy = request.query.get("policy", "")
        if policy not in offered():
            return web.json_response({"error": f"no such policy: {policy!r}"}, status=404)
        listener: _Listener = asyncio.Queue()
        self._asking[listener] = policy
        self._picker_loop.call_soon_threadsafe(self._ask, policy)
        told = set[str]()

        def is_last(event: _Event) -> bool:
            told.add(event[1]["picker"])
            return len(told) >= self._pickers

        try:
            return await _send(request, listener, OPINION_S, is_last)
        finally:
            del self._asking[listener]

    async def _tick(self) -> None:
        while self._listeners:
            self._picker_loop.call_soon_threadsafe(self._show)
            await asyncio.sleep(TICK_S)
        self._ticks = None

    # What follows runs on the picker's loop.

    def _show(self) -> None:
        if self._sources.link is not None:
            self._sources.link.ask(b"")
        self._take({"frame": self._sources.frame()})

    def _ask(self, policy: str) -> None:
        link = self._sources.link
        if link is not None:
            self._pickers = 1 + link.sharing.peers
            link.ask(policy.encode())
        self._sources.opinion(policy, lambda found: self._take({"opinion": found}))

    def _answered(self, data: bytes) -> None:
        self._take(unpacked(data))

    def _take(self, answer: dict[str, Any]) -> None:
        """Take a picker's answer, this one's or another's."""
        ((kind, content),) = answer.items()
        if kind == "frame":
            listeners = self._listeners
        else:
            listeners = {each for each, policy in [*self._asking.items()] if policy == content["policy"]}
        for listener in [*listeners]:
            self._loop.call_soon_threadsafe(_put, listener, (kind, content))


async def _send(
    request: web.Request, listener: _Listener, within_s: float, is_last: Callable[[_Event], bool]
) -> web.StreamResponse:
    """Send a listener's events within a time, as long as the browser is there."""
    headers = {"content-type": "text/event-stream", "cache-control": "no-store"}
    response = web.StreamResponse(headers=headers)
    with contextlib.suppress(TimeoutError, ConnectionError):
        async with asyncio.timeout(within_s):
            await response.prepare(request)
            await response.write(b"retry: 300\n")
            while (event := await listener.get()) is not None:
                kind, content = event[0].encode(), msgspec.json.encode(event[1])
                await response.write(b"event: %s\ndata: %s\n\n" % (kind, content))
                if is_last(event):
                    break
    return response


def _put(listener: _Listener, event: _Event | None) -> None:
    if event is None and listener.full():
        listener.get_nowait()
    with contextlib.suppress(asyncio.QueueFull):
        listener.put_nowait(event)
