"""Which body modes a stream speaks.

Envoy >= 1.34 declares both modes in `protocol_config` of the first message; what it declares holds. Older
proxies declare nothing, and the modes cannot be read off in time: in BUFFERED mode Envoy holds the body back
until the headers are answered, in FULL_DUPLEX_STREAMED mode the answer to the headers must wait for the body.
So FULL_DUPLEX_STREAMED both ways is assumed, which is what the endpoint picker protocol asks of gateways.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from msgspec import Struct

from epp.extproc.types import ViolationError

if TYPE_CHECKING:
    from epp.pb.ext_proc_pb2 import ProcessingRequest


class BodyMode(IntEnum):
    """`ProcessingMode.BodySendMode`, numbers as on the wire."""

    NONE = 0
    STREAMED = 1
    BUFFERED = 2
    BUFFERED_PARTIAL = 3
    FULL_DUPLEX_STREAMED = 4
    GRPC = 5


class Modes(Struct, frozen=True):
    """The body modes of one stream.

    Attributes:
        request: how request bodies come.
        response: how response bodies come, if they do.
        ahead: whether streamed request bodies come without waiting for the answer to the headers
            (``send_body_without_waiting_for_header_response``).
        observing: whether nobody waits for answers or obeys them (``observability_mode``).
    """

    request: BodyMode
    response: BodyMode
    ahead: bool = False
    observing: bool = False


def detect(first: ProcessingRequest) -> Modes:
    """Read the modes of a stream from its first message.

    Raises:
        ViolationError: a declared mode is newer than this code.
    """
    observing = first.observability_mode
    if not first.HasField("protocol_config"):
        return Modes(BodyMode.FULL_DUPLEX_STREAMED, BodyMode.FULL_DUPLEX_STREAMED, observing=observing)
    declared = first.protocol_config
    try:
        return Modes(
            BodyMode(declared.request_body_mode),
            BodyMode(declared.response_body_mode),
            # Whoever waits for no answer does not wait for that to the headers either.
            ahead=declared.send_body_without_waiting_for_header_response or observing,
            observing=observing,
        )
    except ValueError as error:
        raise ViolationError(f"unknown body mode: {error}", "UNIMPLEMENTED") from None
