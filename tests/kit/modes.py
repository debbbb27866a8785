"""Two upstreams, a real picker and a real Envoy whose ext_proc filter speaks as a test says."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

import aiohttp
from aiohttp import web

from epp.config.pool import EndpointSpec, dump_pool
from epp.envoy import filters, listener
from epp.envoy import messages as api
from epp.envoy.process import EnvoyProcess
from epp.envoy.settings import EnvoySettings, Variant
from epp.extproc.modes import BodyMode
from tests.kit.picker import PickerProcess

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping
    from pathlib import Path

    import pytest

__all__ = ["Speech", "TwoEngines", "speaking"]


@dataclass(frozen=True)
class Speech:
    """How Envoy speaks ext_proc.

    Attributes:
        request: request body mode.
        response: response body mode; headers and trailers are shown where bodies are.
        fields: of the filter's configuration.
        buffer_bytes: Envoy's buffer limit, None for as configured.
        retouch: changes the filter's configuration further.
    """

    request: BodyMode = BodyMode.BUFFERED
    response: BodyMode = BodyMode.NONE
    fields: Mapping[str, Any] = field(default_factory=dict)
    buffer_bytes: int | None = None
    retouch: Callable[[Any, EnvoySettings], None] | None = None

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
        if self.retouch is not None:
            self.retouch(processor, settings)
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
    monkeypatch.setattr("epp.envoy.render.listener", speech.listener)
    if speech.buffer_bytes is not None:
        # The route's limit, made for whole bodies, would go before the listener's.
        route = api.route.Route

        def without_limit(**values: Any) -> Any:
            values.pop("request_body_buffer_limit", None)
            return route(**values)

        monkeypatch.setattr(api.route, "Route", without_limit)


@dataclass
class Got:
    """A request as an upstream got it."""

    upstream: str
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class TwoEngines:
    """Two upstreams that tell who they are, the picker, Envoy.

    Args:
        folder: holds everything on disk.
        envoy: fields of the Envoy settings.
        config: sections of the picker's configuration.
    """

    def __init__(self, folder: Path, *, envoy: Mapping[str, Any] | None = None, **config: Any) -> None:
        self.folder, self._changes = folder, envoy or {}
        #: The upstreams' addresses, once they are there.
        self.addresses: list[str] = []
        self.models: list[dict[str, str]] = [{}, {}]
        self.got: list[Got] = []
        #: Set when the first piece of a body is upstream.
        self.begun = asyncio.Event()
        settings = {"scrape": {"interval_s": 0}, "probe": {"interval_s": 0}, "records": {}, **config}
        self.picker = PickerProcess(folder, **settings)
        self._exit = AsyncExitStack()

    async def __aenter__(self) -> Self:
        try:
            self.addresses = [await self._exit.enter_async_context(self._upstream()) for _ in range(2)]
            specs = [
                EndpointSpec(address=address, models=models)
                for address, models in zip(self.addresses, self.models, strict=True)
            ]
            self.folder.mkdir(exist_ok=True)
            (self.folder / "endpoints.yaml").write_bytes(dump_pool(specs))
            self._exit.push_async_callback(self.picker.stop)
            await self.picker.start()
            host, _, port = self.picker.grpc.rpartition(":")
            settings = EnvoySettings(
                endpoints=tuple(spec.endpoint() for spec in specs),
                listener_port=0,
                admin_port=0,
                picker_host=host,
                picker_port=int(port),
                message_timeout_ms=5000,
                variant=Variant.STANDALONE,
                first_token_port=0,
            )
            envoy = EnvoyProcess(replace(settings, **self._changes), folder=self.folder / "envoy")
            self.envoy = await self._exit.enter_async_context(envoy)
            self.url = self.envoy.listener_url
            self.http = await self._exit.enter_async_context(
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20))
            )
        except BaseException:
            await self._exit.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._exit.aclose()

    @asynccontextmanager
    async def _upstream(self) -> AsyncIterator[str]:
        async def answer(request: web.Request) -> web.StreamResponse:
            if request.headers.get("upgrade", "").lower() == "websocket":
                return await self._talk(request, address)
            body = bytearray()
            async for piece in request.content.iter_any():
                self.begun.set()
                body += piece
            headers = {name.lower(): value for name, value in request.headers.items()}
            self.got.append(Got(address, request.method, request.path, headers, bytes(body)))
            told = {"id": "c", "served": address, "bytes": len(body)}
            if body.startswith(b"{"):
                told["model"] = json.loads(body).get("model")
            return web.json_response(told)

        app = web.Application(client_max_size=1 << 30)
        app.router.add_route("*", "/{path:.*}", answer)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        address = f"127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield address
        finally:
            await runner.cleanup()

    async def _talk(self, request: web.Request, address: str) -> web.StreamResponse:
        """A WebSocket that says who it is, then echoes."""
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.send_str(address)
        async for message in socket:
            if message.type is aiohttp.WSMsgType.BINARY:
                await socket.send_bytes(message.data)
            else:
                await socket.send_str(message.data)
        return socket

    async def picked(self) -> str:
        """The endpoint of the newest decision."""
        async with self.http.get(f"http://{self.picker.http}/decisions/last") as answer:
            decision = await answer.json()
        endpoint: str = decision["endpoints"][decision["chosen"]]
        return endpoint

    async def seen(self) -> dict[str, int]:
        """How many bodies were seen how."""
        kinds = ("whole", "none", "unread", "cut")
        counts = dict.fromkeys(kinds, 0)
        for kind in kinds:
            for mode in ("normal", "observability"):
                labels = {"seen": kind, "mode": mode}
                counts[kind] += int(await self.picker.metric("epp_request_bodies_total", **labels))
        return {kind: count for kind, count in counts.items() if count}
