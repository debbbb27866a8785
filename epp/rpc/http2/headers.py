"""Header blocks: HPACK, what makes a request malformed, and the few blocks that we send.

Owns the connection's HPACK state. Rules:

* A proxy sends the same ten-odd fields on every stream, and once they are in the dynamic table the block's
  bytes are the same, too. So a block that left the table as it was is remembered with what it means, until
  the table changes: a dictionary's lookup instead of a decoding.
* We send without a dynamic table: our blocks are made once, and are the same on every connection.
* A field that HTTP/2 does not allow makes the stream an error, a block that cannot be decoded the connection,
  because both sides' tables differ from there on (RFC 9113 section 8.2, RFC 7541).
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpack import Decoder, HPACKDecodingError, HPACKError
from hpack.table import HeaderTable

from epp.rpc.http2.frames import ErrorCode, ProtocolError, StreamError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Fields = list[tuple[bytes, bytes]]

#: A block that says more than this is not decoded to the end: a thousand short fields, which take 5 ms.
_MAX_DECODED_BYTES = 32 * 1024
#: Changes of the table's size that a block may begin with (RFC 7541 section 4.2). Each is one byte.
_MAX_RESIZES = 2
#: 8 bytes of Huffman codes cost about as much as a field, and so do 256 bytes of names and values to check.
_BLOCK_UNIT_BITS, _DECODED_UNIT_BITS = 3, 8
_KNOWN_BLOCKS = 64
_FIELD_BYTES = 32
_NAME = re.compile(rb":?[!#$%&'*+\-.^_`|~0-9a-z]+\Z")
#: No line ends and no NUL, no blank at either end (RFC 9113 section 8.2.1).
_VALUE = re.compile(rb"(?![ \t])[^\0\r\n]*\Z")
_PSEUDO = {b":method", b":scheme", b":path", b":authority"}
_OF_CONNECTIONS = {b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"}
_DIGITS = re.compile(rb"[0-9]{1,18}\Z")


@dataclass(slots=True)
class RequestHead:
    """What a stream begins with.

    Attributes:
        method: of the request.
        path: of the request.
        fields: the others, names in lower case; of those that come twice the first.
        content_length: negative where there is none.
    """

    method: bytes
    path: bytes
    fields: dict[bytes, bytes]
    content_length: int


class HeadReader:
    """Decodes the other side's blocks, in the order in which they come.

    Args:
        max_list_bytes: of a block's fields.
        charge: called with the work units of each block that is decoded.
    """

    def __init__(self, max_list_bytes: int, charge: Callable[[int], None]) -> None:
        self._max_list_bytes, self._charge = max_list_bytes, charge
        self._decoder = Decoder(max_header_list_size=_MAX_DECODED_BYTES)
        self._table = _Table()
        self._decoder.header_table = self._table
        self._known: dict[bytes, RequestHead] = {}

    def request(self, block: bytes) -> RequestHead:
        """The head of a request.

        Raises:
            ProtocolError: the block cannot be decoded.
            StreamError: it is not a request's.
        """
        head = self._known.get(block)
        if head is not None:
            return head
        changes = self._table.changes
        head = _request(self._decode(block))
        if self._table.changes == changes:
            if len(self._known) >= _KNOWN_BLOCKS:
                self._known.clear()
            self._known[block] = head
        return head

    def trailers(self, block: bytes) -> Fields:
        """The fields of a block that ends a request.

        Raises:
            ProtocolError: the block cannot be decoded.
            StreamError: it has fields that may not be there.
        """
        fields = self._decode(block)
        for name, value in fields:
            if name.startswith(b":"):
                raise StreamError(ErrorCode.PROTOCOL_ERROR)
            _check(name, value)
        return fields

    def follow(self, block: bytes) -> None:
        """Decode a block that nobody wants, because the table must follow it.

        Raises:
            ProtocolError: it cannot be decoded.
        """
        with contextlib.suppress(StreamError):
            self._decode(block)

    def _decode(self, block: bytes) -> Fields:
        changes = self._table.changes
        self._table.resizes = 0
        self._charge(len(block) >> _BLOCK_UNIT_BITS)
        try:
            fields: Fields = [(name, value) for name, value in self._decoder.decode(block, raw=True)]
        except (HPACKError, IndexError, ValueError) as error:
            raise ProtocolError(ErrorCode.COMPRESSION_ERROR, f"a header block: {error}"[:200]) from error
        if self._table.changes != changes:
            self._known.clear()
        list_bytes = sum(len(name) + len(value) + _FIELD_BYTES for name, value in fields)
        self._charge(len(fields) + (list_bytes >> _DECODED_UNIT_BITS))
        if list_bytes > self._max_list_bytes:
            raise StreamError(ErrorCode.ENHANCE_YOUR_CALM)
        return fields


class _Table(HeaderTable):
    """The dynamic table, which counts what changes it."""

    def __init__(self) -> None:
        super().__init__()
        self.changes = self.resizes = 0

    def add(self, name: bytes, value: bytes) -> None:
        self.changes += 1
        super().add(name, value)

    @property
    def maxsize(self) -> int:
        return self._maxsize

    @maxsize.setter
    def maxsize(self, newmax: int) -> None:
        self.changes += 1
        self.resizes += 1
        if self.resizes > _MAX_RESIZES:
            raise HPACKDecodingError("more than two changes of the table's size")
        # A property's setter has no other way to its parent.
        HeaderTable.maxsize.fset(self, newmax)  # type: ignore[attr-defined]


def _request(fields: Fields) -> RequestHead:
    """Fields to a head.

    Raises:
        StreamError: they are no request's.
    """
    pseudo: dict[bytes, bytes] = {}
    others: dict[bytes, bytes] = {}
    for name, value in fields:
        _check(name, value)
        if not name.startswith(b":"):
            others.setdefault(name, value)
        elif others or name not in _PSEUDO or name in pseudo:  # late, unknown, or there twice
            raise StreamError(ErrorCode.PROTOCOL_ERROR)
        else:
            pseudo[name] = value
    method, path = pseudo.get(b":method", b""), pseudo.get(b":path", b"")
    length = others.get(b"content-length")
    is_whole = method and method != b"CONNECT" and path and pseudo.get(b":scheme")
    if not is_whole or (length is not None and not _DIGITS.match(length)):
        raise StreamError(ErrorCode.PROTOCOL_ERROR)
    return RequestHead(method, path, others, -1 if length is None else int(length))


def _check(name: bytes, value: bytes) -> None:
    """Refuse a field that HTTP/2 does not allow.

    Raises:
        StreamError: it is one.
    """
    if (
        not _NAME.match(name)
        or not _VALUE.match(value)
        or value[-1:] in (b" ", b"\t")
        or name in _OF_CONNECTIONS
        or (name == b"te" and value != b"trailers")
    ):
        raise StreamError(ErrorCode.PROTOCOL_ERROR)


def encode(fields: Sequence[tuple[bytes, bytes]]) -> bytes:
    """A block for any connection: no dynamic table, no Huffman codes (RFC 7541 section 6.2.2)."""
    block = bytearray()
    for name, value in fields:
        if (name, value) == (b":status", b"200"):
            block.append(0x88)  # the eighth of the static table
            continue
        block.append(0)
        for text in (name, value):
            block += _length(len(text))
            block += text
    return bytes(block)


def _length(number: int) -> bytes:
    """An integer with a prefix of seven bits (RFC 7541 section 5.1)."""
    if number < 0x7F:
        return bytes((number,))
    encoded, number = bytearray((0x7F,)), number - 0x7F
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
