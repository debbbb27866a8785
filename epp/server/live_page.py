"""The live page's place in a picker: its code is loaded when somebody first asks for it."""

from __future__ import annotations

import asyncio
from socket import gethostname
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiohttp import web

    from epp.clock import Clock
    from epp.cluster.link import Link
    from epp.console.frames import Sources
    from epp.console.page import Page
    from epp.schedule.picker import Picker
    from epp.server.learned import Learning
    from epp.server.recent import RecentDecisions


class LivePage:
    """Serves `/ui`, and answers the live pages of other pickers.

    Args:
        picker: the picker.
        recent: its newest decisions.
        clock: the time.
        link: the way to other pickers, None without any.
        learning: its learned policies, None without any.
    """

    def __init__(
        self,
        picker: Picker,
        recent: RecentDecisions,
        clock: Clock,
        link: Link | None,
        learning: Learning | None,
    ) -> None:
        self._given = gethostname() if link is None else link.name, picker, recent, clock, link, learning
        self._picker_loop = asyncio.get_running_loop()
        self._sources: Sources | None = None
        self._page: Page | None = None
        if link is not None:
            link.on_question = self._answer

    def add_to(self, app: web.Application) -> None:
        """Add the routes."""
        app.router.add_get("/ui{rest:(/.+)?}", self._handle)
        app.on_shutdown.append(self._close)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if self._page is None:
            from epp.console.page import Page  # noqa: PLC0415  # only once it is asked for

            self._page = Page(self._made(), self._picker_loop)
        return await self._page.handle(request)

    async def _close(self, _: web.Application) -> None:
        if self._page is not None:
            self._page.close()

    def _answer(self, question: bytes, reply: Callable[[bytes], object]) -> None:
        self._made().answer(question, reply)

    def _made(self) -> Sources:
        from epp.console.frames import Sources  # noqa: PLC0415  # likewise

        if self._sources is None:
            self._sources = Sources(*self._given)
        return self._sources
