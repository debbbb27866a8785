"""Metrics of following a cluster; resources and reasons are from closed sets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import Counter, Gauge

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


class ClusterMetrics:
    """Counts what `epp.kube` does; the names are docs/metrics.md's."""

    def __init__(self, registry: CollectorRegistry) -> None:
        labels = ["resource"]
        self._ok = Gauge(
            "epp_kubernetes_ok",
            "1 while the API server lets the resource be followed.",
            labels,
            registry=registry,
        )
        self._lists = Counter(
            "epp_kubernetes_lists", "Complete lists of a resource.", labels, registry=registry
        )
        self._events = Counter("epp_kubernetes_events", "Changes told by watches.", labels, registry=registry)
        self._failures = Counter(
            "epp_kubernetes_failures",
            "Calls of the API server that failed and watches that broke; gone is a watch too old to resume,"
            " fault (of the pool) a pool that the picker could not make or take.",
            ["resource", "reason"],
            registry=registry,
        )

    def listed(self, resource: str) -> None:
        """A list arrived whole."""
        self._lists.labels(resource).inc()

    def event(self, resource: str) -> None:
        """A watch told of a change."""
        self._events.labels(resource).inc()

    def failed(self, resource: str, reason: str) -> None:
        """A call failed."""
        self._failures.labels(resource, reason).inc()

    def ok(self, resource: str, *, ok: bool) -> None:
        """Whether the resource can be followed now."""
        self._ok.labels(resource).set(ok)
