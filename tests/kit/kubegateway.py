"""An Envoy before a picker that llm-d's command line starts on a cluster under test."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import aiohttp

from epp.envoy.process import EnvoyProcess
from epp.envoy.settings import EnvoySettings, Variant
from epp.llmd.words import DROPPED_REASON
from epp.types import Endpoint
from tests.kit import kubeobjects as objects
from tests.kit.envoy import require_envoy
from tests.kit.kubefollow import kubeconfig
from tests.kit.kubereal import PICKER
from tests.kit.llmd import loopback, picker_by_flags
from tests.kit.replicas import CHAT, chat_body, metric

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

    import pytest

    from tests.kit.kubecluster import Cluster


class Gateway:
    """What is asked of both."""

    def __init__(self, http: aiohttp.ClientSession, url: str, picker: str) -> None:
        self.http, self._url, self._picker = http, url, picker

    async def ask(self, text: str, headers: Mapping[str, str] | None = None) -> tuple[int, str]:
        """Return the status of an answer, and why the request was dropped."""
        async with self.http.post(self._url + CHAT, json=chat_body(text), headers=headers) as answer:
            await answer.read()
            return answer.status, answer.headers.get(DROPPED_REASON, "")

    async def count(self, name: str, **labels: str) -> float:
        """Return one metric; 0 while it has no series."""
        async with self.http.get(f"http://{self._picker}/metrics") as answer:
            text = await answer.text()
        with suppress(KeyError):
            return metric(text, name, labels)
        return 0.0

    async def policy(self) -> str:
        """Return what decided last."""
        async with self.http.get(f"http://{self._picker}/decisions/last") as answer:
            decided: str = (await answer.json())["policy"]
            return decided


@asynccontextmanager
async def gateway(
    cluster: Cluster,
    folder: Path,
    plugins: str,
    monkeypatch: pytest.MonkeyPatch,
    *pods: dict[str, Any],
    answering: str,
    **pool: Any,
) -> AsyncIterator[Gateway]:
    """Start both.

    Args:
        cluster: where the picker finds its pool.
        folder: of its files.
        plugins: its ``EndpointPickerConfig``.
        monkeypatch: names the cluster.
        pods: of the pool.
        answering: address of the engine that Envoy knows.
        pool: fields of its InferencePool.
    """
    require_envoy()
    await cluster.install(objects.POOL_CRD, objects.OBJECTIVE_CRD, objects.REWRITE_CRD)
    await cluster.client.create(objects.pool(**pool))
    for pod in pods:
        await cluster.client.run_pod(pod, "127.0.0.1")
    url = f"{'https' if cluster.real else 'http'}://127.0.0.1:{cluster.server.port}"
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(folder / "kubeconfig", url, token=PICKER)))
    async with AsyncExitStack() as stack:
        picker = picker_by_flags(folder, plugins, "--pool-name", "pool", "--secure-serving=false")
        addresses = await stack.enter_async_context(picker)
        settings = EnvoySettings(
            endpoints=(Endpoint(answering),),
            variant=Variant.FULL_DUPLEX,
            listener_port=0,
            admin_port=0,
            picker_port=int(addresses["grpc"].rpartition(":")[2]),
            queue_wait_s=60.0,
        )
        envoy = await stack.enter_async_context(EnvoyProcess(settings, folder=folder / "envoy"))
        http = await stack.enter_async_context(aiohttp.ClientSession())
        yield Gateway(http, envoy.listener_url, loopback(addresses["http"]))
