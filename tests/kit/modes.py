"""Two upstreams, a real picker and a real Envoy whose ext_proc filter speaks as a test says."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import aiohttp
from aiohttp import web

from epp.envoy import filters, listener
from epp.envoy import messages as api
from epp.extproc.modes import BodyMode
from epp.ops.doctor.context import Page
from tests.kit.engines import Engine, EngineServing

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import pytest

    from epp.envoy.settings import EnvoySettings
    from tests.kit.engines import Asked


@dataclass(frozen=True)
class Speech:
    """How Envoy speaks ext_proc.

    Attributes:
        request: request body mode.
        response: response body mode; headers and trailers are shown where bodies are.
        fields: of the filter's configuration.
        buffer_bytes: Envoy's buffer limit, None for as configured.
    """

    request: BodyMode = BodyMode.BUFFERED
    response: BodyMode = BodyMode.NONE
    fields: Mapping[str, Any] = field(default_factory=dict)
    buffer_bytes: int | None = None

    def external_processor(self, settings: EnvoySettings) -> Any:
        header, body = api.ext_proc.ProcessingModeHeaderSendMode, api.ext_proc.ProcessingModeBodySendMode
        shown = header.SKIP if self.response is BodyMode.NONE else header.SEND
        processor = _PLAIN(settings)
        processor.processing_mode = api.ext_proc.ProcessingMode(
            request_header_mode=header.SEND,
            request_body_mode=body(int(self.request)),
            request_trailer_mode=header.SEND,
            response_header_mode=shown,
            response_body_mode=body(int(self.response)),
            response_trailer_mode=shown,
        )
        for name, value in self.fields.items():
            setattr(processor, name, value)
        return processor

    def listener(self, *arguments: Any) -> Any:
        made = _LISTENER(*arguments)
        if self.buffer_bytes is not None:
            made.per_connection_buffer_limit_bytes = self.buffer_bytes
        return made


_PLAIN, _LISTENER = filters.external_processor, listener.listener


def speaking(monkeypatch: pytest.MonkeyPatch, speech: Speech) -> None:
    """Make the Envoys of this test speak so."""
    monkeypatch.setattr(filters, "external_processor", speech.external_processor)
    monkeypatch.setattr("epp.envoy.bootstrap.listener", speech.listener)
    monkeypatch.setattr("epp.envoy.render.prepared", lambda _: None)
    if speech.buffer_bytes is not None:
        # The route's limit, made for whole bodies, would go before the listener's.
        route = api.route.Route

        def without_limit(**values: Any) -> Any:
            values.pop("request_body_buffer_limit", None)
            return route(**values)

        monkeypatch.setattr(api.route, "Route", without_limit)


class Echo(Engine):
    """An upstream that tells who it is, in an answer as long as `x-pad` says, and of a WebSocket says all again."""

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Answer a request."""
        if request.headers.get("upgrade", "").lower() == "websocket":
            return await self._talk(request)
        got = await self.heard(request)
        told = {"id": "c", "served": self.address, "bytes": len(got.body)}
        if got.body.startswith(b"{"):
            told["model"] = got.fields.get("model")
        if pad := got.headers.get("x-pad"):
            told["pad"] = "x" * int(pad)
        return web.json_response(told)

    async def _talk(self, request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.send_str(self.address)
        async for message in socket:
            if message.type is aiohttp.WSMsgType.BINARY:
                await socket.send_bytes(message.data)
            else:
                await socket.send_str(message.data)
        return socket


class TwoEngines(EngineServing):
    """Two upstreams that tell who they are, never probed, the picker, Envoy.

    Args:
        folder: holds everything on disk.
        options: see `Serving`.
    """

    def __init__(self, folder: Path, **options: Any) -> None:
        #: Requests as the upstreams got them, in order.
        self.got: list[Asked] = []
        #: Set when the first piece of a body is upstream.
        self.begun = asyncio.Event()
        engines = [Echo(asked=self.got, begun=self.begun) for _ in range(2)]
        # Records would have every body read.
        quiet = {"scrape": {"interval_s": 0}, "probe": {"interval_s": 0}, "records": {}}
        super().__init__(folder, engines, **(quiet | options))

    @property
    def addresses(self) -> list[str]:
        """The upstreams' addresses."""
        return [engine.address for engine in self.engines]

    async def picked(self) -> str:
        """The endpoint of the newest decision."""
        async with self.http.get(f"http://{self.picker.http}/decisions/newest") as answer:
            decision = await answer.json()
        endpoint: str = decision["endpoints"][decision["chosen"]]
        return endpoint

    async def seen(self) -> dict[str, int]:
        """How many bodies were seen how."""
        counts = Page(await self.picker.metrics()).by("epp_request_bodies_total", "seen")
        return {kind: int(count) for kind, count in counts.items() if count}
