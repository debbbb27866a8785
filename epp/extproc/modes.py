"""Which body modes a stream speaks: declared by Envoy, or assumed.

Owns the choice and its words; knows nothing of messages after the first. Rules:

* Envoy >= 1.34 declares both modes in `protocol_config` of the first message; what it declares is what holds.
* Older proxies declare nothing, and the modes cannot be read off in time: in BUFFERED mode Envoy holds the
  body back until the headers are answered, in FULL_DUPLEX_STREAMED mode the answer to the headers must wait
  for the body, so the choice is due before the first body message could tell. `Assumption` therefore comes
  from configuration. Its default is FULL_DUPLEX_STREAMED both ways: what the endpoint picker protocol asks
  of gateways, and what every gateway of that age imposes.
* What does come later is held against an assumed mode: body pieces before the end of the stream contradict
  BUFFERED, and `contradiction` says so in a sentence that names the setting to change. (A single piece with
  end of stream fits both modes.)
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epp.pb.ext_proc_pb2 import ProcessingRequest


class BodyMode(IntEnum):
    """`ProcessingMode.BodySendMode`, numbers as on the wire."""

    NONE = 0
    STREAMED = 1
    BUFFERED = 2
    BUFFERED_PARTIAL = 3
    FULL_DUPLEX_STREAMED = 4
    GRPC = 5


@dataclass(frozen=True, slots=True)
class Assumption:
    """The body modes of proxies that do not declare theirs."""

    request_body: BodyMode = BodyMode.FULL_DUPLEX_STREAMED
    response_body: BodyMode = BodyMode.FULL_DUPLEX_STREAMED


class Modes(Struct, frozen=True):
    """The body modes of one stream.

    Attributes:
        request: how request bodies come.
        response: how response bodies come, if they do.
        declared: whether Envoy said so itself.
        ahead: whether streamed request bodies come without waiting for the answer to the headers
            (``send_body_without_waiting_for_header_response``).
        observing: whether nobody waits for answers or obeys them (``observability_mode``).
    """

    request: BodyMode
    response: BodyMode
    declared: bool
    ahead: bool = False
    observing: bool = False


class UnknownModeError(Exception):
    """The proxy declared a body mode that this code has no name for."""


def detect(first: ProcessingRequest, assume: Assumption) -> Modes:
    """The modes of a stream, from its first message.

    Raises:
        UnknownModeError: a declared mode is newer than this code.
    """
    observing = first.observability_mode
    if not first.HasField("protocol_config"):
        return Modes(assume.request_body, assume.response_body, declared=False, observing=observing)
    declared = first.protocol_config
    try:
        return Modes(
            BodyMode(declared.request_body_mode),
            BodyMode(declared.response_body_mode),
            declared=True,
            # Whoever waits for no answer does not wait for that to the headers either.
            ahead=declared.send_body_without_waiting_for_header_response or observing,
            observing=observing,
        )
    except ValueError as error:
        raise UnknownModeError(str(error)) from None


def contradiction(modes: Modes, headers: Mapping[str, str], body_bytes: int) -> str:
    """Why a first body piece without end of stream cannot be a whole BUFFERED body; empty when it can.

    Envoy sends a buffered body in one message, flagged as not the end when trailers follow; so only a piece
    shorter than the announced content-length gives the wrong assumption away.
    """
    length = headers.get("content-length", "")
    if modes.declared or not length.isdecimal() or len(length) > 18 or int(length) <= body_bytes:
        return ""
    return (
        f"the request body comes in pieces ({body_bytes} of {length} bytes) in the assumed mode BUFFERED: "
        "assume FULL_DUPLEX_STREAMED for proxies that do not declare their modes"
    )
