"""gRPC statuses on the wire: numbers, percent-encoded words, and the blocks that carry them.

Sources: gRPC's "PROTOCOL-HTTP2" and "statuscodes" documents.
"""

from __future__ import annotations

from enum import IntEnum

from epp.rpc.http2.headers import encode

#: Longest message of a status, in bytes before encoding: trailers have to fit the other side's limits.
_MAX_WORDS_BYTES = 1024
_PLAIN = {*range(0x20, 0x7F)} - {ord("%")}


class Status(IntEnum):
    """How a call ends; gRPC has more."""

    OK = 0
    CANCELLED = 1
    INVALID_ARGUMENT = 3
    NOT_FOUND = 5
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


#: Head of every response.
HEAD_BLOCK = encode(
    (
        (b":status", b"200"),
        (b"content-type", b"application/grpc"),
        (b"grpc-accept-encoding", b"identity"),
    )
)
#: Trailers of a call that went well.
_OK_BLOCK = encode(((b"grpc-status", b"0"),))


def trailers(status: Status, words: str) -> bytes:
    """Make the block behind the last message; behind `HEAD_BLOCK` it is a response without messages."""
    if status is Status.OK and not words:
        return _OK_BLOCK
    code = (b"grpc-status", str(int(status)).encode())
    # A field's value may not begin or end with a blank.
    return encode((code, (b"grpc-message", percent_encoded(words.strip()))) if words else (code,))


def percent_encoded(words: str) -> bytes:
    """Encode words as ``grpc-message`` carries them: UTF-8, all but printable ASCII and ``%`` as ``%XX``."""
    text = words.encode("utf-8", "replace")[:_MAX_WORDS_BYTES]
    return b"".join(bytes((byte,)) if byte in _PLAIN else b"%%%02X" % byte for byte in text)
