"""A call on the picker's own transport, every message answered at once: what servers that decide nothing do.

Knows no gRPC library, so that a process can be set up before it loads one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from epp.pb.ext_proc_pb2 import ProcessingRequest, ProcessingResponse
from epp.server.handlers import Handler
from epp.transport.status import Status

if TYPE_CHECKING:
    from collections.abc import Callable

    from epp.transport.calls import Call
    from epp.transport.messages import Message


class Answering(Handler):
    """One call.

    Args:
        call: the transport's.
        answer: makes the reply to a message.
    """

    def __init__(self, call: Call, answer: Callable[[ProcessingRequest], ProcessingResponse]) -> None:
        self._call, self._answer = call, answer

    def message(self, message: Message) -> None:
        """A message has come."""
        request = ProcessingRequest.FromString(message)  # type: ignore[arg-type]  # stubs know bytes alone
        self._call.send(self._answer(request).SerializeToString())

    def ended(self) -> None:
        """The caller has said all."""
        self._call.finish(Status.OK)
