"""A picker that takes its pool from a cluster, behind a real Envoy that imposes full duplex."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import aiohttp
import pytest

from epp.config.address import split_address
from epp.envoy.settings import Variant
from tests.kit import kubeobjects as objects
from tests.kit.kubecluster import Cluster
from tests.kit.kubefollow import PATIENCE_S, kubeconfig
from tests.kit.kubeserver import KubeServer
from tests.kit.picker import Serving
from tests.kit.replicas import MODEL, metric
from tests.kit.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.envoy


async def readiness(serving: Serving) -> str:
    async with aiohttp.ClientSession() as http, http.get(f"http://{serving.picker.http}/readyz") as answer:
        return (await answer.text()).strip()


async def deploy(cluster: Cluster, serving: Serving) -> tuple[list[str], str]:
    """Watch the picker wait, and deploy what it waits for.

    Returns:
        The reasons that it gave, and its metrics while the CRD was missing.
    """
    reasons: list[str] = []
    async with asyncio.timeout(PATIENCE_S):
        while not serving.picker.http:
            await asyncio.sleep(0.02)
        while "CRD" not in (reason := await readiness(serving)):
            await asyncio.sleep(0.02)
        reasons.append(reason)
        without_crd = await serving.picker.metrics()
        await cluster.install(objects.POOL_CRD, objects.OBJECTIVE_CRD, objects.REWRITE_CRD)
        while "exist" not in (reason := await readiness(serving)):
            await asyncio.sleep(0.02)
        reasons.append(reason)
    ports = tuple(split_address(replica.address)[1] for replica in serving.replicas)
    # The replicas share this machine's address: each pod serves on one of the pool's ports.
    for number, port in enumerate(ports):
        made = objects.pod(
            f"engine-{number}", annotations={"llm-d.ai/active-ports": str(port)}, ports=(port,)
        )
        await cluster.client.run_pod(made, "127.0.0.1")
    await cluster.client.create(objects.pool(ports=ports))
    await cluster.client.create(objects.objective("batch", -1))
    await cluster.client.create(objects.rewrite("canary", objects.rule("public", **{MODEL: 1, "gone": 1})))
    return reasons, without_crd


async def rewrites(serving: Serving) -> None:
    """Ask for a model that no engine has by this name; half the sessions are given one that is there."""
    statuses: dict[str, int] = {}
    for session in [*map(str, range(12))] * 2:
        status, body = await serving.chat(model="public", headers={"x-session-id": session})
        assert statuses.setdefault(session, status) == status, "a session keeps its model"
        assert status == 404 or body["model"] == "public", body
    assert set(statuses.values()) == {200, 404}
    there = next(session for session, status in statuses.items() if status == 200)
    status, body = await serving.chat(model="public", stream=True, headers={"x-session-id": there})
    models = {json.loads(line[5:])["model"] for line in body.splitlines() if line.startswith(b"data: {")}
    assert (status, models) == (200, {"public"})
    picker, names = serving.picker, {"model_name": "public"}
    for target in (MODEL, "gone"):
        asked = await picker.metric("llm_d_epp_request_total", **names, target_model_name=target)
        rewritten = {"model_rewrite_name": "canary", **names, "target_model": target}
        assert await picker.metric("llm_d_epp_model_rewrite_decisions_total", **rewritten) == asked > 0


async def test_pods_serve_through_envoy_sheddable_requests_wait_and_models_are_rewritten(
    tmp_path: Path,
) -> None:
    server = KubeServer()
    await server.start()
    cluster = Cluster(server, tmp_path)
    await cluster.start()
    config = kubeconfig(tmp_path / "kubeconfig", server.url, token="any")
    pool = {"kubernetes": {"pool_name": "pool", "namespace": objects.NAMESPACE, "kubeconfig": str(config)}}
    serving = Serving(tmp_path, variant=Variant.FULL_DUPLEX, pool=pool)
    deploying = asyncio.get_running_loop().create_task(deploy(cluster, serving))
    async with serving:
        reasons, without_crd = await deploying
        assert "install its CRD" in reasons[0]
        assert reasons[1] == "InferencePool llm/pool does not exist"
        await until(serving.picker.ready)
        picker, pools = serving.picker, {"resource": "inferencepools"}
        assert metric(without_crd, "epp_kubernetes_failures_total", pools) > 0
        assert metric(without_crd, "epp_kubernetes_ok", pools) == 0
        assert await picker.metric("epp_kubernetes_ok", **pools) == 1
        # Until its health check has seen the picker, Envoy balances by itself.
        async with asyncio.timeout(PATIENCE_S):
            while not await picker.metric("epp_decisions_total", basis="policy"):
                await serving.chat("is anybody there")
        for number in range(6):
            status, body = await serving.chat(f"hello {number}")
            assert status == 200, body
        assert await picker.metric("epp_decisions_total", basis="policy") >= 7
        await rewrites(serving)
        sheddable = {"x-llm-d-inference-objective": "batch"}
        status, body = await serving.chat("idle", headers=sheddable)
        assert status == 200, "engines that have room shed nothing"
        for number in range(len(serving.replicas)):
            await cluster.client.delete(objects.pod(f"engine-{number}"))
        async with asyncio.timeout(PATIENCE_S):
            while (await serving.chat("nobody"))[0] != 503:
                await asyncio.sleep(0.05)
        assert await readiness(serving) == "ok", "a pool scaled to nothing is no fault of the picker"
        status, body = await serving.chat("dropped", headers=sheddable)
        assert status == 429, body
        assert "negative priority" in json.dumps(body)
        assert await picker.metric("llm_d_epp_request_total", model_name=MODEL, priority="0") >= 6
        assert await picker.metric("llm_d_epp_request_total", model_name=MODEL, priority="-1") == 2, (
            "the refused one, too"
        )
        assert await picker.metric("llm_d_epp_request_error_total", priority="-1") == 1
        saturation = "llm_d_epp_flow_control_pool_saturation"
        assert await picker.metric(saturation, inference_pool="pool") == 1.0, "nobody has room"
        assert await picker.metric("llm_d_epp_ready_endpoints", name="pool") == 0.0
    await cluster.stop()
    await server.stop()
