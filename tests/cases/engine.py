"""An engine that says what a case tells it to: its answers, its list of models and its metrics."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aiohttp import web

from tests.kit.engines import Engine, EngineServing

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

#: Pieces of an answer: bytes that go out at once, or seconds to wait before the next ones.
Pieces = list[bytes | float]


def event(data: object, name: str = "") -> bytes:
    """A server-sent event."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {data if isinstance(data, str) else json.dumps(data)}\n\n".encode()


def usage(prompt: int, cached: int = 0, answer: int = 4) -> dict[str, Any]:
    """A usage object in OpenAI's words."""
    return {
        "prompt_tokens": prompt,
        "completion_tokens": answer,
        "total_tokens": prompt + answer,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def answered(text: str = "good", **told: Any) -> dict[str, Any]:
    """A whole chat."""
    message = {"role": "assistant", "content": text}
    return {"id": "c", "object": "chat.completion", "choices": [{"index": 0, "message": message}], **told}


@dataclass
class Reply:
    """What an engine answers to one request."""

    pieces: Pieces
    status: int = 200
    kind: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, body: object, status: int = 200, **headers: str) -> Reply:
        """A whole body of JSON."""
        return cls([json.dumps(body).encode()], status, headers=headers)

    @classmethod
    def stream(cls, *pieces: bytes | float) -> Reply:
        """A stream of events."""
        return cls(list(pieces), kind="text/event-stream")


@dataclass
class CaseEngine(Engine):
    """An engine that a case steers while it runs.

    Attributes:
        reply: from path and fields of a request to the reply.
        listed: names in its list of models; None answers 404 to who asks for it.
        metrics: what it answers, by path.
    """

    reply: Callable[[str, dict[str, Any]], Reply] = lambda _path, _fields: Reply.of(answered())
    listed: list[str] | None = None
    metrics: dict[str, str] = field(default_factory=dict)

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Answer a request."""
        if request.method != "POST":
            return self._told(request.path)
        asked = await self.heard(request)
        reply = self.reply(asked.path, asked.fields)
        response = web.StreamResponse(
            status=reply.status, headers={"content-type": reply.kind, **reply.headers}
        )
        await response.prepare(request)
        for piece in reply.pieces:
            if isinstance(piece, bytes):
                await response.write(piece)
            else:
                await asyncio.sleep(piece)
        return response

    def _told(self, path: str) -> web.Response:
        if path in self.metrics:
            return web.Response(text=self.metrics[path])
        if path == "/health":
            return web.Response(text="ok")
        if path == "/v1/models" and self.listed is not None:
            return web.json_response({"object": "list", "data": [{"id": name} for name in self.listed]})
        return web.json_response({"detail": "Not Found"}, status=404)


class Cases(EngineServing):
    """Such engines behind the real picker and a real Envoy, ejections as long as they are by default."""

    def __init__(self, folder: Path, engines: Sequence[CaseEngine]) -> None:
        super().__init__(folder, engines, probe={"interval_s": 0.1, "timeout_s": 2.0})

    async def post(self, body: dict[str, Any], path: str = "/v1/chat/completions") -> tuple[int, str]:
        """One request through Envoy; status and text."""
        async with self.http.post(self.url + path, data=json.dumps(body).encode(), headers=JSON) as answer:
            return answer.status, await answer.text()

    async def each(
        self, count: int, at_once: int, ask: Callable[[int], Awaitable[tuple[int, str]]]
    ) -> list[tuple[int, str]]:
        """Ask so many times, so many at once; the answers, in the order in which they were asked for."""
        gate = asyncio.Semaphore(at_once)

        async def one(number: int) -> tuple[int, str]:
            async with gate:
                return await ask(number)

        return await asyncio.gather(*map(one, range(count)))


JSON = {"content-type": "application/json"}
