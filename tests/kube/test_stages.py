"""llm-d's guide for prefill and decode, migrated, answers through a real Envoy, on each API server at hand."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import yaml

from epp.kube.reconcile import ACTIVE_PORTS
from epp.llmd.migrate import migrate
from tests.kit import kubeobjects as objects
from tests.kit.kubefollow import PATIENCE_S
from tests.kit.kubegateway import gateway
from tests.kit.llmd import PARTED
from tests.kit.sidecar import PREFILLER, Decoder, Worker, decoded, prefilled

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from tests.kit.kubecluster import Cluster


async def test_the_guide_s_values_send_every_prompt_to_a_prefill_worker_first(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, _, _ = migrate({"guide.yaml": PARTED})
    match = ours["endpoints"]["matchLabels"]
    plugins = yaml.safe_dump(ours["endpointPickerConfig"])
    decoder = Decoder(answer=decoded)
    decoder.open.set()
    async with Worker(role="prefill", answer=prefilled) as worker, decoder:
        ports = {each.role: int(each.address.rpartition(":")[2]) for each in (worker, decoder)}
        pods = (
            objects.pod(
                role,
                labels={**match, "llm-d.ai/role": role},
                annotations={ACTIVE_PORTS[0]: str(port)},
                ports=tuple(ports.values()),
            )
            for role, port in ports.items()
        )
        pool = {"match": match, "ports": tuple(ports.values()), "answering": decoder.address}
        async with gateway(cluster, tmp_path, plugins, monkeypatch, *pods, **pool) as found:
            async with asyncio.timeout(PATIENCE_S):
                while not worker.asked:  # until the picker knows both
                    await found.ask("hello")
            before = len(worker.asked)
            assert [await found.ask(f"{number}") for number in range(4)] == [(200, "")] * 4
            assert await found.policy() == "llm-d-stages"
    assert len(worker.asked) == before + 4
    assert {asked.headers[PREFILLER] for asked in decoder.local[-4:]} == {worker.address}
