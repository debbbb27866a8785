"""Tools for tests with a real Envoy: whether there is one, tiny replicas and scripted ones, free settings."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import pytest
from aiohttp import web

from epp.envoy.process import EnvoyError, find_envoy, version_of
from epp.envoy.settings import EnvoySettings
from epp.types import Endpoint
from tests.kit.ports import free_ports

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path


def require_envoy() -> None:
    """Skip the calling test without an Envoy binary, saying so; on CI that is a failure."""
    try:
        find_envoy()
    except EnvoyError as error:
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(str(error))


async def require_version(major: int, minor: int, feature: str) -> None:
    """Skip the calling test where the Envoy at hand is older than a feature; docs/envoy-versions.md."""
    require_envoy()
    if await version_of(find_envoy()) < (major, minor):
        pytest.skip(f"{feature} needs Envoy {major}.{minor}")


async def accepted(config: Path) -> None:
    """Ask the Envoy at hand whether it takes a configuration; the calling test fails if not."""
    done = await asyncio.to_thread(
        subprocess.run,
        [str(find_envoy()), "--mode", "validate", "-c", str(config)],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr


@dataclass
class Replica:
    """An HTTP server that answers with its own name and counts.

    Attributes:
        host: address to listen on.
        tls: certificate, plaintext when None.
        port: where it listens, once started; set it before to listen there again.
        requests: paths asked for, in order.
        body_bytes: length of each request's body.
        headers: headers of each request.
    """

    host: str = "127.0.0.1"
    tls: ssl.SSLContext | None = None
    port: int = 0
    requests: list[str] = field(default_factory=list)
    body_bytes: list[int] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    _runner: web.AppRunner | None = None

    @property
    def address(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(self.address, tls=self.tls is not None)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self.host, self.port or free_ports(), ssl_context=self.tls)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.requests.append(request.path)
        self.body_bytes.append(len(body))
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        return web.json_response({"served": self.address, "body_bytes": len(body)})


def settings(endpoints: Sequence[Endpoint], picker_port: int, **changes: Any) -> EnvoySettings:
    """Settings with ports that the system chooses, and patience: the kit's picker answers from the test's event loop."""
    values: dict[str, Any] = {"listener_port": 0, "admin_port": 0, "message_timeout_ms": 10_000, **changes}
    return EnvoySettings(endpoints=tuple(endpoints), picker_port=picker_port, **values)


@dataclass
class ScriptedUpstream:
    """A raw HTTP/1.1 server that plays a test's script: what bytes go out, and when the connection dies.

    Attributes:
        script: called for every request with its head and the writer, which it may close or abort.
        port: where it listens, once started.
        heads: heads of the requests, in order.
    """

    script: Callable[[str, asyncio.StreamWriter], Awaitable[None]]
    port: int = 0
    heads: list[str] = field(default_factory=list)
    _server: asyncio.Server | None = None
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(f"127.0.0.1:{self.port}")

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while not writer.is_closing():
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = re.search(r"content-length: (\d+)", head, re.IGNORECASE)
                await reader.readexactly(int(length.group(1)) if length else 0)
                self.heads.append(head)
                await self.script(head, writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._writers.discard(writer)
            writer.transport.abort()
