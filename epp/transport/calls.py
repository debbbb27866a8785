"""gRPC calls on an HTTP/2 connection: one stream is one call; what comes of it are events.

* A call's events end with `CallCancelled`, exactly once, unless the layer above called `Call.finish`. If the
  stream then goes while some of the answer still waits to be sent, it comes after all.
* The last message and the status are one write: they stand side by side in the output.
* What is sent on a call that is over is dropped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from epp.transport.frames import ErrorCode
from epp.transport.messages import MessageReader, prefix
from epp.transport.status import HEAD_BLOCK, Status, trailers

if TYPE_CHECKING:
    from collections import deque

    from epp.transport.connection import Connection
    from epp.transport.headers import RequestHead
    from epp.transport.messages import Message, MessageError, Room
    from epp.transport.sending import Waiting


class Call:
    """One call with its stream.

    Args:
        connection: it came on.
        number: of its stream.
        head: of its request.
        reader: of its messages.
        send_window: bytes that the other side takes.
        receive_window: bytes that it may send.

    Attributes:
        path: ``/package.Service/Method``.
        owner: for the layer above.
        over: whether it has ended, in either way; what was sent may still wait.
        error: why its messages could not be read, None while they could.
        started: whether the layer above hears of it.
        deaf: whether further messages are dropped.
        refusal: HTTP status and text for a request that is no gRPC.
        expected_bytes: what is missing of its ``content-length``, negative where there is none.
        ended_there: whether the other side has ended the stream.
        gone: whether the stream is over: ended by both, or reset.
        unsent: whether it went while something waited to be sent.
        held: whether its receive window stays as it is, because nobody takes what comes.
        received: whether it has carried data.
        taken_bytes: of the room, while it is open.
        waiting: what waits to be sent.
    """

    __slots__ = (
        "_begun", "_connection", "deaf", "ended_there", "error", "expected_bytes", "gone", "held", "number",
        "over", "owner", "path", "reader", "receive_window", "received", "refusal", "send_window", "started",
        "taken_bytes", "unsent", "waiting",
    )  # fmt: skip

    def __init__(
        self,
        connection: Connection,
        number: int,
        head: RequestHead,
        reader: MessageReader,
        *,
        send_window: int,
        receive_window: int,
    ) -> None:
        self._connection, self.number, self.path, self.reader = connection, number, head.path, reader
        self.send_window, self.receive_window = send_window, receive_window
        self.expected_bytes = head.content_length
        self._begun = self.over = self.started = self.deaf = False
        self.ended_there = self.gone = self.unsent = self.held = self.received = False
        self.taken_bytes = 0
        self.waiting: deque[Waiting] | None = None
        self.refusal: tuple[bytes, bytes] | None = None
        self.owner: Any = None
        self.error: MessageError | None = None

    @property
    def blocked(self) -> bool:
        """Whether something that was sent waits for a window; `CallDrained` comes when it no longer does."""
        return bool(self.waiting)

    @property
    def room(self) -> Room:
        """What its connection holds messages out of."""
        return self.reader.room

    def send(self, message: bytes) -> None:
        """Send a message. One that is too long, or must wait and finds no room, ends the call instead."""
        if self.over:
            return
        longest = self._connection.max_send_bytes
        if len(message) > longest:
            words = f"Sent message larger than max ({len(message)} vs. {longest})"
            self.finish(Status.RESOURCE_EXHAUSTED, words)
            return
        sender = self._connection.sender
        if not self._begun:
            self._begun = True
            sender.headers(self, HEAD_BLOCK)
        if not sender.data(self, message, prefix=prefix(len(message))):
            self.end()
            self.reset(ErrorCode.ENHANCE_YOUR_CALM)

    def finish(self, status: Status, words: str = "", *, last: bytes | None = None) -> bool:
        """End the call, with a last message where there is one.

        Returns:
            False where the last message is too long, or must wait and finds no room.
        """
        if self.over:
            return True
        if last is not None:
            self.send(last)
            if self.over:
                return False
        self.end()
        head = b"" if self._begun else HEAD_BLOCK
        self._connection.sender.headers(self, head + trailers(status, words), end=True)
        return True

    def flush(self) -> None:
        """Write what was sent, unless a read is being played: then it is written with the rest."""
        self._connection.flush()

    def end(self) -> None:
        """Mark it as over, and give back what has come of a message."""
        self.over = True
        self.reader.discard()

    def reset(self, code: ErrorCode) -> None:
        """Reset the stream, with all that waits to be sent on it; no event comes of it."""
        self._connection.reset(self, code)

    def hold(self) -> None:
        """Let the other side fill the stream's window, and send no more."""
        self.held = True

    def release(self) -> None:
        """Let it send again."""
        self.held = False
        self._connection.enlarge(self)


@dataclass(slots=True)
class CallEvent:
    """What has become of a call."""

    call: Call


class CallStarted(CallEvent):
    """A call for a path that is served."""


@dataclass(slots=True)
class MessageReceived(CallEvent):
    """A message, good until the next bytes are received."""

    message: Message


class CallEnded(CallEvent):
    """No message will come any more; the call is still to be finished."""


class CallDrained(CallEvent):
    """All that was sent is on its way."""


class NoRoom(CallEvent):
    """What comes finds no room: no message will come any more; the call is still to be finished."""


class CallCancelled(CallEvent):
    """The call was ended by the other side, or the last of it was not sent."""
