"""Engines that say what a test tells them to, behind the real picker and a real Envoy."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from aiohttp import web

from epp.config.pool import EndpointSpec
from tests.kit.picker import CONFIG, Serving
from tests.kit.ports import free_ports

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path


@dataclass
class Asked:
    """A request as an engine got it."""

    upstream: str
    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = json.loads(self.body)
        return fields


@dataclass
class Answered:
    """What an engine answers: pieces go out one by one, each in a packet of its own."""

    pieces: Sequence[bytes]
    content_type: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)
    chunked: bool = False
    status: int = 200


@dataclass
class Engine:
    """An HTTP server with one answer for every request that is no probe; entered again, at the same port.

    Attributes:
        models: its endpoint's ``models``.
        adapters: its endpoint's ``adapters``.
        listed: names of its ``/v1/models``, None where it has no such page; set these at any time.
        lists: how often it was asked for them.
        answer: from a request to the answer.
        asked: requests, in order.
        begun: set when the first piece of a body is here.
    """

    models: dict[str, str] | list[str] = field(default_factory=list)
    adapters: dict[str, str] | list[str] = field(default_factory=list)
    answer: Callable[[Asked], Answered] = lambda _: Answered([b"{}"])
    listed: list[str] | None = None
    lists: int = 0
    asked: list[Asked] = field(default_factory=list)
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    address: str = ""

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_route("*", "/{path:.*}", self.serve)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        port = int(self.address.partition(":")[2] or free_ports())
        await web.TCPSite(self._runner, "127.0.0.1", port).start()
        self.address = f"127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def heard(self, request: web.Request) -> Asked:
        """Note a request."""
        body = bytearray()
        async for piece in request.content.iter_any():
            self.begun.set()
            body += piece
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.asked.append(Asked(self.address, request.method, request.path, headers, bytes(body)))
        return self.asked[-1]

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Answer a request."""
        if request.path == "/v1/models" and self.listed is not None:
            self.lists += 1
            return web.json_response({"object": "list", "data": [{"id": name} for name in self.listed]})
        if request.method != "POST":
            return web.Response(text="ok")
        told = self.answer(await self.heard(request))
        response = web.StreamResponse(
            status=told.status, headers={"content-type": told.content_type, **told.headers}
        )
        if told.chunked:
            response.enable_chunked_encoding()
        else:
            response.content_length = sum(len(piece) for piece in told.pieces)
        await response.prepare(request)
        for piece in told.pieces:
            await response.write(piece)
            if len(told.pieces) > 1:
                await asyncio.sleep(0.002)  # so that Envoy reads it by itself
        return response


class EngineServing(Serving):
    """`Serving` with engines of a test's own in the place of simulated replicas."""

    def __init__(self, folder: Path, engines: Sequence[Engine], **options: Any) -> None:
        # They answer from the test's own event loop, and on a loaded machine making Envoy's configuration holds
        # that up for longer than probes wait: who is ejected then depends on when they are back.
        probe = {**CONFIG["probe"], "timeout_s": 30.0}
        super().__init__(folder, upstreams=engines, **{"probe": probe, **options})
        self.engines = list(engines)

    def specs(self) -> list[EndpointSpec]:
        """The pool, each endpoint with its engine's models."""
        return [
            EndpointSpec(address=engine.address, models=engine.models, adapters=engine.adapters)
            for engine in self.engines
        ]
