"""The health service: llm-d's and Envoy's names, on the ext_proc port and on the port for health served."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from epp.request.ext_proc import EXT_PROC
from epp.server.health import LIVENESS, READINESS, HealthState, health_service
from tests.kit.rawpeer import Serving
from tests.kit.transports import BOTH, listener
from tests.kit.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


class Listener:
    """The service on a port of its own, for health alone but where a test says otherwise, and a client."""

    def __init__(self, state: HealthState, channel: grpc.aio.Channel) -> None:
        self.state, self.stub = state, health_pb2_grpc.HealthStub(channel)

    async def check(self, name: str) -> int:
        answer = await self.stub.Check(health_pb2.HealthCheckRequest(service=name))
        status: int = answer.status
        return status


BESIDE_EXT_PROC = pytest.mark.parametrize("any_name", [False])


@pytest.fixture(params=BOTH)
async def served(request: pytest.FixtureRequest, any_name: bool) -> AsyncIterator[Listener]:
    state = HealthState()
    server = listener(request.param, health_service(state, any_name=any_name))
    async with grpc.aio.insecure_channel(await server.start("127.0.0.1:0")) as channel:
        yield Listener(state, channel)
    await server.stop(0)


@pytest.fixture
def any_name() -> bool:
    return True


@pytest.mark.parametrize("name", ["", "inference-extension", "readiness", EXT_PROC, "anything"])
async def test_names_of_readiness_follow_the_state(served: Listener, name: str) -> None:
    assert await served.check(name) == NOT_SERVING
    served.state.update(serving=True)
    assert await served.check(name) == SERVING
    assert await served.check(LIVENESS) == SERVING


@BESIDE_EXT_PROC
async def test_beside_ext_proc_an_unknown_name_is_unknown(served: Listener) -> None:
    assert await served.check(EXT_PROC) == NOT_SERVING
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await served.check("anything")
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_list_tells_all_known_names(served: Listener) -> None:
    served.state.update(serving=True)
    answer = await served.stub.List(health_pb2.HealthListRequest())
    assert {name: status.status for name, status in answer.statuses.items()} == dict.fromkeys(
        (*READINESS, LIVENESS), SERVING
    )


async def test_watchers_are_told_of_every_change(served: Listener) -> None:
    call = served.stub.Watch(health_pb2.HealthCheckRequest(service="inference-extension"))
    seen = [(await call.read()).status]
    for serving in (True, False):
        served.state.update(serving=serving)
        seen.append((await call.read()).status)
    call.cancel()
    assert seen == [NOT_SERVING, SERVING, NOT_SERVING]


@BESIDE_EXT_PROC
async def test_a_watcher_of_an_unknown_name_waits_and_their_number_is_bounded(
    served: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("epp.server.health.MAX_WATCHES", 1)
    call = served.stub.Watch(health_pb2.HealthCheckRequest(service="anything"))
    assert (await call.read()).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
    further = served.stub.Watch(health_pb2.HealthCheckRequest())
    assert await further.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    call.cancel()
    await until(lambda: not served.state.watches)


@pytest.mark.parametrize("transport", BOTH)
async def test_a_watcher_does_not_hold_up_a_stop(tmp_path: Path, transport: str) -> None:
    serving = await Serving.start(tmp_path, listen={"transport": transport})
    async with grpc.aio.insecure_channel(serving.address) as channel:
        call = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert (await call.read()).status == NOT_SERVING
        async with asyncio.timeout(240):
            await serving.app._grpc.stop(grace_s=1000.0)
        assert await call.code() is grpc.StatusCode.UNAVAILABLE
