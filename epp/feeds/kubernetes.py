"""The cluster as the source of the pool: `epp.kube` joined to the pool, the metrics and readiness."""

from __future__ import annotations

import asyncio
import importlib.util
import re
import secrets
from typing import TYPE_CHECKING

from epp.errors import ConfigError
from epp.kube.api import KubeApi, Surroundings, namespace_of
from epp.kube.lease import KubeLeaseFeed
from epp.kube.reflector import Tools
from epp.kube.source import KubeSource

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from epp.clock import Clock
    from epp.cluster.leading import Leading
    from epp.config.kubernetes import Kubernetes
    from epp.feeds.pool import PoolFeed
    from epp.metrics.metrics import Metrics
    from epp.schedule.model_rules import ModelRules

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


class ClusterFeed(KubeSource):
    """Keeps the pool as a cluster says, while `run` runs.

    Args:
        settings: what to follow.
        base: folder that relative paths are relative to.
        source: name of the configuration file, for errors.
        pool: takes the endpoints.
        use_rules: takes the rules for models.
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
        use_rules: Callable[[ModelRules], None],
        metrics: Metrics,
        clock: Clock,
    ) -> None:
        require_library(source)
        around = Surroundings.here(base)
        self._api = KubeApi(settings, around)
        tools = Tools(self._api, _Counts(metrics), clock, asyncio.sleep, seed=secrets.randbits(63))
        namespace = self._namespace = namespace_of(settings, around)
        super().__init__(
            settings,
            namespace,
            tools,
            lambda found: pool.apply(found.specs, found.aliases),
            use_rules,
        )

    def lease(self, pool: str, leading: Leading, clock: Clock) -> KubeLeaseFeed:
        """Make a Lease decide who leads the pickers of a pool."""
        leading.lease = False
        return KubeLeaseFeed(
            self._api,
            self._namespace,
            f"gorgo-epp-{re.sub(r'[^a-z0-9-]', '-', pool.lower())}",
            holder=leading.name,
            clock=clock,
            able=lambda: leading.able,
            apply=lambda held: setattr(leading, "lease", held),
        )

    async def run(self) -> None:
        """Follow for ever."""
        try:
            await super().run()
        finally:
            await self._api.close()
