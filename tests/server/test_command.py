"""`epp serve`: how the process ends."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import pytest

from epp.server.command import serve


class Stumbling:
    """An application that cannot be stopped in order."""

    def __init__(self) -> None:
        self.started = asyncio.Event()

    async def start(self) -> None:
        self.started.set()

    async def stop(self) -> None:
        raise RuntimeError("the socket cannot be closed")


async def test_a_stop_that_fails_is_no_success() -> None:
    app: Any = Stumbling()
    served = asyncio.ensure_future(serve(app))
    await app.started.wait()
    os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(RuntimeError, match="cannot be closed"):
        await served
