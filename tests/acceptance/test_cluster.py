"""A cluster's endpoints: llm-d's command line, InferencePool, pods that come and go, rights that are missing."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import TYPE_CHECKING, Any

import pytest

from tests.acceptance.kit import EPP, Stack, free_ports, http, run, until
from tests.kit import kubeobjects as objects
from tests.kit.kubeserver import KubeServer

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator
    from pathlib import Path


class Cluster:
    """An API server in a thread of its own, and an administrator of it."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.do(self._start())

    def do(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run something on the server's loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(240)

    def stop(self) -> None:
        """Stop all of it."""
        self.do(self.client.close())
        self.do(self.server.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _start(self) -> None:
        self.server = KubeServer()
        await self.server.start()
        self.client = objects.KubeClient(self.server.url, "")
        await self.client.create(objects.POOL_CRD)

    def add_pod(self, name: str, port: int) -> None:
        """Let a pod run on this machine."""
        self.do(self.client.run_pod(objects.pod(name, ports=(port,)), "127.0.0.1"))

    def kubeconfig(self, folder: Path) -> Path:
        """Write credentials for it."""
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": self.server.url}}],
            "users": [{"name": "test", "user": {}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        }
        path = folder / "kubeconfig"
        path.write_text(json.dumps(content), encoding="utf-8")
        return path


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """An API server with the InferencePool's definition."""
    made = Cluster()
    yield made
    made.stop()


def test_llm_ds_command_line_follows_an_inference_pool(
    tmp_path: Path, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its chart's arguments as they are: pool, plugins, health port, JSON log."""
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig(tmp_path)))
    (tmp_path / "plugins.yaml").write_text(objects.PLUGINS, encoding="utf-8")
    with Stack(tmp_path) as stack:
        stack.start_replicas("a")
        cluster.do(cluster.client.create(objects.pool("vllm", ports=(stack.ports["a"],))))
        cluster.add_pod("engine-0", stack.ports["a"])
        ports = [str(port) for port in free_ports(3)]
        ready = tmp_path / "ready.json"
        words = [
            *(*EPP, "serve", "--pool-name", "vllm", "--pool-namespace", objects.NAMESPACE),
            *("--pool-group", objects.GROUP, "--zap-encoder", "json", "--ready-file", str(ready)),
            *("--config-file", str(tmp_path / "plugins.yaml"), "--grpc-port", ports[0]),
            *("--metrics-port", ports[1], "--grpc-health-port", ports[2]),
        ]
        stack.picker = stack.start("picker", words)
        until(ready.exists)
        until(lambda: http(f"http://127.0.0.1:{ports[1]}/readyz").status == 200)
        lines = [json.loads(line) for line in stack.picker.log().splitlines()]
        assert all({"level", "ts", "logger", "msg"} <= line.keys() for line in lines)


def test_an_unknown_plugin_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "plugins.yaml").write_text(
        objects.PLUGINS.replace("queue-scorer", "cheese-scorer"), encoding="utf-8"
    )
    words = ("serve", "--pool-name", "vllm", "--config-file", str(tmp_path / "plugins.yaml"))
    assert "cheese-scorer" in run(*words, status=2)


def test_pods_that_come_and_go_are_followed(tmp_path: Path, cluster: Cluster) -> None:
    with Stack(tmp_path) as stack:
        stack.start_replicas("a", "b")
        ports = list(stack.ports.values())
        cluster.do(cluster.client.create(objects.pool(ports=tuple(ports))))
        cluster.add_pod("engine-0", ports[0])
        kubernetes = {
            "pool_name": "pool",
            "namespace": objects.NAMESPACE,
            "kubeconfig": str(cluster.kubeconfig(tmp_path)),
        }
        stack.start_picker(pool={"kubernetes": kubernetes, "warmup_s": 0.2})
        until(stack.ready)
        until(lambda: stack.metric("llm_d_epp_ready_endpoints") == 2)
        cluster.do(cluster.client.delete(objects.pod("engine-0")))
        until(lambda: stack.metric("llm_d_epp_ready_endpoints") == 0)
