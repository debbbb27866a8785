"""A watch on which nothing happens: API servers send no bookmark before the first event."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epp.config.kubernetes import Kubernetes
from tests.kit.kubefollow import following, kubeconfig, nowhere
from tests.kit.kubeserver import KubeServer
from tests.kit.logs import own_lines

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


async def test_a_silent_watch_is_resumed_and_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("epp.kube.api.SILENCE_S", 1.0)
    monkeypatch.setattr("epp.kube.reflector.SHORT_S", 0.5)
    caplog.set_level("INFO")
    server = KubeServer()
    await server.start()
    path = kubeconfig(tmp_path / "config", server.url)
    settings = Kubernetes(selector="app=llm", target_ports=[8000], kubeconfig=str(path), watch_nodes=False)
    async with following(settings, nowhere(tmp_path)) as picker:
        await picker.until(lambda: sum("watch=true" in request for request in server.requests) > 2)
        assert (picker.seen.failures, picker.api.lists["pods"]) == ({}, 1)
        assert ("pods", False) not in picker.seen.ever
    assert own_lines(caplog) == []
    await server.stop()
