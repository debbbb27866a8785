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
    """Wait until a reading is true; it may be awaitable."""
    async with asyncio.timeout(timeout_s):
        while True:
            reading = condition()
            if await reading if isawaitable(reading) else reading:
                return
            await asyncio.sleep(0.01)
