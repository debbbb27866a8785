"""The gRPC health service: one state, asked for under several names, on one or two listeners.

Owns the state and its watchers. Names (llm-d's and Envoy's, source [E]):

* ``liveness``: SERVING as long as the process answers. llm-d without leader election lets it follow the pool
  and the drain, so that a liveness probe kills a picker that waits for its pool or drains; not so here.
* ``""``, ``readiness``, ``inference-extension``, ``envoy.service.ext_proc.v3.ExternalProcessor``: readiness.
* Any other name: readiness on the listener for health alone, where llm-d answers any name; NOT_FOUND on the
  ext_proc listener, as the health protocol says.

`Watch` is served, which llm-d does not; `List` tells the known names.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

EXT_PROC = "envoy.service.ext_proc.v3.ExternalProcessor"
LIVENESS = "liveness"
#: Names under which readiness is asked for.
READINESS = ("", "readiness", "inference-extension", EXT_PROC)

_Response = health_pb2.HealthCheckResponse


class HealthState:
    """Whether requests should come here, and who waits to be told of a change."""

    def __init__(self) -> None:
        self.serving = False
        self._changed = asyncio.Condition()

    async def set_serving(self, *, serving: bool) -> None:
        """Tell everybody who watches."""
        if serving == self.serving:
            return
        async with self._changed:
            self.serving = serving
            self._changed.notify_all()

    async def change_from(self, serving: bool) -> bool:
        """Wait until the state is another; the new one."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.serving != serving)
        return self.serving


class Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # generated without types
    """The service on one listener.

    Args:
        state: shared by the listeners.
        any_name: whether a name that is not known asks for readiness.
    """

    def __init__(self, state: HealthState, *, any_name: bool) -> None:
        self._state, self._any_name = state, any_name

    async def Check(self, request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:  # noqa: N802
        """The state under a name."""
        status = self._status(request.service, serving=self._state.serving)
        if status is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no service {request.service!r} here")
        return _Response(status=status)

    async def Watch(  # noqa: N802
        self, request: Any, _context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[Any]:
        """The state under a name, and every change of it."""
        name, serving = request.service, self._state.serving
        while True:
            status = self._status(name, serving=serving)
            yield _Response(status=_Response.SERVICE_UNKNOWN if status is None else status)
            if name == LIVENESS or status is None:  # neither changes
                await asyncio.Event().wait()
            serving = await self._state.change_from(serving)

    async def List(self, _request: Any, _context: grpc.aio.ServicerContext[Any, Any]) -> Any:  # noqa: N802
        """The state under every known name."""
        serving = self._state.serving
        return health_pb2.HealthListResponse(
            statuses={
                name: _Response(status=self._status(name, serving=serving)) for name in (*READINESS, LIVENESS)
            }
        )

    def _status(self, name: str, *, serving: bool) -> Any:
        if name == LIVENESS:
            return _Response.SERVING
        if name not in READINESS and not self._any_name:
            return None
        return _Response.SERVING if serving else _Response.NOT_SERVING
