"""`epp serve` called as llm-d's charts call their picker: a cluster, TLS, health, logs, and Envoy in front."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import aiohttp
import pytest

from epp.envoy.process import EnvoyProcess
from epp.envoy.settings import EnvoySettings, TlsFiles, Variant
from epp.types import Endpoint
from epp_lab.sim.http import SimReplica
from tests.kit import kubeobjects as objects
from tests.kit.envoy import require_envoy
from tests.kit.kubefollow import kubeconfig
from tests.kit.kubeserver import KubeServer
from tests.kit.llmd import loopback, picker_by_flags
from tests.kit.replicas import CHAT, chat_body, quick_config

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


async def certificate(folder: Path, address: str) -> Path:
    """What the picker presents, as a gateway that verified nothing would see it."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    host, _, port = loopback(address).rpartition(":")
    _, writer = await asyncio.open_connection(host, int(port), ssl=context)
    tls = writer.get_extra_info("ssl_object")
    assert tls.selected_alpn_protocol() == "h2"
    path = folder / "picker.pem"
    path.write_text(ssl.DER_cert_to_PEM_cert(tls.getpeercert(binary_form=True)))
    writer.close()
    return path


@pytest.fixture
async def serving(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[str, dict[str, str]]]:
    """A cluster with one ready pod, and the picker that follows it: the pod's address, and the picker's."""
    async with AsyncExitStack() as stack:
        replica = await stack.enter_async_context(SimReplica(quick_config("a")))
        port = int(replica.address.rpartition(":")[2])
        server = KubeServer()
        # What llm-d's own Role grants, and no more.
        old = {f"{name}.{objects.OLD_GROUP}" for name in ("inferenceobjectives", "inferencemodelrewrites")}
        server.denied = {"nodes", "endpointslices", *old}
        await server.start()
        stack.push_async_callback(server.stop)
        client = objects.KubeClient(server.url, "")
        stack.push_async_callback(client.close)
        await client.create(objects.POOL_CRD)
        await client.create(objects.pool("vllm", ports=(port,)))
        await client.run_pod(objects.pod("engine-0", ports=(port,)), "127.0.0.1")
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path / "kubeconfig", server.url)))
        words = [
            "--pool-name", "vllm", "--pool-group", objects.GROUP, "--zap-encoder", "json", "--drain-timeout", "2s"
        ]  # fmt: skip
        addresses = await stack.enter_async_context(picker_by_flags(tmp_path, objects.PLUGINS, *words))
        yield replica.address, addresses


async def test_a_chart_s_command_line_serves_through_envoy_in_full_duplex(
    serving: tuple[str, dict[str, str]], tmp_path: Path
) -> None:
    """Protocol 004 end to end: pool, pick, TLS without files, full duplex both ways."""
    require_envoy()
    replica, addresses = serving
    settings = EnvoySettings(
        endpoints=(Endpoint(replica),),
        variant=Variant.FULL_DUPLEX,
        listener_port=0,
        admin_port=0,
        picker_port=int(addresses["grpc"].rpartition(":")[2]),
        picker_tls=TlsFiles(
            ca_file=str(await certificate(tmp_path, addresses["grpc"])), server_name="localhost"
        ),
    )
    async with (
        EnvoyProcess(settings, folder=tmp_path / "envoy") as envoy,
        aiohttp.ClientSession() as http,
    ):
        for _ in range(3):
            async with http.post(envoy.listener_url + CHAT, json=chat_body("hello")) as answer:
                assert answer.status == 200, await answer.text()
        async with http.get(f"http://{loopback(addresses['http'])}/decisions/last") as answer:
            decision = await answer.json()
    assert decision["policy"] == "llm-d"
    assert decision["weights"] == {"queue_weight": 2.0, "kv_weight": 2.0, "prefix_weight": 3.0}
    assert decision["endpoints"] == [replica]
