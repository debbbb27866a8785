"""One stream's state: what each side has ended, its windows, what waits. And which streams ended lately."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections import deque


@dataclass(slots=True)
class Waiting:
    """Something to be sent once there is room for it.

    Attributes:
        data: of a DATA frame; where it is None, ``block`` is sent.
        block: trailers.
        end: whether the stream ends with it.
        taken_bytes: of the room that it is held out of.
    """

    data: memoryview | None
    block: bytes
    end: bool
    taken_bytes: int = 0


class Stream:
    """One stream. Changed by the connection and by what sends for it, read by others.

    Args:
        number: the stream's.
        send_window: bytes that the other side takes.
        receive_window: bytes that it may send.
        expected_bytes: what its ``content-length`` says, negative for nothing.

    Attributes:
        ended_there: the other side has ended it.
        over: it is gone: ended by both, or reset.
        unsent: it went while something waited to be sent on it.
        held: what comes is not to be made up for by larger windows, because nobody takes it for now.
        owed: bytes received since its window was last enlarged.
        withheld: of them, those that the connection's window was not enlarged by either, because it is held.
        received: whether it has carried anything.
        owner: whose it is, for the layer above.
        taken_bytes: of the room, while it is open.
    """

    __slots__ = (
        "ended_there",
        "expected_bytes",
        "held",
        "number",
        "over",
        "owed",
        "owner",
        "receive_window",
        "received",
        "send_window",
        "taken_bytes",
        "unsent",
        "waiting",
        "withheld",
    )

    def __init__(
        self, number: int, *, send_window: int, receive_window: int, expected_bytes: int = -1
    ) -> None:
        self.number = number
        self.send_window, self.receive_window = send_window, receive_window
        self.expected_bytes = expected_bytes
        self.ended_there = self.over = self.held = self.received = self.unsent = False
        self.owed = self.withheld = self.taken_bytes = 0
        self.waiting: deque[Waiting] | None = None
        self.owner: Any = None


class Lately(dict[int, None]):
    """Numbers of streams, at least the newest so many; each frame of a flood may ask for one.

    Args:
        least: how many are remembered.
    """

    __slots__ = ("_least",)

    def __init__(self, least: int) -> None:
        super().__init__()
        self._least = least

    def add(self, number: int) -> None:
        """Remember it, and now and then forget the older half."""
        if len(self) >= 2 * self._least:
            newest = list(self)[self._least :]
            self.clear()
            self.update(dict.fromkeys(newest))
        self[number] = None
