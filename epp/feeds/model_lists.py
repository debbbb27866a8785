"""Requests for models that no engine is known to serve wait while engines are asked for their models anew.

An engine may have loaded an adapter a moment ago. Owns who waits, and the rounds in which engines are asked:
one at a time, each engine once, by its poller, which asks once a second at most. A request waits for a round
that begins after it came. It goes on sooner once an engine lists its model, and in any case after
``request.model_wait_s``. Beyond `MOST_WAITING` nobody waits.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

#: Requests that wait at a time.
MOST_WAITING = 64


class ModelLists:
    """Asks engines for their models when somebody wants to know them.

    Attributes:
        engines: asks the engine at an address, and raises nothing.
    """

    def __init__(self) -> None:
        self.engines: dict[str, Callable[[], Awaitable[object]]] = {}
        self._waiting: dict[asyncio.Future[None], str] = {}
        self._wanted = asyncio.Event()

    def want(self) -> None:
        """Ask all engines soon."""
        self._wanted.set()

    def wait_for(self, model: str) -> asyncio.Future[None] | None:
        """Ask all engines, and return what is done when a model is served, or else when they have been asked.

        None where nobody is to be asked, or too many wait.
        """
        if not self.engines or len(self._waiting) >= MOST_WAITING:
            return None
        done = asyncio.get_running_loop().create_future()
        self._waiting[done] = model
        done.add_done_callback(self._waiting.pop)
        self.want()
        return done

    def changed(self, serves: Callable[[str], bool]) -> None:
        """Let those go on whose models are served by now."""
        for done, model in list(self._waiting.items()):
            if not done.done() and serves(model):
                done.set_result(None)

    async def run(self) -> None:
        """Ask whenever it is wanted, for ever."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            waiting = list(self._waiting)
            await asyncio.gather(*(ask() for ask in dict.fromkeys(self.engines.values())))
            for done in waiting:
                if not done.done():
                    done.set_result(None)
