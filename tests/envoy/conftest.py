"""One picker, three replicas and an Envoy per variant, shared by a file's tests: starting Envoy costs a second."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest_asyncio

from epp.envoy.process import EnvoyProcess
from epp.envoy.settings import EnvoySettings, Variant
from tests.kit.envoy import Replica, require_envoy, settings
from tests.kit.extproc_server import ExtProcServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import pytest


@dataclass
class Answer:
    status: int
    served: str
    body_bytes: int


async def ask(url: str, *, body: Any = b"{}", headers: dict[str, str] | None = None) -> Answer:
    """One request; `served` is the replica's own address, empty when none answered."""
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=240)) as session,
        session.post(f"{url}/v1/chat/completions", data=body, headers=headers) as response,
    ):
        body = await response.read()
        reply = json.loads(body) if response.content_type == "application/json" else {}
        return Answer(response.status, reply.get("served", ""), reply.get("body_bytes", 0))


@dataclass
class Rig:
    """What a test plays with."""

    picker: ExtProcServer
    replicas: list[Replica]
    envoy: EnvoyProcess
    settings: EnvoySettings

    async def ask(self, *, body: Any = b"{}", headers: dict[str, str] | None = None) -> Answer:
        return await ask(self.envoy.listener_url, body=body, headers=headers)

    @property
    def addresses(self) -> list[str]:
        return [replica.address for replica in self.replicas]


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=list(Variant))
async def rig(request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    require_envoy()
    async with AsyncExitStack() as stack:
        replicas = [await stack.enter_async_context(Replica()) for _ in range(3)]
        picker = await stack.enter_async_context(ExtProcServer())
        # A single health check that is answered late lets requests go on without the picker.
        chosen = settings(
            [replica.endpoint for replica in replicas],
            picker.port,
            variant=request.param,
            picker_keepalive_s=5.0,
        )
        envoy = await stack.enter_async_context(EnvoyProcess(chosen))
        yield Rig(picker, replicas, envoy, chosen)
