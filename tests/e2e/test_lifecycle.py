"""Starting, draining, stopping: the picker as a process."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from epp.envoy.settings import TlsFiles, Variant
from epp.errors import ConfigError, EppError
from epp.server.sockets import listening_sockets, located
from tests.kit.certificates import self_signed
from tests.kit.picker import CONFIG, PickerProcess, Serving
from tests.kit.replicas import QUICK, quick_config

if TYPE_CHECKING:
    from pathlib import Path

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


async def health(address: str, service: str = "") -> int:
    async with grpc.aio.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        answer = await stub.Check(health_pb2.HealthCheckRequest(service=service))
    status: int = answer.status
    return status


async def test_health_follows_the_pool_and_liveness_does_not(tmp_path: Path) -> None:
    async with Serving(tmp_path, replicas=[quick_config("a")]) as serving:
        names = ("", "envoy.service.ext_proc.v3.ExternalProcessor")
        assert [await health(serving.picker.grpc, name) for name in names] == [SERVING, SERVING]
        (tmp_path / "endpoints.yaml").write_text("endpoints: []")
        async with asyncio.timeout(10):
            while await health(serving.picker.grpc) != NOT_SERVING:
                await asyncio.sleep(0.05)
        assert await health(serving.picker.grpc, "liveness") == SERVING


@pytest.mark.parametrize("variant", [Variant.STANDALONE, Variant.FULL_DUPLEX])
async def test_a_drain_lets_answers_in_flight_finish(tmp_path: Path, variant: Variant) -> None:
    slow = quick_config("a", engine_class=replace(QUICK, decode_curve=((1, 30.0),)), answer_tokens=60)
    async with Serving(tmp_path, replicas=[slow], variant=variant, drain_s=20) as serving:
        async with serving.answering(max_tokens=50) as answer:
            os.kill(serving.picker.pid, signal.SIGTERM)
            assert (await answer.read()).rstrip().endswith(b"data: [DONE]")
        await serving.picker.ended()
        assert "Traceback" not in serving.picker.log()
        async with asyncio.timeout(20):  # full duplex falls back once the health check has noticed
            while (await serving.chat("after"))[0] != 200:
                await asyncio.sleep(0.1)


async def test_the_grpc_side_speaks_tls_when_configured(tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("makes its certificate with openssl, which is not installed")
    cert, key = self_signed(tmp_path / "cert.pem", tmp_path / "key.pem", "picker")
    listen = {**CONFIG["listen"], "tls": {"cert_file": str(cert), "key_file": str(key)}}
    envoy = {"picker_tls": TlsFiles(ca_file=str(cert))}
    async with Serving(tmp_path, replicas=[quick_config("a")], envoy=envoy, listen=listen) as serving:
        assert (await serving.chat())[0] == 200
        assert await serving.picker.metric("epp_decisions_total", policy="gorgo-ms") == 1
        with pytest.raises(grpc.aio.AioRpcError):
            await health(serving.picker.grpc)


@pytest.mark.parametrize("key", ["grpc", "http", "first_token", "health"])
async def test_a_port_that_is_taken_is_told_by_file_and_key(tmp_path: Path, key: str) -> None:
    with listening_sockets("127.0.0.1:0")[0] as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        (tmp_path / "endpoints.yaml").write_text("endpoints: []")
        second = PickerProcess(tmp_path, listen={**CONFIG["listen"], key: address})
        with pytest.raises(EppError, match="is another picker running") as caught:
            await second.start()
    assert f"{tmp_path / 'epp.yaml'}: listen.{key}: cannot listen on {address}: " in str(caught.value)


def test_an_address_of_another_machine_has_its_own_advice() -> None:
    with pytest.raises(ConfigError) as caught, located("epp.yaml", "listen.grpc", "192.0.2.1:9002"):
        listening_sockets("192.0.2.1:9002")
    assert str(caught.value) == (
        "epp.yaml: listen.grpc: cannot listen on 192.0.2.1:9002: Cannot assign requested address"
        " (no address of this machine; 0.0.0.0 or [::] listens on all that it has)"
    )


def test_a_ready_file_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "epp.yaml").write_text(json.dumps(CONFIG))
    ready = tmp_path / "absent" / "ready.json"
    command = [sys.executable, "-m", "epp", "serve", "--config", str(tmp_path / "epp.yaml")]
    result = subprocess.run(
        [*command, "--ready-file", str(ready)], capture_output=True, text=True, check=False, timeout=30
    )
    assert result.returncode == 2
    assert f"epp: command line: --ready-file: {ready} cannot be written" in result.stderr
    assert "Traceback" not in result.stderr
