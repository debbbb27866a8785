"""Wait for what a test is about, in real time."""

from __future__ import annotations

import asyncio
from inspect import isawaitable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


#: What has not come by then hangs, however busy the machine.
HANGS_S = 240


async def until(condition: Callable[[], object], timeout_s: float = HANGS_S) -> None:
    """Wait until a reading is true; it may be awaitable. Looks come ever later, for each may cost as much as what it waits for."""
    pause_s = 0.01
    async with asyncio.timeout(timeout_s):
        while True:
            reading = condition()
            if await reading if isawaitable(reading) else reading:
                return
            await asyncio.sleep(pause_s)
            pause_s = min(0.1, 1.5 * pause_s)
