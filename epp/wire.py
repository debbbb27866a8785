"""Bytes that other processes or disks hand to this one, decoded whole and within bounds."""

from __future__ import annotations

import zlib
from typing import Protocol, TypeVar

import msgspec

from epp.errors import UnreadableError

_T_co = TypeVar("_T_co", covariant=True)


class _Decoder(Protocol[_T_co]):
    """A typed decoder of msgspec's."""

    def decode(self, data: bytes | memoryview, /) -> _T_co:
        """Decode."""
        ...


def read(decoder: _Decoder[_T_co], data: bytes | memoryview) -> _T_co:
    """Decode a message.

    Raises:
        UnreadableError: it is none, or a value is out of its bounds.
    """
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UnreadableError(str(error)) from None


def text(data: bytes) -> str:
    """Decode UTF-8.

    Raises:
        UnreadableError: it is none.
    """
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise UnreadableError(str(error)) from None


def unpack(data: bytes, most_bytes: int) -> bytes:
    """Decompress what zlib has compressed.

    Raises:
        UnreadableError: it is damaged, or longer than ``most_bytes`` once decompressed.
    """
    unpacking = zlib.decompressobj()
    try:
        found = unpacking.decompress(data, most_bytes + 1)
    except zlib.error as error:
        raise UnreadableError(str(error)) from None
    if not unpacking.eof or len(found) > most_bytes:
        raise UnreadableError(f"cut off, or longer than {most_bytes} bytes")
    return found
