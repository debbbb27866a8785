"""Models: adapters that come and go, and engines that answer whatever model they are asked for."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import aiohttp

from tests.cases.engine import JSON, CaseEngine, Reply, answered
from tests.kit.up import Up

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path


def _only(engine: CaseEngine) -> Callable[[str, dict[str, Any]], Reply]:
    """Answer for the models that an engine lists, and refuse others as vLLM does."""

    def answer(_path: str, fields: dict[str, Any]) -> Reply:
        name = fields.get("model", "")
        if name in (engine.listed or ()):
            return Reply.of(answered(model=name))
        error = {
            "message": f"The model `{name}` does not exist.",
            "type": "NotFoundError",
            "param": "model",
            "code": 404,
        }
        return Reply.of({"error": error}, 404)

    return answer


@asynccontextmanager
async def up_before(folder: Path, *engines: CaseEngine) -> AsyncIterator[Up]:
    """`epp up` before engines."""
    words = ["up", *(f"http://{engine.address}" for engine in engines), "--listen", "127.0.0.1:0"]
    async with Up("up", words, folder) as up:
        await up.ready()
        yield up


async def ask(up: Up, model: str) -> tuple[int, str]:
    """One chat; status and text."""
    body = {"model": model, "messages": [{"role": "user", "content": "hi"}]}
    async with (
        aiohttp.ClientSession() as http,
        http.post(up.url + "/v1/chat/completions", json=body, headers=JSON) as got,
    ):
        return got.status, await got.text()


def adapters(how: str) -> Callable[[Path], Awaitable[float]]:
    """How many requests get 404 for an adapter that an engine has just ``listed``, or that ``moves``."""

    async def measure(folder: Path) -> float:
        engines = [CaseEngine(listed=["base"]), CaseEngine(listed=["base", "sql"])]
        for engine in engines:
            engine.reply = _only(engine)
        async with engines[0], engines[1], up_before(folder, *engines) as up:
            await asyncio.sleep(2.0)  # until its lists are read
            if how == "listed":
                engines[0].listed = ["base", "late"]
                return sum([(await ask(up, "late"))[0] == 404 for _ in range(6)])
            engines[0].listed, engines[1].listed = ["base", "sql"], ["base"]
            return sum([(await ask(up, "sql"))[0] == 404 for _ in range(12)])

    return measure


async def wrong_model(folder: Path) -> float:
    """How many of six requests for a model whose only engine has died are answered by another model."""
    anything = CaseEngine(reply=lambda *_: Reply.of(answered("tiny", model="tiny")), listed=["tiny"])
    foo = CaseEngine(reply=lambda *_: Reply.of(answered("foo", model="foo")), listed=["foo"])
    async with anything, foo, up_before(folder, anything, foo) as up:
        await asyncio.sleep(2.0)
        status, text = await ask(up, "foo")
        if status != 200 or "tiny" in text:
            return 6.0
        await foo.__aexit__()
        return sum([status == 200 for status, _ in await asyncio.gather(*(ask(up, "foo") for _ in range(6)))])
