"""Install, upgrade, roll back and uninstall, against a real API server."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from deploy.k8s.helm import CHART, EXAMPLES, cache, find_helm, find_oldest_helm, helm
from tests.chart.test_schemas import require_crds
from tests.kit import kubeobjects as objects
from tests.kit.chart import require_helm
from tests.kit.kubefollow import kubeconfig
from tests.kit.kubereal import ADMIN, RealKube, binaries

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

NAMESPACE = "inference"
CRDS = (
    "inference.networking.k8s.io_inferencepools", "inference.networking.x-k8s.io_inferenceobjectives",
    "gateway.networking.k8s.io_httproutes", "monitoring.coreos.com_servicemonitors",
    "monitoring.coreos.com_prometheusrules",
)  # fmt: skip
DEPLOYMENT = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/gorgo-epp"
POOL = f"/apis/inference.networking.k8s.io/v1/namespaces/{NAMESPACE}/inferencepools/gorgo-epp"
OVERRIDES = f"/api/v1/namespaces/{NAMESPACE}/configmaps/gorgo-epp-overrides"


@dataclass
class Installed:
    """A cluster with the CRDs, and a Helm with its credentials."""

    client: objects.KubeClient
    config: Path
    binary: Path

    async def helm(self, *words: str) -> str:
        said: str = await asyncio.to_thread(
            lambda: helm(*words, "--namespace", NAMESPACE, kubeconfig=self.config, binary=self.binary)
        )
        return said

    async def get(self, path: str) -> Any:
        return await self.client.call("GET", path)

    async def picker(self) -> Any:
        found = await self.get(DEPLOYMENT)
        return found["spec"]["template"]["spec"]["containers"][0]


@pytest.fixture(params=[find_helm, find_oldest_helm], ids=["newest", "oldest"])
async def installed(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Installed]:
    if not binaries():
        pytest.skip("no API server: run `make test-k8s-real`")
    require_crds()
    binary = require_helm(request.param)
    async with contextlib.AsyncExitStack() as stack:
        server = RealKube(tmp_path / "kube")
        stack.push_async_callback(asyncio.to_thread, server.stop)
        await asyncio.to_thread(server.start)
        url = f"https://127.0.0.1:{server.port}"
        client = objects.KubeClient(url, ADMIN)
        stack.push_async_callback(client.close)
        for name in CRDS:
            crd = yaml.safe_load((cache() / "crds" / f"{name}.yaml").read_text())
            crd["metadata"].setdefault("annotations", {})["api-approved.kubernetes.io"] = "unapproved, a test"
            await client.create(crd)
        await client.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        for path in (POOL, f"/apis/gateway.networking.k8s.io/v1/namespaces/{NAMESPACE}/httproutes"):
            await _served(client, path.removesuffix("/gorgo-epp"))
        yield Installed(client, kubeconfig(tmp_path / "kubeconfig", url, token=ADMIN), binary)


async def _served(client: objects.KubeClient, path: str) -> None:
    async with asyncio.timeout(240):
        while True:
            try:
                await client.call("GET", path)
            except RuntimeError:
                await asyncio.sleep(0.05)
            else:
                return


def words(name: str) -> tuple[str, ...]:
    return ("gorgo-epp", str(CHART), "--values", str(EXAMPLES / f"{name}.yaml"))


async def test_install_upgrade_rollback_uninstall(installed: Installed) -> None:
    said = await installed.helm("install", *words("gateway"))
    assert "rollout status deployment/gorgo-epp" in said
    before = await installed.picker()
    assert before["image"] == "gorgo-epp:0.1.0"
    assert (await installed.get(POOL))["spec"]["endpointPickerRef"]["failureMode"] == "FailOpen"

    changed = ("image.tag=0.2.0,drainSeconds=60,tls.mode=secret,tls.secretName=epp-tls,"
               "inferencePool.failureMode=FailClose,overrides.rtt_weight=1")  # fmt: skip
    await installed.helm("upgrade", *words("gateway"), "--set", changed)
    after = await installed.picker()
    assert after["image"] == "gorgo-epp:0.2.0"
    assert "/etc/epp-tls" in {mount["mountPath"] for mount in after["volumeMounts"]}
    assert (await installed.get(POOL))["spec"]["endpointPickerRef"]["failureMode"] == "FailClose"
    assert yaml.safe_load((await installed.get(OVERRIDES))["data"]["overrides.yaml"]) == {
        "weights": {"rtt_weight": 1}
    }
    assert (await installed.get(DEPLOYMENT))["spec"]["template"]["spec"][
        "terminationGracePeriodSeconds"
    ] == 75

    await installed.helm("rollback", "gorgo-epp", "1")
    assert await installed.picker() == before
    assert (await installed.get(POOL))["spec"]["endpointPickerRef"]["failureMode"] == "FailOpen"
    history = await installed.helm("history", "gorgo-epp", "--output", "yaml")
    assert [entry["status"] for entry in yaml.safe_load(history)] == ["superseded", "superseded", "deployed"]

    await installed.helm("uninstall", "gorgo-epp")
    with pytest.raises(RuntimeError):
        await installed.get(DEPLOYMENT)
    with pytest.raises(RuntimeError):
        await installed.get(POOL)


async def test_the_notes_tell_three_commands(installed: Installed) -> None:
    for name in ("gateway", "standalone", "multi-region", "replicas", "llm-d"):
        said = await installed.helm("install", *words(name), "--dry-run=server")
        notes = said[said.index("NOTES:") :]
        assert [line[:2] for line in notes.splitlines() if line[:1].isdigit()][:3] == ["1.", "2.", "3."]
        commands = [line.strip() for line in notes.splitlines() if line.startswith("   ")]
        assert len(commands) == 3, name
        assert all(command.startswith(("kubectl -n inference ", "curl ")) for command in commands)
        assert "cost about" not in notes
    alone = await installed.helm("install", *words("gateway"), "--set", "replicas=2", "--dry-run=server")
    assert "cost about" in alone, "pickers that do not share"
    assert "networkPolicy.gatewayFrom is empty: every pod of the cluster may call" in alone
    peers = ("--set-json", 'networkPolicy.gatewayFrom=[{"podSelector": {}}]')
    assert "gatewayFrom" not in await installed.helm("install", *words("gateway"), *peers, "--dry-run=server")
