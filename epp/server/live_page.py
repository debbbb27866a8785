"""The live page's place in a picker: its code is loaded when somebody first asks for it."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field
from socket import gethostname
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiohttp import web

    from epp.clock import Clock
    from epp.cluster.link import Link
    from epp.console.page import Page
    from epp.schedule.picker import Picker
    from epp.server.learned import Learning
    from epp.server.recent import RecentDecisions


#: Pickers that ask within this get the same frame.
FRAME_S = 0.2


@dataclass(slots=True)
class LivePage:
    """Serves `/ui`, and answers the live pages of other pickers. Made on the picker's loop.

    Attributes:
        picker: the picker.
        recent: its newest decisions.
        clock: the time.
        link: the way to other pickers, None without any.
        learning: its learned policies, None without any.
        asking: opinions that are being made, by policy.
        one_opinion: held while one is: each takes a thread for seconds.
    """

    picker: Picker
    recent: RecentDecisions
    clock: Clock
    link: Link | None
    learning: Learning | None
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    asking: dict[str, asyncio.Task[dict[str, Any]]] = field(default_factory=dict)
    one_opinion: asyncio.Lock = field(default_factory=asyncio.Lock)
    _page: Page | None = None
    _packed: tuple[float, bytes] = (-math.inf, b"")

    def __post_init__(self) -> None:
        """Answer others from now on."""
        if self.link is not None:
            self.link.on_question = self._answer

    @property
    def name(self) -> str:
        """Name this picker, for people."""
        return gethostname() if self.link is None else self.link.name

    def add_to(self, app: web.Application) -> None:
        """Add the routes."""
        app.router.add_get("/ui{rest:(/.+)?}", self._handle)
        app.on_shutdown.append(self._close)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if self._page is None:
            from epp.console.page import Page  # noqa: PLC0415  # only once it is asked for

            self._page = Page(self)
        return await self._page.handle(request)

    async def _close(self, _: web.Application) -> None:
        if self._page is not None:
            self._page.close()

    def ignore(self, reason: str) -> None:
        """Count a message of another picker that is not taken."""
        if self.link is not None:
            self.link.sharing.counts.ignored[reason] += 1

    def _answer(self, question: str, reply: Callable[[bytes], object]) -> None:
        from epp.console import frames, page, pictures  # noqa: PLC0415  # likewise

        if not question:
            now_s = self.clock.mono_s()
            if now_s - self._packed[0] >= FRAME_S:
                self._packed = now_s, page.packed(frames.frame(self))
            reply(self._packed[1])
        elif question in pictures.offered():
            frames.answer(self, question, lambda found: reply(page.packed(found)))
        else:
            self.ignore("unreadable")
