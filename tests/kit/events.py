"""The events of a picker's live page, as a browser gets them."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import aiohttp

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@asynccontextmanager
async def pictures(address: str) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
    """Listen to `/ui/events`: pictures, until the stream ends."""
    async with (
        asyncio.timeout(240),
        aiohttp.ClientSession(read_bufsize=1 << 22) as http,
        http.get(f"http://{address}/ui/events") as answer,
    ):
        assert answer.status == 200

        async def read() -> AsyncIterator[dict[str, Any]]:
            async for line in answer.content:
                if line.startswith(b"data: "):
                    yield json.loads(line[6:])

        yield read()


async def opinion(address: str, policy: str) -> str:
    """What all pickers that an address knows say of a policy, in words."""
    async with (
        aiohttp.ClientSession() as http,
        http.get(f"http://{address}/ui/opinion", params={"policy": policy}) as answer,
    ):
        assert answer.status == 200
        return " ".join((await answer.json())["words"])
