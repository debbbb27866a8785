"""The gRPC health service: one state, asked for under several names, on one or two listeners.

Names (llm-d's and Envoy's, source [E]):

* ``liveness``: SERVING until the event loop has stood still for `listen.stall_limit_s`. llm-d without leader
  election lets it follow the pool and the drain, so that a liveness probe kills a picker that waits for its
  pool or drains; not so here.
* ``""``, ``readiness``, ``inference-extension``, ``envoy.service.ext_proc.v3.ExternalProcessor``: readiness.
* Any other name: readiness on the listener for health alone, where llm-d answers any name; NOT_FOUND on the
  ext_proc listener, as the health protocol says.

`Watch` is served, which llm-d does not; `List` has the known names.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from google.protobuf.message import DecodeError

from epp.pb import health_pb2
from epp.request.ext_proc import EXT_PROC
from epp.rpc.handlers import Handler, Unary
from epp.rpc.http2.status import Status

if TYPE_CHECKING:
    from collections.abc import Callable

    from epp.rpc.handlers import Serve
    from epp.rpc.http2.connection import Call
    from epp.rpc.http2.messages import Message

LIVENESS = "liveness"
#: Open calls of `Watch` on a listener: each keeps a task. Proxies and probes that watch open one each.
MAX_WATCHES = 1024
#: Names under which readiness is asked for.
READINESS = ("", "readiness", "inference-extension", EXT_PROC)

_Response = health_pb2.HealthCheckResponse


class HealthState:
    """Whether requests should come here and the process should live, and who watches the former.

    Belongs to one event loop.

    Attributes:
        watches: open calls of `Watch`.
    """

    def __init__(self) -> None:
        self.serving, self.live = False, True
        self.watches: set[Watch] = set()
        self._changed = asyncio.Event()

    def update(self, *, serving: bool, live: bool = True) -> None:
        """Set the state and wake everybody who watches."""
        self.live = live
        if serving != self.serving:
            self.serving = serving
            changed, self._changed = self._changed, asyncio.Event()
            changed.set()

    async def change_from(self, serving: bool) -> None:
        """Wait until the state is another."""
        while self.serving == serving:
            await self._changed.wait()

    def end_watches(self) -> None:
        """End the open calls of `Watch`: the server stops."""
        for watch in list(self.watches):
            watch.stop()


class Watch(Handler):
    """A call of `Watch`: the state under a name, and every change of it."""

    def __init__(self, call: Call, state: HealthState, status: Callable[[str], Any]) -> None:
        self._call, self._state, self._status = call, state, status
        self._task: asyncio.Task[None] | None = None

    def message(self, message: Message) -> None:
        """Begin to watch a name; a message behind one that ended the call begins nothing."""
        name = None if self._call.over else _name(self._call, message)
        if name is None or self._task is not None:
            return
        if len(self._state.watches) >= MAX_WATCHES:
            words = f"{MAX_WATCHES} calls of Watch are open, and no more are served"
            self._call.finish(Status.RESOURCE_EXHAUSTED, words)
        else:
            self._task = asyncio.ensure_future(self._watch(name))
            self._state.watches.add(self)

    def ended(self) -> None:
        """Go on: the other side asks once and listens."""
        if self._task is None:
            self._call.finish(Status.INTERNAL, "a call without a message")

    def cancelled(self) -> None:
        """Watch no longer."""
        self._state.watches.discard(self)
        if self._task is not None:
            self._task.cancel()

    def stop(self) -> None:
        """End the call."""
        self._call.finish(Status.UNAVAILABLE, "the server stops")
        self._call.flush()
        self.cancelled()

    async def _watch(self, name: str) -> None:
        while True:
            serving, status = self._state.serving, self._status(name)
            answer = _Response(status=_Response.SERVICE_UNKNOWN if status is None else status)
            self._call.send(answer.SerializeToString())
            self._call.flush()
            if name == LIVENESS or status is None:  # a process whose liveness changes ends
                return
            await self._state.change_from(serving)


def health_service(state: HealthState, *, any_name: bool) -> dict[str, Serve]:
    """Make the methods of the health service; ``any_name`` that is not known may ask for readiness."""

    def status(name: str) -> Any:
        if name != LIVENESS and name not in READINESS and not any_name:
            return None
        good = state.live if name == LIVENESS else state.serving
        return _Response.SERVING if good else _Response.NOT_SERVING

    def check(call: Call, message: Message) -> bytes | None:
        name = _name(call, message)
        if name is None:
            return None
        found = status(name)
        if found is None:
            call.finish(Status.NOT_FOUND, f"no service {name!r} here")
            return None
        return bytes(_Response(status=found).SerializeToString())

    def listed(_call: Call, _message: Message) -> bytes:
        found = {name: _Response(status=status(name)) for name in (*READINESS, LIVENESS)}
        return bytes(health_pb2.HealthListResponse(statuses=found).SerializeToString())

    service = "/grpc.health.v1.Health/"
    return {
        service + "Check": lambda call: Unary(call, check),
        service + "List": lambda call: Unary(call, listed),
        service + "Watch": lambda call: Watch(call, state, status),
    }


def _name(call: Call, message: Message) -> str | None:
    """The service that is asked for; None when the message cannot be read, which ends the call."""
    try:
        return str(health_pb2.HealthCheckRequest.FromString(bytes(message)).service)
    except DecodeError:
        call.finish(Status.INTERNAL, "a message that is none of this method's")
        return None
