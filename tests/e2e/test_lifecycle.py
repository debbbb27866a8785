"""Starting, draining, stopping: the picker as a process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from epp.errors import EppError
from epp.rpc.accepting import listening_sockets
from tests.kit.picker import CONFIG, PickerProcess, Serving
from tests.kit.replicas import quick_config
from tests.kit.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


async def health(address: str, service: str = "") -> int:
    async with grpc.aio.insecure_channel(address) as channel:
        request = health_pb2.HealthCheckRequest(service=service)
        status: int = (await health_pb2_grpc.HealthStub(channel).Check(request)).status
    return status


async def test_health_follows_the_pool_and_liveness_does_not(tmp_path: Path) -> None:
    async with Serving(tmp_path, replicas=[quick_config("a")]) as serving:
        names = ("", "envoy.service.ext_proc.v3.ExternalProcessor")
        assert [await health(serving.picker.grpc, name) for name in names] == [SERVING, SERVING]
        (tmp_path / "endpoints.yaml").write_text("endpoints: []")

        async def refused() -> bool:
            return await health(serving.picker.grpc) == int(NOT_SERVING)

        await until(refused)
        assert await health(serving.picker.grpc, "liveness") == SERVING


@pytest.mark.parametrize("key", ["grpc", "http", "first_token", "health"])
async def test_a_port_that_is_taken_is_told_by_file_and_key(tmp_path: Path, key: str) -> None:
    with listening_sockets("127.0.0.1:0")[0] as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        (tmp_path / "endpoints.yaml").write_text("endpoints: []")
        second = PickerProcess(tmp_path, listen={**CONFIG["listen"], key: address})
        with pytest.raises(EppError, match="is another picker running") as caught:
            await second.start()
    # The place of the key in the file stands between.
    said = str(caught.value).partition(f"{tmp_path / 'epp.yaml'}: ")[2].splitlines()[0]
    assert f"listen.{key}: cannot listen on {address}: " in said
