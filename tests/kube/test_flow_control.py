"""llm-d's flow control: two of its configurations answer through a real Envoy, on each API server at hand."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import aiohttp
import pytest

from epp.envoy.process import EnvoyProcess
from epp.envoy.settings import EnvoySettings, Variant
from epp.llmd.words import DROPPED_REASON
from epp.request.queueing import FAIRNESS_HEADER
from epp.types import Endpoint
from epp_lab.sim.http import SimReplica
from tests.kit import kubeobjects as objects
from tests.kit.envoy import require_envoy
from tests.kit.kubefollow import PATIENCE_S, kubeconfig
from tests.kit.kubereal import PICKER
from tests.kit.llmd import BANDS, PROGRAMS, loopback, picker_by_flags
from tests.kit.replicas import CHAT, SLOW, chat_body, metric, quick_config

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

    from tests.kit.kubecluster import Cluster

pytestmark = pytest.mark.envoy


class Gateway:
    """An Envoy before a picker of llm-d's command line, and their one engine's pod."""

    def __init__(self, http: aiohttp.ClientSession, url: str, picker: str) -> None:
        self.http, self.url, self._picker = http, url, picker

    async def ask(self, text: str, headers: Mapping[str, str] | None = None) -> tuple[int, str]:
        """Return the status of an answer, and why the request was dropped."""
        async with self.http.post(self.url + CHAT, json=chat_body(text), headers=headers) as answer:
            await answer.read()
            return answer.status, answer.headers.get(DROPPED_REASON, "")

    async def count(self, name: str, **labels: str) -> float:
        """Return one metric; 0 while it has no series."""
        async with self.http.get(f"http://{self._picker}/metrics") as answer:
            text = await answer.text()
        with suppress(KeyError):
            return metric(text, name, labels)
        return 0.0


@asynccontextmanager
async def serving(
    cluster: Cluster, folder: Path, plugins: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Gateway]:
    require_envoy()
    async with AsyncExitStack() as stack:
        replica = await stack.enter_async_context(SimReplica(replace(quick_config("a"), engine_class=SLOW)))
        port = int(replica.address.rpartition(":")[2])
        await cluster.install(objects.POOL_CRD, objects.OBJECTIVE_CRD, objects.REWRITE_CRD)
        await cluster.client.create(objects.pool(ports=(port,)))
        await cluster.client.create(objects.objective("high", 9))
        await cluster.client.run_pod(objects.pod("engine-0", ports=(port,)), "127.0.0.1")
        url = f"{'https' if cluster.real else 'http'}://127.0.0.1:{cluster.server.port}"
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig(folder / "kubeconfig", url, token=PICKER)))
        picker = picker_by_flags(folder, plugins, "--pool-name", "pool", "--secure-serving=false")
        addresses = await stack.enter_async_context(picker)
        settings = EnvoySettings(
            endpoints=(Endpoint(replica.address),),
            variant=Variant.FULL_DUPLEX,
            listener_port=0,
            admin_port=0,
            picker_port=int(addresses["grpc"].rpartition(":")[2]),
            queue_wait_s=60.0,
        )
        envoy = await stack.enter_async_context(EnvoyProcess(settings, folder=folder / "envoy"))
        http = await stack.enter_async_context(aiohttp.ClientSession())
        gateway = Gateway(http, envoy.listener_url, loopback(addresses["http"]))
        async with asyncio.timeout(PATIENCE_S):  # until then Envoy balances by itself
            while not await gateway.count("epp_decisions_total", basis="policy"):
                await gateway.ask("is anybody there")
        yield gateway


async def test_bands_wait_while_as_many_run_as_may_and_an_empty_pool_says_so(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(cluster, tmp_path, BANDS, monkeypatch) as gateway:
        waited = await gateway.count("epp_queue_seconds_count")
        high = {"x-llm-d-inference-objective": "high"}
        asked = [gateway.ask(f"hello {n}", high if n % 2 else None) for n in range(6)]
        assert await asyncio.gather(*asked) == [(200, "")] * 6
        assert await gateway.count("epp_queue_seconds_count") >= waited + 2, "two may run at once"
        await cluster.client.delete(objects.pod("engine-0"))
        async with asyncio.timeout(PATIENCE_S):
            while (answer := await gateway.ask("nobody"))[0] == 200:
                await asyncio.sleep(0.05)
        assert answer == (503, "rejected-no-endpoints")


async def test_programs_by_attained_service_answer(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(cluster, tmp_path, PROGRAMS, monkeypatch) as gateway:
        asked = [gateway.ask(f"{n}", {FAIRNESS_HEADER: f"program-{n % 2}"}) for n in range(4)]
        assert await asyncio.gather(*asked) == [(200, "")] * 4
