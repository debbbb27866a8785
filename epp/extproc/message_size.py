"""Which ext_proc messages may be long: those that carry a body.

Reads the first bytes of a `ProcessingRequest`, so that a transport can refuse a long message before it keeps
it. Writers of protocol buffers put fields in the order of their numbers, and a body has the lowest of its
message; what stands beside it, metadata and attributes, counts against the limit of all other messages.
"""

from __future__ import annotations

MAX_BODILESS_BYTES = 256 * 1024
"""Longest message without a body: headers, trailers, and what goes along with them.

Envoy's longest request headers are 60 KiB unless its ``max_request_headers_kb`` is raised. Decoded, short
fields take twenty times their bytes.
"""

#: Tags of `request_body` and `response_body`.
_BODIES = (0x22, 0x2A)


def is_body(length: int, begin: bytes) -> bool:
    """Whether a message is a body and at most `MAX_BODILESS_BYTES` beside it.

    Args:
        length: bytes of the message.
        begin: its first eight bytes.
    """
    if not begin or begin[0] not in _BODIES:
        return False
    body_bytes = 0
    for at, byte in enumerate(begin[1:6]):  # a number, seven bits a byte, the lowest first
        body_bytes |= (byte & 0x7F) << (7 * at)
        if byte < 0x80:
            break
    return length - body_bytes <= MAX_BODILESS_BYTES
