"""The events of a picker's live page, as a browser gets them."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import aiohttp

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    Event = tuple[str, dict[str, Any]]


@asynccontextmanager
async def events(address: str, what: str = "events") -> AsyncIterator[AsyncIterator[Event]]:
    """Listen below `/ui`: kinds and contents, until the stream ends."""
    async with (
        asyncio.timeout(30),
        aiohttp.ClientSession(read_bufsize=1 << 22) as http,
        http.get(f"http://{address}/ui/{what}") as answer,
    ):
        assert answer.status == 200

        async def read() -> AsyncIterator[Event]:
            kind = ""
            async for line in answer.content:
                name, _, value = line.decode().rstrip("\n").partition(": ")
                if name == "event":
                    kind = value
                elif name == "data":
                    yield kind, json.loads(value)

        yield read()


async def until_event(heard: AsyncIterator[Event], kind: str) -> dict[str, Any]:
    """The next event of a kind."""
    async for found, content in heard:
        if found == kind:
            return content
    raise AssertionError(f"the stream ended without {kind}")
