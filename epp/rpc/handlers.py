"""What serves a gRPC call, whatever the transport under it.

Owns the contract between the transports (`epp.rpc.server`, `epp.rpc.grpcio_server`) and the
services. Rules for a handler:

* Its methods are called from the event loop, in order, and may answer at once, on the call itself. None of
  them waits; who has to keeps a task.
* `cancelled` comes last: the call is over and nothing that is sent on it goes anywhere. It comes also where
  the call was over already, whoever ended it, and the last that was sent on it did not go out.
* What a handler raises ends its call with INTERNAL and one entry in the log.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from epp.rpc.http2.status import Status

if TYPE_CHECKING:
    from epp.rpc.http2.connection import Call
    from epp.rpc.http2.messages import Message


class Handler:
    """Serves one call."""

    __slots__ = ()

    def message(self, message: Message) -> None:
        """Take a message; it is good until this returns."""

    def ended(self) -> None:
        """Note that the other side has sent its last."""

    def drained(self) -> None:
        """Note that all that was sent is on its way."""

    def no_room(self) -> None:
        """End the call, for want of room for what comes; without it the transport does."""

    def cancelled(self) -> None:
        """Note that the call is over."""


#: Makes what serves a call that has begun.
Serve = Callable[["Call"], Handler]


class Unary(Handler):
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
        """End the call: without a message there is nothing to answer."""
        self._call.finish(Status.INTERNAL, "a call without a message")
