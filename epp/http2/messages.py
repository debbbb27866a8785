"""gRPC messages cut from a stream's bytes: a flag, a length in four bytes, the message.

Owns the bytes of a message that has not come whole. One that lies within a piece is handed on as a view of
it, uncopied; one in several pieces is put together once, in a `Room` that many readers share, because it may
come as slowly as its sender likes. A message that is too long is refused by its length, before anything of it
is kept, and a compressed one while it is unpacked: each when it is taken and no earlier, because what one
read brings may be a thousand times as much.
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, Protocol

from epp.http2.status import Status

if TYPE_CHECKING:
    from collections.abc import Iterator

#: A message as it is handed on; all of these are read by protobuf.
Message = bytes | bytearray | memoryview

PREFIX_BYTES = 5
_PREFIX = struct.Struct(">BL")
#: What zlib is to expect, by the name of the encoding.
_WINDOW_BITS = {b"gzip": 16 + zlib.MAX_WBITS, b"deflate": zlib.MAX_WBITS}


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
    """What many calls may hold together of messages that nobody has taken yet."""

    def take_part(self, size: int) -> bool:
        """Hold so many bytes more; False where there is no room."""

    def give_back(self, size: int) -> None:
        """So many are held no more."""


class Unbounded:
    """Room for everything."""

    def take_part(self, size: int) -> bool:  # noqa: ARG002  # any
        """There is."""
        return True

    def give_back(self, size: int) -> None:
        """Nothing was counted."""


UNBOUNDED = Unbounded()


class Packed:
    """A message that is to be unpacked.

    Args:
        message: as it came.
        bits: what zlib is to expect.
        max_bytes: longest message.
    """

    __slots__ = ("_bits", "_max_bytes", "_message")

    def __init__(self, message: memoryview, bits: int, max_bytes: int) -> None:
        self._message, self._bits, self._max_bytes = message, bits, max_bytes

    def unpacked(self) -> Message:
        """The message.

        Raises:
            MessageError: it is too long, or cannot be unpacked.
        """
        unpacking = zlib.decompressobj(self._bits)
        try:
            plain = unpacking.decompress(self._message, self._max_bytes + 1)
        except zlib.error as error:
            raise MessageError(Status.INTERNAL, f"a message that cannot be unpacked: {error}") from error
        if len(plain) > self._max_bytes:
            words = f"Received message larger than max (unpacked, {self._max_bytes})"
            raise MessageError(Status.RESOURCE_EXHAUSTED, words)
        if not unpacking.eof:
            raise MessageError(Status.INTERNAL, "a message whose compression breaks off")
        return plain


def prefix(length: int) -> bytes:
    """What stands before a message that is not compressed."""
    return _PREFIX.pack(0, length)


class MessageReader:
    """Cuts one call's messages.

    Args:
        max_bytes: longest message, as it is and unpacked.
        encoding: what ``grpc-encoding`` says.
        room: what a message that has not come whole is held out of.

    Attributes:
        taken_bytes: of the room.

    Raises:
        MessageError: an encoding that is not known here.
    """

    __slots__ = ("_bits", "_held", "_max_bytes", "_room", "_wanted", "taken_bytes")

    def __init__(self, max_bytes: int, encoding: bytes = b"identity", room: Room = UNBOUNDED) -> None:
        self._max_bytes, self._room = max_bytes, room
        self.taken_bytes = 0
        self._bits = _WINDOW_BITS.get(encoding, 0)
        if not self._bits and encoding != b"identity":
            shown = encoding[:60].decode("latin-1")
            raise MessageError(Status.UNIMPLEMENTED, f"messages compressed as {shown!r} are not understood")
        self._held = bytearray()
        self._wanted = PREFIX_BYTES

    @property
    def partial(self) -> bool:
        """Whether something has come that is no whole message yet."""
        return bool(self._held)

    def feed(self, piece: memoryview) -> Iterator[Message | Packed]:
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
                    yield self._told(flag, piece[at + PREFIX_BYTES : stop])
                    at = stop
                    continue
                self._wanted = PREFIX_BYTES + length
            size = min(self._wanted - len(self._held), end - at)
            self._held += piece[at : at + size]
            at += size
            if len(self._held) < self._wanted:
                continue
            flag, length = _PREFIX.unpack_from(self._held)
            if self._wanted == PREFIX_BYTES:
                self._check(flag, length)
                self._wanted += length
                if length:
                    continue
            whole, self._held, self._wanted = self._held, bytearray(), PREFIX_BYTES
            if self.taken_bytes:
                self.let_go()
            yield self._told(flag, memoryview(whole)[PREFIX_BYTES:])
        if self._held:
            more = len(self._held) - self.taken_bytes
            if not self._room.take_part(more):
                self.let_go()
                raise NoRoomError
            self.taken_bytes += more

    def let_go(self) -> None:
        """Hold nothing any more of a message that has not come whole."""
        self._held, self._wanted = bytearray(), PREFIX_BYTES
        self._room.give_back(self.taken_bytes)
        self.taken_bytes = 0

    def _check(self, flag: int, length: int) -> None:
        if length > self._max_bytes:
            words = f"Received message larger than max ({length} vs. {self._max_bytes})"
            raise MessageError(Status.RESOURCE_EXHAUSTED, words)
        if flag > 1:
            raise MessageError(Status.INTERNAL, f"a message with the flag {flag}")
        if flag and not self._bits:
            raise MessageError(Status.INTERNAL, "a compressed message on a call that names no compression")

    def _told(self, flag: int, message: memoryview) -> Message | Packed:
        return Packed(message, self._bits, self._max_bytes) if flag else message
