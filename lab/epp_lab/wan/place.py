"""A thread whose network is a region's: sockets that it opens and processes that it starts are there."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from epp_lab.wan.network import Network

_T = TypeVar("_T")


class Place(threading.Thread):
    """A thread inside a region's network, with a loop of its own; what it starts is inside, too."""

    def __init__(self, network: Network, region: str) -> None:
        super().__init__(name=region, daemon=True)
        self.region, self.address = region, network.address(region)
        self._network, self._loop = network, asyncio.new_event_loop()
        self.start()

    def run(self) -> None:
        """Run the loop."""
        with self._network.joined(self.region):
            self._loop.run_forever()

    async def here(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Await something that runs there."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def end(self) -> None:
        """End the loop and the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self.join()
