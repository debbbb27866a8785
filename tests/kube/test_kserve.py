"""What KServe makes of an LLMInferenceService, with our image in it: the picker's container answers through Envoy.

On a real API server its rights are those of KServe's Role, and the container is read from the Deployment stored there.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from epp.envoy.child import Child
from epp.envoy.process import EnvoyProcess
from epp.envoy.settings import TlsFiles, Variant
from tests.kit import kserve
from tests.kit import kubeobjects as objects
from tests.kit.certificates import self_signed
from tests.kit.envoy import Replica, require_envoy, settings
from tests.kit.kubefollow import PATIENCE_S, kubeconfig
from tests.kit.llmd import loopback
from tests.kit.replicas import CHAT, chat_body
from tests.kit.waiting import until
from tests.llmd.test_serve import certificate

if TYPE_CHECKING:
    from tests.kit.kubecluster import Cluster

#: What the image has at ``/app/epp``.
ENTRY = Path(__file__).parents[2] / "deploy" / "image" / "app-epp"


async def deployed(stack: AsyncExitStack, cluster: Cluster, *, tls: bool) -> tuple[dict[str, Any], str]:
    """Apply what KServe applies, for as long as the stack; return the picker's container and the account's token."""
    made = kserve.deployment(tls=tls)
    if not cluster.real:
        return made["spec"]["template"]["spec"]["containers"][0], ""
    for each in (*kserve.account(), made):
        await cluster.client.create(each)
        stack.push_async_callback(cluster.client.delete, each)
    stored = await cluster.client.call("GET", objects.path_of(made, named=True))
    path = f"/api/v1/namespaces/{objects.NAMESPACE}/serviceaccounts/{kserve.ACCOUNT}/token"
    token: dict[str, Any] = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    found = await cluster.client.call("POST", path, token)
    return stored["spec"]["template"]["spec"]["containers"][0], found["status"]["token"]


@pytest.mark.parametrize("tls", [False, True], ids=["plaintext", "tls"])
async def test_the_scheduler_that_kserve_deploys_picks_for_envoy(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, tls: bool
) -> None:
    require_envoy()
    cert, key = self_signed(
        tmp_path / "tls.crt", tmp_path / "tls.key", "kserve", alternatives="DNS:localhost"
    )
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(Replica(tls=context if tls else None))
        await cluster.install(objects.POOL_CRD, objects.OBJECTIVE_CRD, objects.REWRITE_CRD)
        await cluster.client.create(kserve.pool(engine.port))
        pod = objects.pod("engine", labels=kserve.WORKLOAD, ports=(engine.port,))
        await cluster.client.run_pod(pod, "127.0.0.1")
        container, token = await deployed(stack, cluster, tls=tls)
        url = f"{'https' if cluster.real else 'http'}://127.0.0.1:{cluster.server.port}"
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path / "kubeconfig", url, token=token)))
        assert container["command"].pop(0) == "/app/epp"
        words = [each.replace(kserve.TLS_FOLDER, str(tmp_path)) for each in container["command"]]
        ready = tmp_path / "ready.json"
        # Ports of a pod of its own are not free here.
        ports = ["--grpc-port=0", "--grpc-health-port=0", "--metrics-port=0", f"--ready-file={ready}"]
        program = (sys.executable, str(ENTRY))
        picker = Child("picker", [*words, *container["args"], *ports], tmp_path, program)
        await stack.enter_async_context(picker)
        async with asyncio.timeout(PATIENCE_S):
            await picker.until(ready.exists)
        addresses = json.loads(ready.read_text())
        # TLS is on where no word is said of it, by a certificate that the picker makes.
        presented = str(await certificate(tmp_path, addresses["grpc"]))
        envoy = EnvoyProcess(
            settings(
                [engine.endpoint],
                int(addresses["grpc"].rpartition(":")[2]),
                variant=Variant.FULL_DUPLEX,
                picker_tls=TlsFiles(ca_file=presented, server_name="localhost"),
                upstream_insecure=tls,
            ),
            folder=tmp_path / "envoy",
        )
        proxy = await stack.enter_async_context(envoy)
        http = await stack.enter_async_context(aiohttp.ClientSession())
        last = f"http://{loopback(addresses['http'])}/decisions/last"
        async with asyncio.timeout(PATIENCE_S):
            while (await http.get(last)).status != 200:  # until the picker knows the pod
                picker.check()
                await (await http.post(proxy.listener_url + CHAT, json=chat_body("hello"))).read()
        async with http.post(proxy.listener_url + CHAT, json=chat_body("hello")) as answer:
            assert answer.status == 200, await answer.text()
        async with http.get(last) as answer:
            decision = await answer.json()
        await until(lambda: "/metrics" in engine.requests)
    assert (decision["policy"], decision["endpoints"]) == ("llm-d-profile", [engine.address])
