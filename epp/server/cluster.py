"""The cluster as the source of the pool: `epp.kube` joined to the pool, the metrics and readiness."""

from __future__ import annotations

import asyncio
import importlib.util
import secrets
from typing import TYPE_CHECKING

from epp.errors import ConfigError
from epp.kube.api import KubeApi
from epp.kube.credentials import Surroundings, namespace_of
from epp.kube.reflector import Tools
from epp.kube.source import KubeSource

if TYPE_CHECKING:
    from pathlib import Path

    from epp.clock import Clock
    from epp.config.kubernetes import Kubernetes
    from epp.kube.reconcile import Discovered
    from epp.server.metrics import Metrics
    from epp.server.pool import PoolFeed

_LIBRARY = "kubernetes_asyncio"


def require_library(source: str) -> None:
    """Refuse `pool.kubernetes` without its client library.

    Raises:
        ConfigError: it is not installed.
    """
    if importlib.util.find_spec(_LIBRARY) is None:
        problem = f"needs the library {_LIBRARY}, which is not installed"
        raise ConfigError(source, "pool.kubernetes", problem, "pip install 'gorgo-epp[kubernetes]'")


class _Counts:
    """Shows what happens to resources of the cluster; names and reasons are from closed sets."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def failed(self, resource: str, reason: str) -> None:
        """Count a call that failed."""
        self._metrics.value("epp_kubernetes_failures_total", resource, reason).inc()

    def ok(self, resource: str, *, ok: bool) -> None:
        """Show whether the resource can be followed now."""
        self._metrics.value("epp_kubernetes_ok", resource).value = float(ok)


class ClusterFeed:
    """Keeps the pool as a cluster says, while `run` runs.

    Args:
        settings: what to follow.
        base: folder that relative paths are relative to.
        source: name of the configuration file, for errors.
        pool: takes the endpoints.
        metrics: counted into.
        clock: the time.

    Raises:
        ConfigError: the client library is not installed.
    """

    def __init__(
        self,
        settings: Kubernetes,
        *,
        base: Path,
        source: str,
        pool: PoolFeed,
        metrics: Metrics,
        clock: Clock,
    ) -> None:
        require_library(source)
        self._pool = pool
        around = Surroundings.here(base)
        self._api = KubeApi(settings, around)
        tools = Tools(self._api, _Counts(metrics), clock, asyncio.sleep, seed=secrets.randbits(63))
        self._source = KubeSource(settings, namespace_of(settings, around), tools, self._apply)

    async def run(self) -> None:
        """Follow for ever."""
        try:
            await self._source.run()
        finally:
            await self._api.close()

    def not_ready(self) -> str:
        """Say why requests cannot be placed yet, ``""`` once the cluster has said what the pool is.

        An empty pool is ready: it may be scaled from nothing, and requests are refused one by one until then.
        """
        return self._source.not_ready()

    def priority(self, objective: str) -> int:
        """Return the priority of an InferenceObjective, 0 for one that does not exist."""
        return self._source.priority(objective)

    def _apply(self, found: Discovered) -> None:
        self._pool.apply(found.specs, found.aliases)
