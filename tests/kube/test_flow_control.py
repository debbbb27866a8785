"""llm-d's flow control: two of its configurations answer through a real Envoy, on each API server at hand."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from epp.request.queueing import FAIRNESS_HEADER
from epp_lab.sim.http import SimReplica
from tests.kit import kubeobjects as objects
from tests.kit.kubefollow import PATIENCE_S
from tests.kit.kubegateway import gateway
from tests.kit.llmd import BANDS, PROGRAMS
from tests.kit.replicas import SLOW, quick_config

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.kit.kubecluster import Cluster
    from tests.kit.kubegateway import Gateway

pytestmark = pytest.mark.envoy


@asynccontextmanager
async def serving(
    cluster: Cluster, folder: Path, plugins: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Gateway]:
    """A gateway before one engine's pod, once the picker decides."""
    async with SimReplica(replace(quick_config("a"), engine_class=SLOW)) as replica:
        ports = (int(replica.address.rpartition(":")[2]),)
        pod = objects.pod("engine-0", ports=ports)
        started = gateway(cluster, folder, plugins, monkeypatch, pod, answering=replica.address, ports=ports)
        async with started as found:
            await cluster.client.create(objects.objective("high", 9))
            async with asyncio.timeout(PATIENCE_S):  # until then Envoy balances by itself
                while not await found.count("epp_decisions_total", basis="policy"):
                    await found.ask("is anybody there")
            yield found


async def test_bands_wait_while_as_many_run_as_may_and_an_empty_pool_says_so(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(cluster, tmp_path, BANDS, monkeypatch) as served:
        waited = await served.count("epp_queue_seconds_count")
        high = {"x-llm-d-inference-objective": "high"}
        asked = [served.ask(f"hello {n}", high if n % 2 else None) for n in range(6)]
        assert await asyncio.gather(*asked) == [(200, "")] * 6
        assert await served.count("epp_queue_seconds_count") >= waited + 2, "two may run at once"
        await cluster.client.delete(objects.pod("engine-0"))
        async with asyncio.timeout(PATIENCE_S):
            while (answer := await served.ask("nobody"))[0] == 200:
                await asyncio.sleep(0.05)
        assert answer == (503, "rejected-no-endpoints")


async def test_programs_by_attained_service_answer(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(cluster, tmp_path, PROGRAMS, monkeypatch) as served:
        asked = [served.ask(f"{n}", {FAIRNESS_HEADER: f"program-{n % 2}"}) for n in range(4)]
        assert await asyncio.gather(*asked) == [(200, "")] * 4
