"""What serves a gRPC call on the picker's own transport, whatever the transport under it.

Owns the contract between `epp.server.rpc_protocol`, which feeds handlers, and the services, and the small
services' handlers: health and the access log. Rules for a handler:

* `message`, `ended` and `cancelled` are called from the event loop, in order, and may answer at once, on the
  call itself. None of them waits; who has to keeps a task.
* `cancelled` comes last: the call is over and nothing that is sent on it goes anywhere. It comes also where
  the call was over already, whoever ended it, and the last that was sent on it did not go out.
* What a handler raises ends its call with INTERNAL and one entry in the log.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2

from epp.pb.access_log_pb2 import StreamAccessLogsResponse
from epp.server.health import MAX_WATCHES, TOO_MANY_WATCHES
from epp.transport.status import Status

if TYPE_CHECKING:
    from collections.abc import Callable

    from epp.server.als import AccessLogReceiver
    from epp.server.health import HealthNames
    from epp.transport.calls import Call
    from epp.transport.messages import Message


class Handler(Protocol):
    """One call being served."""

    def message(self, message: Message) -> None:
        """A message came; it is good until this returns."""

    def ended(self) -> None:
        """The other side has sent its last."""

    def drained(self) -> None:
        """All that was sent is on its way."""

    def no_room(self) -> None:
        """There is no room for what comes: the call ends, with RESOURCE_EXHAUSTED unless it is ended here."""

    def cancelled(self) -> None:
        """The call is over."""


class Serve(Protocol):
    """Makes what serves a call; ``flush`` writes what was sent where nothing is just being read."""

    def __call__(self, call: Call, flush: Callable[[], None], /) -> Handler:
        """A call has begun."""


class Unary:
    """A call of one message and one answer.

    Args:
        call: the call.
        answer: from message to answer; may end the call with another status itself, and then gives None.
    """

    def __init__(self, call: Call, answer: Callable[[Call, Message], bytes | None]) -> None:
        self._call, self._answer = call, answer

    def message(self, message: Message) -> None:
        """Answer it; a second one finds the call over."""
        if not self._call.over:
            answer = self._answer(self._call, message)
            if answer is not None:
                self._call.finish(Status.OK, last=answer)

    def ended(self) -> None:
        """Without a message there is nothing to answer."""
        self._call.finish(Status.INTERNAL, "a call without a message")

    def drained(self) -> None:
        """Nothing waits for that."""

    def no_room(self) -> None:
        """The status says it."""

    def cancelled(self) -> None:
        """Nothing is kept."""


class Watching(Protocol):
    """An open call of the health service's `Watch`, on either transport."""

    def leave(self) -> None:
        """The server stops."""


class Watch:
    """A call of the health service's `Watch`: the state under a name, and every change of it."""

    def __init__(
        self, call: Call, flush: Callable[[], None], names: HealthNames, watchers: set[Watching]
    ) -> None:
        self._call, self._flush, self._names, self._watchers = call, flush, names, watchers
        self._task: asyncio.Task[None] | None = None

    def message(self, message: Message) -> None:
        """Which name is asked for; one behind a message that ended the call asks nothing."""
        request = None if self._call.over else _health_request(self._call, message)
        if request is None or self._task is not None:
            return
        if len(self._watchers) >= MAX_WATCHES:
            self._call.finish(Status.RESOURCE_EXHAUSTED, TOO_MANY_WATCHES)
        else:
            self._task = asyncio.ensure_future(self._tell(request.service))
            self._watchers.add(self)

    def ended(self) -> None:
        """The other side asks once and listens."""
        if self._task is None:
            self._call.finish(Status.INTERNAL, "a call without a message")

    def drained(self) -> None:
        """Nothing waits for that."""

    def no_room(self) -> None:
        """The status says it."""

    def cancelled(self) -> None:
        """Nobody listens any more."""
        self._watchers.discard(self)
        if self._task is not None:
            self._task.cancel()

    def leave(self) -> None:
        """The server stops."""
        self._call.finish(Status.UNAVAILABLE, "the server stops")
        self._flush()
        self.cancelled()

    async def _tell(self, name: str) -> None:
        async for answer in self._names.watch(name):
            self._call.send(answer.SerializeToString())
            self._flush()


def health_service(names: HealthNames, watchers: set[Watching]) -> dict[str, Serve]:
    """The methods of the health service.

    Args:
        names: what is told under which name.
        watchers: holds those who watch, so that a stop can end them.
    """

    def check(call: Call, message: Message) -> bytes | None:
        request = _health_request(call, message)
        if request is None:
            return None
        answer = names.check(request.service)
        if answer is None:
            call.finish(Status.NOT_FOUND, names.unknown(request.service))
            return None
        return bytes(answer.SerializeToString())

    def listed(_call: Call, _message: Message) -> bytes | None:
        return bytes(names.listed().SerializeToString())

    service = "/grpc.health.v1.Health/"
    return {
        service + "Check": lambda call, _: Unary(call, check),
        service + "List": lambda call, _: Unary(call, listed),
        service + "Watch": lambda call, flush: Watch(call, flush, names, watchers),
    }


class AccessLogCall:
    """One stream of Envoy's access log. It has no end of its own: `AccessLogReceiver.end_streams` ends it."""

    def __init__(self, call: Call, flush: Callable[[], None], receiver: AccessLogReceiver) -> None:
        self._call, self._flush, self._receiver = call, flush, receiver
        receiver.opened(self)

    def message(self, message: Message) -> None:
        """Reports."""
        self._receiver.take(message)

    def ended(self) -> None:
        """No more reports will come."""
        self.end()

    def drained(self) -> None:
        """Nothing waits for that."""

    def no_room(self) -> None:
        """The status says it."""

    def cancelled(self) -> None:
        """The proxy has gone."""
        self._receiver.closed(self)

    def end(self) -> None:
        """End the stream with status OK."""
        self._receiver.closed(self)
        self._call.finish(Status.OK, last=StreamAccessLogsResponse().SerializeToString())
        self._flush()


def _health_request(call: Call, message: Message) -> Any:
    """What is asked, None when it cannot be read and the call has ended with that."""
    try:
        return health_pb2.HealthCheckRequest.FromString(message)
    except DecodeError:
        call.finish(Status.INTERNAL, "a message that is none of this method's")
        return None
