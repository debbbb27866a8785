"""The gRPC health service's answers: one state, asked for under several names, on one or two listeners.

Owns the state and its watchers, not the wire. Names (llm-d's and Envoy's, source [E]):

* ``liveness``: SERVING until the event loop has stood still for `listen.stall_limit_s`. llm-d without leader
  election lets it follow the pool and the drain, so that a liveness probe kills a picker that waits for its
  pool or drains; not so here.
* ``""``, ``readiness``, ``inference-extension``, ``envoy.service.ext_proc.v3.ExternalProcessor``: readiness.
* Any other name: readiness on the listener for health alone, where llm-d answers any name; NOT_FOUND on the
  ext_proc listener, as the health protocol says.

`Watch` is served, which llm-d does not; `List` tells the known names.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from grpc_health.v1 import health_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

EXT_PROC = "envoy.service.ext_proc.v3.ExternalProcessor"
LIVENESS = "liveness"
MAX_WATCHES = 1024
"""Open calls of `Watch` on a listener: each keeps a task. Proxies and probes that watch open one each."""
TOO_MANY_WATCHES = f"{MAX_WATCHES} calls of Watch are open, and no more are served"
#: Names under which readiness is asked for.
READINESS = ("", "readiness", "inference-extension", EXT_PROC)

_Response = health_pb2.HealthCheckResponse


class HealthState:
    """Whether requests should come here and the process should live, and who watches the former.

    Belongs to one event loop.
    """

    def __init__(self) -> None:
        self.serving, self.live = False, True
        self._changed = asyncio.Event()

    def update(self, *, serving: bool, live: bool = True) -> None:
        """Set the state and wake everybody who watches."""
        self.live = live
        if serving != self.serving:
            self.serving = serving
            changed, self._changed = self._changed, asyncio.Event()
            changed.set()

    async def change_from(self, serving: bool) -> bool:
        """Wait until the state is another; the new one."""
        while self.serving == serving:
            await self._changed.wait()
        return self.serving


class HealthNames:
    """What one listener answers. Answers are messages of the health protocol, which has no types here.

    Args:
        state: shared by the listeners.
        any_name: whether a name that is not known asks for readiness.
    """

    def __init__(self, state: HealthState, *, any_name: bool) -> None:
        self._state, self._any_name = state, any_name

    def check(self, name: str) -> Any:
        """The state under a name, None for one that is unknown."""
        status = self._status(name, serving=self._state.serving)
        return None if status is None else _Response(status=status)

    def unknown(self, name: str) -> str:
        """What to say of such a name."""
        return f"no service {name!r} here"

    def listed(self) -> Any:
        """The state under every known name."""
        serving = self._state.serving
        return health_pb2.HealthListResponse(
            statuses={
                name: _Response(status=self._status(name, serving=serving)) for name in (*READINESS, LIVENESS)
            }
        )

    async def watch(self, name: str) -> AsyncIterator[Any]:
        """The state under a name, and every change of it; no end."""
        serving = self._state.serving
        while True:
            status = self._status(name, serving=serving)
            yield _Response(status=_Response.SERVICE_UNKNOWN if status is None else status)
            if name == LIVENESS or status is None:  # a process whose liveness changes ends
                await asyncio.Event().wait()
            serving = await self._state.change_from(serving)

    def _status(self, name: str, *, serving: bool) -> Any:
        if name == LIVENESS:
            return _Response.SERVING if self._state.live else _Response.NOT_SERVING
        if name not in READINESS and not self._any_name:
            return None
        return _Response.SERVING if serving else _Response.NOT_SERVING
