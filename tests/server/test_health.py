"""The health service: llm-d's and Envoy's names, on the ext_proc port and on the port for health alone."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from epp.server.health import EXT_PROC, LIVENESS, READINESS, HealthState, health_service
from tests.kit.rawpeer import Serving
from tests.kit.transports import BOTH, listener
from tests.kit.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


class Listener:
    """The service on a port of its own, and a client."""

    def __init__(self, transport: str, *, any_name: bool) -> None:
        self.state = HealthState()
        self._server = listener(transport, health_service(self.state, any_name=any_name))

    async def check(self, name: str) -> int:
        answer = await self.stub.Check(health_pb2.HealthCheckRequest(service=name))
        status: int = answer.status
        return status

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Listener]:
        async with grpc.aio.insecure_channel(await self._server.start("127.0.0.1:0")) as channel:
            self.stub = health_pb2_grpc.HealthStub(channel)
            yield self
        await self._server.stop(0)


@pytest.fixture(params=BOTH)
async def alone(request: pytest.FixtureRequest) -> AsyncIterator[Listener]:
    async with Listener(request.param, any_name=True).open() as served:
        yield served


@pytest.fixture(params=BOTH)
async def shared(request: pytest.FixtureRequest) -> AsyncIterator[Listener]:
    async with Listener(request.param, any_name=False).open() as served:
        yield served


@pytest.mark.parametrize("name", ["", "inference-extension", "readiness", EXT_PROC, "anything"])
async def test_names_of_readiness_follow_the_state(alone: Listener, name: str) -> None:
    assert await alone.check(name) == NOT_SERVING
    alone.state.update(serving=True)
    assert await alone.check(name) == SERVING
    assert await alone.check(LIVENESS) == SERVING


async def test_beside_ext_proc_an_unknown_name_is_unknown(shared: Listener) -> None:
    assert await shared.check(EXT_PROC) == NOT_SERVING
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await shared.check("anything")
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_list_tells_all_known_names(alone: Listener) -> None:
    alone.state.update(serving=True)
    answer = await alone.stub.List(health_pb2.HealthListRequest())
    assert {name: status.status for name, status in answer.statuses.items()} == dict.fromkeys(
        (*READINESS, LIVENESS), SERVING
    )


async def test_watchers_are_told_of_every_change(alone: Listener) -> None:
    call = alone.stub.Watch(health_pb2.HealthCheckRequest(service="inference-extension"))
    seen = [(await call.read()).status]
    for serving in (True, False):
        alone.state.update(serving=serving)
        seen.append((await call.read()).status)
    call.cancel()
    assert seen == [NOT_SERVING, SERVING, NOT_SERVING]


async def test_a_watcher_of_an_unknown_name_waits_and_their_number_is_bounded(
    shared: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("epp.server.health.MAX_WATCHES", 1)
    call = shared.stub.Watch(health_pb2.HealthCheckRequest(service="anything"))
    assert (await call.read()).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
    further = shared.stub.Watch(health_pb2.HealthCheckRequest())
    assert await further.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    call.cancel()
    await until(lambda: not shared.state.watches)


@pytest.mark.parametrize("transport", BOTH)
async def test_a_watcher_does_not_hold_up_a_stop(tmp_path: Path, transport: str) -> None:
    serving = await Serving.start(tmp_path, listen={"transport": transport})
    async with grpc.aio.insecure_channel(serving.address) as channel:
        call = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert (await call.read()).status == NOT_SERVING
        async with asyncio.timeout(30):
            await serving.app._grpc.stop(grace_s=1000.0)
        assert await call.code() is grpc.StatusCode.UNAVAILABLE
