"""gRPC statuses on the wire: numbers, percent-encoded words, and the blocks that carry them.

Sources: gRPC's "PROTOCOL-HTTP2" and "statuscodes" documents.
"""

from __future__ import annotations

from enum import IntEnum

from epp.transport.headers import encode

#: Longest message of a status, in bytes before encoding: trailers have to fit the other side's limits.
_MAX_WORDS_BYTES = 1024
_PLAIN = {*range(0x20, 0x7F)} - {ord("%")}
_CONTENT_TYPE = (b"content-type", b"application/grpc")
ACCEPTED_ENCODINGS = (b"grpc-accept-encoding", b"identity")


class Status(IntEnum):
    """How a call ends."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


#: Head of a response that carries messages.
HEAD_BLOCK = encode(((b":status", b"200"), _CONTENT_TYPE, ACCEPTED_ENCODINGS))
#: Trailers of a call that went well.
OK_BLOCK = encode(((b"grpc-status", b"0"),))


def trailers(status: Status, words: str) -> bytes:
    """The block behind the last message."""
    if status is Status.OK and not words:
        return OK_BLOCK
    return encode(_fields(status, words))


def trailers_only(status: Status, words: str) -> bytes:
    """The block of a response without messages."""
    head = ((b":status", b"200"), _CONTENT_TYPE, ACCEPTED_ENCODINGS)
    return encode((*head, *_fields(status, words)))


def percent_encoded(words: str) -> bytes:
    """Words as ``grpc-message`` carries them: UTF-8, all but printable ASCII and ``%`` as ``%XX``."""
    text = words.encode("utf-8", "replace")[:_MAX_WORDS_BYTES]
    return b"".join(bytes((byte,)) if byte in _PLAIN else b"%%%02X" % byte for byte in text)


def _fields(status: Status, words: str) -> tuple[tuple[bytes, bytes], ...]:
    code = (b"grpc-status", str(int(status)).encode())
    # A field's value may not begin or end with a blank.
    return (code, (b"grpc-message", percent_encoded(words.strip()))) if words else (code,)
