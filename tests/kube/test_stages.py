"""llm-d's guide for prefill and decode, migrated, answers through a real Envoy, on each API server at hand."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import aiohttp
import yaml

from epp.envoy.process import EnvoyProcess
from epp.envoy.settings import EnvoySettings, Variant
from epp.kube.reconcile import ACTIVE_PORTS
from epp.llmd.migrate import migrate
from epp.types import Endpoint
from tests.kit import kubeobjects as objects
from tests.kit.envoy import require_envoy
from tests.kit.kubefollow import PATIENCE_S, kubeconfig
from tests.kit.kubereal import PICKER
from tests.kit.llmd import PARTED, loopback, picker_by_flags
from tests.kit.replicas import CHAT, chat_body
from tests.kit.sidecar import PREFILLER, Decoder, Worker, decoded, prefilled

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from tests.kit.kubecluster import Cluster


async def test_the_guide_s_values_send_every_prompt_to_a_prefill_worker_first(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_envoy()
    ours, _, _ = migrate({"guide.yaml": PARTED})
    match = ours["endpoints"]["matchLabels"]
    worker, decoder = Worker(role="prefill", answer=prefilled), Decoder(answer=decoded)
    decoder.open.set()
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(each) for each in (worker, decoder)]
        ports = tuple(int(each.address.rpartition(":")[2]) for each in engines)
        await cluster.install(objects.POOL_CRD, objects.OBJECTIVE_CRD, objects.REWRITE_CRD)
        await cluster.client.create(objects.pool(match=match, ports=ports))
        for each, port in zip(engines, ports, strict=True):
            pod = objects.pod(
                each.role,
                labels={**match, "llm-d.ai/role": each.role},
                annotations={ACTIVE_PORTS[0]: str(port)},
                ports=ports,
            )
            await cluster.client.run_pod(pod, "127.0.0.1")
        url = f"{'https' if cluster.real else 'http'}://127.0.0.1:{cluster.server.port}"
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path / "kubeconfig", url, token=PICKER)))
        plugins = yaml.safe_dump(ours["endpointPickerConfig"])
        picker = picker_by_flags(tmp_path, plugins, "--pool-name", "pool", "--secure-serving=false")
        addresses = await stack.enter_async_context(picker)
        settings = EnvoySettings(
            endpoints=(Endpoint(decoder.address),),
            variant=Variant.FULL_DUPLEX,
            listener_port=0,
            admin_port=0,
            picker_port=int(addresses["grpc"].rpartition(":")[2]),
        )
        envoy = await stack.enter_async_context(EnvoyProcess(settings, folder=tmp_path / "envoy"))
        http = await stack.enter_async_context(aiohttp.ClientSession())
        async with asyncio.timeout(PATIENCE_S):
            while not worker.asked:  # until the picker knows both
                async with http.post(envoy.listener_url + CHAT, json=chat_body("hello")) as answer:
                    await answer.read()
                await asyncio.sleep(0.02)
        before = len(worker.asked)
        for number in range(4):
            async with http.post(envoy.listener_url + CHAT, json=chat_body(f"{number}")) as answer:
                assert answer.status == 200, await answer.text()
        async with http.get(f"http://{loopback(addresses['http'])}/decisions/last") as answer:
            assert (await answer.json())["policy"] == "llm-d-stages"
    assert len(worker.asked) == before + 4
    assert {asked.headers[PREFILLER] for asked in decoder.local[-4:]} == {worker.address}
