"""Values of llm-d's charts, migrated, installed on a real API server, and served from, before two replicas.

Nobody runs pods there, so the test does a kubelet's work: it starts the picker as its Deployment says, with a token of
its ServiceAccount. ``LLM_D_VALUES`` names the files of a guide, in Helm's order, instead of the values below.
"""

from __future__ import annotations

import os
import shlex
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
import yaml

from deploy.k8s.helm import CHART, find_helm
from epp.cli import main
from epp.envoy.child import EPP, Child
from epp.envoy.process import EnvoyProcess
from epp.envoy.settings import EnvoySettings, TlsFiles
from epp.types import Endpoint
from epp_lab.sim.http import SimReplica
from tests.chart.test_release import DEPLOYMENT, NAMESPACE, POOL, Installed, installed
from tests.gateways.rig import GATEWAYS, as_written
from tests.kit import kubeobjects as objects
from tests.kit.kubefollow import kubeconfig
from tests.kit.replicas import CHAT, chat_body, metric, quick_config
from tests.kit.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.envoy
__all__ = ["installed"]

HOSTS = ("127.0.0.2", "127.0.0.3")
CORE = f"/api/v1/namespaces/{NAMESPACE}"
#: The form of a guide's values: plugins with their defaults, chosen in the chart of a gateway.
VALUES = """
router:
  epp:
    replicas: 1
    flags: {v: 2}
    pluginsConfigFile: plugins.yaml
    pluginsCustomConfig:
      plugins.yaml: |
        apiVersion: llm-d.ai/v1alpha1
        kind: EndpointPickerConfig
        plugins:
        - type: approx-prefix-cache-producer
        - type: inflight-load-producer
        - type: prefix-cache-affinity-filter
        - type: token-load-scorer
        schedulingProfiles:
        - name: default
          plugins: [{pluginRef: prefix-cache-affinity-filter}, {pluginRef: token-load-scorer}]
  inferencePool: {failureMode: FailOpen}
  modelServers: {matchLabels: {llm-d.ai/guide: baseline}}
"""


async def as_deployed(cluster: Installed, folder: Path, patch: pytest.MonkeyPatch) -> list[str]:
    """Put files and variables where the pod's would be; the picker's arguments."""
    token: dict[str, Any] = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    path = f"{CORE}/serviceaccounts/gorgo-epp/token"
    made = await cluster.client.call("POST", path, token)
    server = yaml.safe_load(cluster.config.read_text())["clusters"][0]["cluster"]["server"]
    patch.setenv("KUBECONFIG", str(kubeconfig(folder / "picker", server, token=made["status"]["token"])))
    for name, text in (await cluster.get(f"{CORE}/configmaps/gorgo-epp"))["data"].items():
        (folder / name).write_text(text)
    container = await cluster.picker()
    mounted = next(each["mountPath"] for each in container["volumeMounts"] if each["name"] == "config")
    return [word.replace(mounted, str(folder)) for word in container["args"]]


@pytest.fixture
async def serving(
    installed: Installed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> AsyncIterator[str]:
    """Migrate, install and start; the URL of Envoy."""
    (tmp_path / "values.yaml").write_text(VALUES)
    files = shlex.split(os.environ.get("LLM_D_VALUES", "")) or [str(tmp_path / "values.yaml")]
    assert main(["migrate", "llm-d", *files]) == 0
    (tmp_path / "ours.yaml").write_text(capsys.readouterr().out)
    await installed.helm("install", "gorgo-epp", str(CHART), "--values", str(tmp_path / "ours.yaml"))
    pool = (await installed.get(POOL))["spec"]
    port, labels = pool["targetPorts"][0]["number"], pool["selector"]["matchLabels"]
    async with AsyncExitStack() as stack:
        for host in HOSTS:
            await stack.enter_async_context(SimReplica(quick_config(host, host=host, port=port)))
            engine = objects.pod(f"engine-{host}", labels=labels, ports=(port,))
            engine["metadata"]["namespace"] = NAMESPACE
            await installed.client.call("POST", f"{CORE}/pods", engine)
            status = {"status": objects.pod_status(host)}
            merge = {"Content-Type": "application/merge-patch+json"}
            await installed.client.call("PATCH", f"{CORE}/pods/engine-{host}/status", status, merge)
        words = ["serve", *await as_deployed(installed, tmp_path, monkeypatch)]
        await stack.enter_async_context(Child("picker", words, tmp_path, EPP))
        endpoints = tuple(Endpoint(f"{host}:{port}") for host in HOSTS)
        settings = EnvoySettings(
            endpoints=endpoints, listener_port=0, admin_port=0, picker_tls=TlsFiles(),
            eds_path=str(tmp_path / "eds.json"),
        )  # fmt: skip
        with as_written(GATEWAYS["istio-open"]):
            envoy = await stack.enter_async_context(EnvoyProcess(settings, folder=tmp_path / "envoy"))
        yield envoy.listener_url


@pytest.mark.parametrize("installed", [find_helm], indirect=True, ids=["newest"])
async def test_a_guide_s_values_serve_from_a_cluster(serving: str, installed: Installed) -> None:
    async with aiohttp.ClientSession() as http:

        async def chat(text: str) -> str | int:
            """The replica that served, or the status."""
            async with http.post(serving + CHAT, json=chat_body(text)) as answer:
                return answer.headers["x-served-by"] if answer.status == 200 else answer.status

        async def decided() -> float:
            async with http.get("http://127.0.0.1:9090/metrics") as page:
                try:
                    return metric(await page.text(), "epp_decisions_total", {"basis": "policy"})
                except KeyError:
                    return 0.0

        async def decides() -> bool:
            return await chat("is anybody there") in HOSTS and await decided() > 0

        await until(decides)
        before = await decided()
        prompts = [f"question {number} " * 200 for number in range(16)]
        first = [await chat(prompt) for prompt in prompts]
        assert set(first) == set(HOSTS), "load is spread"
        assert [await chat(prompt) for prompt in prompts] == first, "what is cached is found again"
        assert await decided() == before + 32
    assert (await installed.get(DEPLOYMENT))["spec"]["replicas"] == 1
