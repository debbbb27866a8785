"""gRPC messages cut from a stream's bytes: a flag, a length in four bytes, the message.

Owns the bytes of a message that has not come whole. One that lies within a piece is handed on as a view of
it, uncopied; one in several pieces is put together once, in a `Room` that many readers share, because it may
come as slowly as its sender likes. A message over its limit is refused by its length and its first bytes,
before the rest of it is kept. Compressed messages are refused: Envoy's gRPC client sends none, and a few
kilobytes of them unpack to megabytes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from epp.rpc.http2.status import Status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: A message as it is handed on; all of these are read by protobuf.
Message = bytes | bytearray | memoryview

PREFIX_BYTES = 5
_PREFIX = struct.Struct(">BL")
#: First bytes of a message that `BodilessLimit.is_body` is given.
BEGIN_BYTES = 8


class MessageError(Exception):
    """A call whose messages cannot be read.

    Args:
        status: that it ends with.
        words: for the other side.
    """

    def __init__(self, status: Status, words: str) -> None:
        self.status, self.words = status, words
        super().__init__(words)


class NoRoomError(Exception):
    """There is no room for what has come of a message; none of it is kept."""


class Room(Protocol):
    """Counts what many calls hold together of messages that wait."""

    def reserve(self, size: int) -> bool:
        """Hold bytes; False where there is no room."""

    def release(self, size: int) -> None:
        """Give back held bytes."""


class Unbounded:
    """Room for everything."""

    def reserve(self, size: int) -> bool:  # noqa: ARG002  # any
        """There is."""
        return True

    def release(self, size: int) -> None:
        """Forget them: nothing was counted."""


UNBOUNDED = Unbounded()


@dataclass(frozen=True, slots=True)
class BodilessLimit:
    """The limit of messages that carry no body.

    Attributes:
        max_bytes: longest such message.
        is_body: whether a message carries a body, by its length and its first `BEGIN_BYTES`; asked only of
            messages longer than `max_bytes`.
    """

    max_bytes: int
    is_body: Callable[[int, bytes], bool]

    def check(self, length: int, begin: bytes) -> None:
        """Check a message by its length and its first `BEGIN_BYTES`.

        Raises:
            MessageError: RESOURCE_EXHAUSTED, it is too long and carries no body.
        """
        if length > self.max_bytes and not self.is_body(length, begin):
            words = f"Received message without a body larger than max ({length} vs. {self.max_bytes})"
            raise MessageError(Status.RESOURCE_EXHAUSTED, words)


def prefix(length: int) -> bytes:
    """The prefix of an uncompressed message."""
    return _PREFIX.pack(0, length)


class MessageReader:
    """Cuts one call's messages.

    Args:
        max_bytes: longest message.
        room: what a message that has not come whole is held out of.
        bodiless: limit of messages without a body, None for none of its own.

    Attributes:
        room: as given.
        taken_bytes: of the room.
    """

    __slots__ = ("_bodiless", "_held", "_max_bytes", "_unchecked", "_wanted", "room", "taken_bytes")

    def __init__(self, max_bytes: int, room: Room = UNBOUNDED, bodiless: BodilessLimit | None = None) -> None:
        self._max_bytes, self.room, self._bodiless = max_bytes, room, bodiless
        self.taken_bytes = 0
        self._held = bytearray()
        self._wanted = PREFIX_BYTES
        self._unchecked = False  # a long message, by its first bytes

    @property
    def partial(self) -> bool:
        """Whether something has come that is no whole message yet."""
        return bool(self._held)

    def feed(self, piece: memoryview) -> Iterator[Message]:
        """Take a piece; the messages that are whole now.

        Raises:
            MessageError: one is too long, or cannot be understood.
            NoRoomError: of one that has not come whole.
        """
        at, end = 0, len(piece)
        while at < end:
            if not self._held and end - at >= PREFIX_BYTES:
                flag, length = _PREFIX.unpack_from(piece, at)
                self._check(flag, length)
                stop = at + PREFIX_BYTES + length
                if stop <= end:
                    message = piece[at + PREFIX_BYTES : stop]
                    if self._unchecked:
                        self._check_begin(length, message)
                    yield message
                    at = stop
                    continue
                self._wanted = PREFIX_BYTES + length
            size = min(self._wanted - len(self._held), end - at)
            self._held += piece[at : at + size]
            at += size
            if self._unchecked and len(self._held) >= min(self._wanted, PREFIX_BYTES + BEGIN_BYTES):
                self._check_begin(self._wanted - PREFIX_BYTES, memoryview(self._held)[PREFIX_BYTES:])
            if len(self._held) < self._wanted:
                continue
            if self._wanted == PREFIX_BYTES:
                flag, length = _PREFIX.unpack_from(self._held)
                self._check(flag, length)
                self._wanted += length
                if length:
                    continue
            whole, self._held, self._wanted = self._held, bytearray(), PREFIX_BYTES
            self.discard()
            yield memoryview(whole)[PREFIX_BYTES:]
        if self._held:
            more = len(self._held) - self.taken_bytes
            if not self.room.reserve(more):
                self.discard()
                raise NoRoomError
            self.taken_bytes += more

    def discard(self) -> None:
        """Hold nothing any more of a message that has not come whole."""
        if self._held:
            self._held, self._wanted = bytearray(), PREFIX_BYTES
        if self.taken_bytes:
            self.room.release(self.taken_bytes)
            self.taken_bytes = 0

    def _check(self, flag: int, length: int) -> None:
        if length > self._max_bytes:
            words = f"Received message larger than max ({length} vs. {self._max_bytes})"
            raise MessageError(Status.RESOURCE_EXHAUSTED, words)
        if flag:
            words = "a compressed message" if flag == 1 else f"a message with the flag {flag}"
            raise MessageError(Status.INTERNAL, f"{words} on a call that names no compression")
        self._unchecked = self._bodiless is not None and length > self._bodiless.max_bytes

    def _check_begin(self, length: int, message: memoryview) -> None:
        self._unchecked = False
        assert self._bodiless is not None  # noqa: S101  # `_check` has looked
        self._bodiless.check(length, bytes(message[:BEGIN_BYTES]))
