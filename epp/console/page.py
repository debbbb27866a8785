"""The live page `/ui`: its files, and the stream of events that it shows.

Runs on the event loop of `listen.http`. While somebody listens it asks the picker's loop for a frame, and the
other pickers for theirs, every `TICK_S`; otherwise it does nothing. A stream ends after `STREAM_S`, because
the listener closes connections that send nothing; browsers open it anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web

from epp.console.frames import Frame, Opinion, Refusal, answer
from epp.console.pictures import merged, offered, past, summed
from epp.errors import UnreadableError
from epp.threads import kept
from epp.wire import read, unpack

if TYPE_CHECKING:
    from epp.server.live import Live

#: Between two pictures; how long other pickers' frames are waited for.
TICK_S, GATHER_S = 0.5, 0.1
STREAM_S = 60.0
#: A picker that was not heard for so long leaves the page.
GONE_S = 10.0
#: How long opinions of other pickers are waited for: not all of them need have a page.
OPINION_S = 10.0
#: Pickers that the page shows, and bytes of what one says: some 400 for an endpoint.
_MOST_PICKERS, _MOST_BYTES = 256, 8 * 1024 * 1024
_FILES = ("ui.html", "ui.js", "ui.css")
_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; frame-ancestors 'none'; base-uri 'none'",
    "x-content-type-options": "nosniff",
    "cache-control": "no-cache",
}


class _Kind(msgspec.Struct):
    """Which of the answers one is."""

    opinion: str | None = None
    error: str | None = None


_KINDS, _FRAMES = msgspec.json.Decoder(_Kind), msgspec.json.Decoder(Frame)
_OPINIONS, _REFUSALS = msgspec.json.Decoder(Opinion), msgspec.json.Decoder(Refusal)


class Page:
    """The page of one picker, which shows those that it shares with, too.

    Args:
        live: its place in the picker.
    """

    def __init__(self, live: Live) -> None:
        self._live, self._loop = live, asyncio.get_running_loop()
        self._soon = self._loop.call_soon_threadsafe
        self._frames: dict[str, dict[str, Any]] = {}
        #: When this picker closed a bucket, and pickers then, and what is sent of the last hour since.
        self._past: tuple[tuple[float, int], msgspec.Raw] = (0.0, 0), msgspec.Raw()
        #: The policy that is asked for its opinion, and what takes the pickers' answers.
        self._asking: tuple[str, asyncio.Queue[dict[str, Any]]] | None = None
        self._opinions = asyncio.Lock()
        self._watching = 0
        self._ticks: asyncio.Task[None] | None = None
        #: The next picture, empty at the end.
        self._next = self._loop.create_future()
        if live.link is not None:
            live.link.on_answer = self._take_packed

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer a request below `/ui`."""
        asked = request.match_info["rest"]
        if asked == "/events":
            return await self._stream(request)
        if asked == "/opinion":
            return await self._opinion(request, request.query.get("policy", ""))
        name = asked.removeprefix("/") or "ui.html"
        if name not in _FILES:
            raise web.HTTPNotFound
        return web.FileResponse(Path(__file__).with_name(name), headers=_HEADERS)

    def close(self) -> None:
        """End all streams."""
        if self._ticks is not None:
            self._ticks.cancel()
        self._next.set_result(b"")

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        """Send pictures for as long as somebody looks, the newest to who reads slowly."""
        headers = {"content-type": "text/event-stream", "cache-control": "no-store"}
        response = web.StreamResponse(headers=headers)
        self._watching += 1
        if self._ticks is None:
            self._ticks = self._loop.create_task(kept("show the page", self._tick, self._frames.clear))
        try:
            async with asyncio.timeout(STREAM_S):
                await response.prepare(request)
                await response.write(b"retry: 300\n")
                while picture := await asyncio.shield(self._next):
                    await response.write(b"data: %s\n\n" % picture)
        except (TimeoutError, ConnectionError):
            pass
        finally:
            self._watching -= 1
        return response

    async def _tick(self) -> None:
        while self._watching:
            self._live.loop.call_soon_threadsafe(self._ask, "")
            await asyncio.sleep(GATHER_S)
            oldest_s = self._loop.time() - GONE_S
            self._frames = {name: one for name, one in self._frames.items() if one["heard_s"] > oldest_s}
            # This picker comes first.
            frames = sorted(self._frames.values(), key=lambda one: one["id"] != self._live.name)
            if frames:
                closed = frames[0]["past"]["closed"], len(frames)
                if closed != self._past[0]:
                    self._past = closed, msgspec.Raw(msgspec.json.encode(past(frames)))
                shown = {"past": self._past[1], "links": self._live.links}
                self._next.set_result(msgspec.json.encode(merged(frames) | shown))
                self._next = self._loop.create_future()
            await asyncio.sleep(TICK_S - GATHER_S)
        self._ticks = None

    async def _opinion(self, request: web.Request, policy: str) -> web.Response:
        """Have a policy asked by each picker, and send what they say; one after the other."""
        if policy not in offered():
            return web.json_response({"error": f"no such policy: {policy!r}"}, status=404)
        link, told = self._live.link, dict[str, dict[str, Any]]()
        async with self._opinions:
            if request.transport is None:
                raise web.HTTPGone  # nobody waits any longer
            answers = asyncio.Queue[dict[str, Any]](_MOST_PICKERS)
            self._asking = policy, answers
            self._live.loop.call_soon_threadsafe(self._ask, policy)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(OPINION_S):
                    while len(told) <= (0 if link is None else link.index_sync.peers):
                        found = await answers.get()
                        told[found["id"]] = found
            self._asking = None
        return web.json_response(summed(policy, told.values()))

    def _ask(self, question: str) -> None:
        """Ask this picker and the others, on its loop."""
        if self._live.link is not None:
            self._live.link.ask(question.encode())
        answer(self._live, question, self._take)

    def _take_packed(self, data: bytes) -> None:
        if self._watching or self._asking is not None:  # else nobody has asked for it
            self._soon(self._hear, data)

    def _hear(self, data: bytes) -> None:
        """Take what another picker answers."""
        try:
            found = unpacked(data)
        except UnreadableError:
            self._live.loop.call_soon_threadsafe(self._live.ignore, "unreadable")
        else:
            self._heard(found)

    def _take(self, found: dict[str, Any]) -> None:
        self._soon(self._heard, found)

    def _heard(self, found: dict[str, Any]) -> None:
        """Take a picker's frame or opinion, this one's or another's."""
        name, asked = found["id"], found.get("opinion")
        if asked is None and (name in self._frames or len(self._frames) < _MOST_PICKERS):
            self._frames[name] = found | {"heard_s": self._loop.time()}
        if self._asking is not None:
            policy, answers = self._asking
            if policy == asked and not answers.full():
                answers.put_nowait(found)


def packed(found: dict[str, Any]) -> bytes:
    """Pack an answer for another picker."""
    return zlib.compress(msgspec.json.encode(found), 1)


def unpacked(data: bytes) -> dict[str, Any]:
    """Unpack what another picker answers.

    Raises:
        UnreadableError: it is no frame and no opinion, or too long.
    """
    packed = unpack(data, _MOST_BYTES)
    kind = read(_KINDS, packed)
    answers: msgspec.json.Decoder[Any] = _FRAMES
    if kind.opinion is not None:
        answers = _OPINIONS if kind.error is None else _REFUSALS
    found: dict[str, Any] = read(answers, packed)
    return found
