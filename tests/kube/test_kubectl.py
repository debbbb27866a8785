"""The kit's server is a fair stand-in as far as kubectl can tell."""

from __future__ import annotations

import asyncio
import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from tests.kit import kubeobjects as objects
from tests.kit.kubefollow import kubeconfig

if TYPE_CHECKING:
    from pathlib import Path

    from tests.kit.kubecluster import Cluster

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")


class Kubectl:
    def __init__(self, cluster: Cluster, folder: Path) -> None:
        scheme = "https" if cluster.real else "http"
        url = f"{scheme}://127.0.0.1:{cluster.server.port}"
        self._config = kubeconfig(folder / "admin", url, token="admin-token")
        self._folder = folder

    async def __call__(self, *words: str, given: Any = None) -> str:
        """Run a command.

        Raises:
            AssertionError: it fails.
        """
        process = await asyncio.create_subprocess_exec(
            "kubectl", "--kubeconfig", str(self._config), "--cache-dir", str(self._folder / "cache"),
            "--namespace", objects.NAMESPACE, *words,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, err = await process.communicate(json.dumps(given).encode() if given is not None else b"")
        assert process.returncode == 0, err.decode()
        return out.decode()


async def test_an_operators_day(cluster: Cluster, tmp_path: Path) -> None:
    kubectl = Kubectl(cluster, tmp_path)
    apply = ("apply", "--validate=false", "-f", "-")
    await kubectl(*apply, given=objects.POOL_CRD)
    await kubectl("wait", "--for=condition=Established", "crd/inferencepools.inference.networking.k8s.io")
    await kubectl(*apply, given=objects.pool())
    async with cluster.follow(pool_name="pool") as picker:
        await picker.until(lambda: picker.pools)
        await kubectl(*apply, given=objects.pod("a"))
        status = json.dumps({"status": objects.pod_status("10.0.0.1")})
        await kubectl("patch", "pod", "a", "--subresource=status", "--type=merge", "-p", status)
        await picker.until(lambda: picker.addresses == ["10.0.0.1:8000"])
        await kubectl("annotate", "pod", "a", "gorgo-epp/draining=true")
        await picker.until(lambda: picker.draining == ["10.0.0.1:8000"])
        await kubectl("annotate", "pod", "a", "gorgo-epp/draining-")
        await picker.until(lambda: picker.addresses == ["10.0.0.1:8000"])
        await kubectl("label", "pod", "a", "gorgo-epp/region=eu")
        await picker.until(lambda: [spec.region for spec in picker.pools[-1].specs.values()] == ["eu"])
        port = '[{"op": "replace", "path": "/spec/targetPorts/0/number", "value": 9000}]'
        merge = json.dumps({"spec": {"targetPorts": [{"number": 9000}]}})
        kind, patch = ("json", port) if cluster.real else ("merge", merge)
        await kubectl("patch", "inferencepool", "pool", f"--type={kind}", "-p", patch)
        await picker.until(lambda: picker.addresses == ["10.0.0.1:9000"])
        assert "pool" in await kubectl("get", "inferencepools", "-o", "name")
        await kubectl("delete", "pod", "a", "--grace-period=0", "--force", "--wait=false")
        await picker.until(lambda: not picker.addresses)
