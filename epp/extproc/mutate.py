"""Building what goes back to Envoy: header mutations, body pieces, dynamic metadata, immediate responses.

Pure construction; which reply is due when is `request_modes` and `stream`. Rules:

* Header values go as `raw_value` and overwrite.
* A streamed body goes in pieces of at most `MAX_PIECE_BYTES`; only its last piece may end the stream, and an
  empty body is one empty piece.
* Empty replies are shared constants: they are sent and never changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from google.protobuf.struct_pb2 import Struct

from epp.extproc.headers import LB_NAMESPACE
from epp.pb.core_pb2 import HeaderValueOption
from epp.pb.ext_proc_pb2 import CommonResponse, ImmediateResponse, ProcessingResponse

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from epp.extproc.types import Pick, Refusal
    from epp.pb.ext_proc_pb2 import HeaderMutation

#: Under the 64 KiB that Envoy recommends for a piece and that HTTP/2 opens a stream's window with.
MAX_PIECE_BYTES = 62_000

DESTINATION_HEADER = "x-gateway-destination-endpoint"
SCORES_KEY = "x-gateway-destination-endpoint-scores"
#: Response header that tells the conformance suite who served.
SERVED_HEADER = "x-conformance-test-served-endpoint"
#: Response headers of these names are the picker's and the proxy's; an engine's never reach a client.
RESERVED_PREFIXES = (DESTINATION_HEADER, "x-epp-")
DECISION_HEADER = "x-epp-decision-id"
DECISION_NAMESPACE = "epp"
DECISION_KEY = "decision_id"

_OVERWRITE = HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD


class Change(msgspec.Struct, frozen=True):
    """What the answer to a request changes in it.

    Attributes:
        common: header mutation and route cache, as they go on the reply that carries the answer; None for a
            request that goes on as it came.
        metadata: dynamic metadata for the same reply, or None.
        body: replacement body, None to leave it.
    """

    common: CommonResponse | None = None
    metadata: Struct | None = None
    body: bytes | None = None


def set_header(mutation: HeaderMutation, name: str, value: str) -> None:
    """Set a header, discarding the values it had."""
    option = mutation.set_headers.add(append_action=_OVERWRITE)
    option.header.key = name
    option.header.raw_value = value.encode()


def change_of(pick: Pick) -> Change:
    """The destination as header and as metadata, the decision, further headers, the new length."""
    common = CommonResponse(clear_route_cache=True)
    mutation = common.header_mutation
    for name, value in pick.set_headers.items():
        set_header(mutation, name, value)
    if pick.body is not None:
        set_header(mutation, "content-length", str(len(pick.body)))
    set_header(mutation, DESTINATION_HEADER, pick.destination)
    metadata = Struct()
    fields = metadata.fields
    lb = fields[LB_NAMESPACE].struct_value.fields
    lb[DESTINATION_HEADER].string_value = pick.destination
    if pick.scores:
        scores = lb[SCORES_KEY].struct_value.fields
        for endpoint, score in pick.scores.items():
            scores[endpoint].number_value = score
    ours = fields[DECISION_NAMESPACE].struct_value.fields
    for name, value in pick.metadata.items():
        ours[name].string_value = value
    ours[DECISION_KEY].string_value = pick.decision_id
    return Change(common, metadata, pick.body)


def pieces(body: bytes, *, ends_stream: bool) -> Iterator[tuple[bytes, bool]]:
    """Cut a body into (piece, end of stream); an empty body gives exactly one empty piece."""
    last = max(0, (len(body) - 1) // MAX_PIECE_BYTES)
    for index in range(last + 1):
        piece = body[index * MAX_PIECE_BYTES : (index + 1) * MAX_PIECE_BYTES]
        yield piece, ends_stream and index == last


def streamed_request_body(body: bytes, *, ends_stream: bool) -> list[ProcessingResponse]:
    """A request body as FULL_DUPLEX_STREAMED replies."""
    replies = []
    for piece, ends in pieces(body, ends_stream=ends_stream):
        reply = ProcessingResponse()
        streamed = reply.request_body.response.body_mutation.streamed_response
        streamed.body, streamed.end_of_stream = piece, ends
        replies.append(reply)
    return replies


def streamed_response_body(body: bytes, *, ends_stream: bool) -> list[ProcessingResponse]:
    """A response body as FULL_DUPLEX_STREAMED replies."""
    replies = []
    for piece, ends in pieces(body, ends_stream=ends_stream):
        reply = ProcessingResponse()
        streamed = reply.response_body.response.body_mutation.streamed_response
        streamed.body, streamed.end_of_stream = piece, ends
        replies.append(reply)
    return replies


def immediate(refusal: Refusal) -> ProcessingResponse:
    """An answer to the client instead of the upstream's."""
    response = ImmediateResponse(body=refusal.body, details=_details_token(refusal.details))
    # A plain number: StatusCode is an open enum, and statuses outside it (499, 529) are in use.
    response.status.code = refusal.status  # type: ignore[assignment]
    set_header(response.headers, "content-type", refusal.content_type)
    for name, value in refusal.headers.items():
        set_header(response.headers, name, value)
    return ProcessingResponse(immediate_response=response)


def response_headers(values: Mapping[str, str], remove: Sequence[str] = ()) -> ProcessingResponse:
    """Build the reply to response headers.

    Args:
        values: headers to set, by name.
        remove: names of headers to remove.
    """
    reply = ProcessingResponse()
    mutation = reply.response_headers.response.header_mutation
    for name, value in values.items():
        set_header(mutation, name, value)
    mutation.remove_headers.extend(remove)
    return reply


def _details_token(details: str) -> str:
    """Response code details may hold no whitespace (they are one field of an access log line)."""
    return "_".join(details.split())


def _empty(part: str) -> ProcessingResponse:
    reply = ProcessingResponse()
    message = getattr(reply, part)
    (message if part.endswith("trailers") else message.response).SetInParent()
    return reply


def _cleared() -> ProcessingResponse:
    reply = ProcessingResponse()
    reply.request_body.response.body_mutation.clear_body = True
    return reply


EMPTY_REQUEST_HEADERS = _empty("request_headers")
EMPTY_REQUEST_BODY = _empty("request_body")
CLEARED_REQUEST_BODY = _cleared()
EMPTY_REQUEST_TRAILERS = _empty("request_trailers")
EMPTY_RESPONSE_HEADERS = _empty("response_headers")
EMPTY_RESPONSE_BODY = _empty("response_body")
EMPTY_RESPONSE_TRAILERS = _empty("response_trailers")
