"""What Envoy does when memory or connections run out.

Long prompts make Envoy's memory: a body is held until its picker has answered and then, so that it can be
retried, until the first byte of the response. The worst case is `max_body_bytes` times the requests in that
state, and `max_heap_bytes` is where Envoy starts to refuse instead of dying.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from epp.envoy import messages as api

if TYPE_CHECKING:
    from epp.envoy.settings import EnvoySettings

_CONNECTIONS = 20_000
"""Client connections at once."""
_HEAP = "envoy.resource_monitors.fixed_heap"
_SHED = (
    ("envoy.overload_actions.shrink_heap", 0.85),
    ("envoy.overload_actions.disable_http_keepalive", 0.90),
    ("envoy.overload_actions.stop_accepting_requests", 0.95),
    ("envoy.overload_actions.stop_accepting_connections", 0.98),
)
"""Action and share of the heap at which it starts: give memory back, then refuse requests (503)."""


def watchdogs() -> api.bootstrap.Watchdogs:
    """Look at threads once a second: by default each wakes ten times, half of what an idle Envoy costs."""
    watchdog = api.bootstrap.Watchdog(miss_timeout=api.seconds(2), megamiss_timeout=api.seconds(5))
    return api.bootstrap.Watchdogs(main_thread_watchdog=watchdog, worker_watchdog=watchdog)


def overload_manager(settings: EnvoySettings) -> api.overload.OverloadManager:
    """Memory and connection limits."""
    connections = api.downstream_connections.DownstreamConnectionsConfig(
        max_active_downstream_connections=_CONNECTIONS
    )
    return api.overload.OverloadManager(
        refresh_interval=api.seconds(0.25),
        resource_monitors=[
            api.overload.ResourceMonitor(
                name=_HEAP,
                typed_config=api.pack(
                    api.fixed_heap.FixedHeapConfig(max_heap_size_bytes=settings.max_heap_bytes)
                ),
            ),
            api.overload.ResourceMonitor(
                name="envoy.resource_monitors.global_downstream_max_connections",
                typed_config=api.pack(connections),
            ),
        ],
        actions=[
            api.overload.OverloadAction(
                name=name,
                triggers=[
                    api.overload.Trigger(name=_HEAP, threshold=api.overload.ThresholdTrigger(value=share))
                ],
            )
            for name, share in _SHED
        ],
    )
