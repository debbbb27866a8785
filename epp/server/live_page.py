"""The live page's place in a picker: its code is loaded when somebody first asks for it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiohttp import web

    from epp.console.page import Page
    from epp.server.live import Live

#: Pickers that ask within this get the same frame.
FRAME_S = 0.2


class LivePage:
    """Serves `/ui`, and answers the live pages of other pickers.

    Args:
        live: what it shows.
    """

    def __init__(self, live: Live) -> None:
        self._live = live
        self._page: Page | None = None
        self._packed = -math.inf, b""
        if live.link is not None:
            live.link.on_question = self._answer

    def add_to(self, app: web.Application) -> None:
        """Add the routes."""
        app.router.add_get("/ui{rest:(/.+)?}", self._handle)
        app.on_shutdown.append(self._close)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if self._page is None:
            from epp.console.page import Page  # noqa: PLC0415  # only once it is asked for

            self._page = Page(self._live)
        return await self._page.handle(request)

    async def _close(self, _: web.Application) -> None:
        if self._page is not None:
            self._page.close()

    def _answer(self, question: str, reply: Callable[[bytes], object]) -> None:
        from epp.console import frames, page, pictures  # noqa: PLC0415  # likewise

        live = self._live
        if not question:
            now_s = live.clock.mono_s()
            if now_s - self._packed[0] >= FRAME_S:
                self._packed = now_s, page.packed(frames.frame(live))
            reply(self._packed[1])
        elif question in pictures.offered():
            frames.answer(live, question, lambda found: reply(page.packed(found)))
        else:
            live.ignore("unreadable")
