"""ext_proc messages: headers and metadata as plain values, and the replies that go back to Envoy.

Which reply is due when is decided in `modes` and `stream`. Rules:

* Header values that are not UTF-8 are read with replacement characters: such a value can name no endpoint,
  model or session, and nothing read here is written back.
* Header values go as `raw_value` and overwrite.
* A streamed body goes in pieces of at most `MAX_PIECE_BYTES`; only its last piece may end the stream, and an
  empty body is one empty piece.
* Empty replies are shared constants: they are sent and never changed.
"""

from __future__ import annotations

from sys import getsizeof, intern
from typing import TYPE_CHECKING

from epp.pb.core_pb2 import HeaderValueOption
from epp.pb.ext_proc_pb2 import ImmediateResponse, ProcessingResponse

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from google.protobuf.struct_pb2 import Struct, Value

    from epp.extproc.types import Destination, LocalReply
    from epp.pb.core_pb2 import HeaderMap, Metadata
    from epp.pb.ext_proc_pb2 import CommonResponse, HeaderMutation, ProcessingRequest

#: Under the 64 KiB that Envoy recommends for a piece and that HTTP/2 opens a stream's window with.
MAX_PIECE_BYTES = 62_000
#: Longest message without a body: headers, trailers, and what goes along with them. Envoy's longest request
#: headers are 60 KiB unless its ``max_request_headers_kb`` is raised. Decoded, short fields take twenty times
#: their bytes.
MAX_BODILESS_BYTES = 256 * 1024

LB_NAMESPACE = "envoy.lb"
#: Of the subset hint, the one namespace of a request's metadata that is read.
SUBSET_NAMESPACE = "envoy.lb.subset_hint"
SERVED_KEY = "x-gateway-destination-endpoint-served"
DESTINATION_HEADER = "x-gateway-destination-endpoint"
SCORES_KEY = "x-gateway-destination-endpoint-scores"
#: Response headers of these names are the picker's and the proxy's; an engine's never reach a client.
RESERVED_PREFIXES = (DESTINATION_HEADER, "x-epp-")
DECISION_HEADER = "x-epp-decision-id"
#: Response header: the endpoint that served, where clients are told.
ENDPOINT_HEADER = "x-epp-endpoint"
#: Where Envoy puts the attributes that it is asked for (``response_attributes``).
ATTRIBUTES_KEY, ADDRESS_KEY = "envoy.filters.http.ext_proc", "upstream.address"
DECISION_NAMESPACE = "epp"
DECISION_KEY = "decision_id"
#: By which rule the picker has answered; Envoy tells its answers from its own by it (`epp.envoy.replies`).
REPLIED_KEY = "replied"

_OVERWRITE = HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
#: Tags of `request_body` and `response_body`.
_BODIES = (0x22, 0x2A)


def is_body(length: int, begin: bytes) -> bool:
    """Tell whether a message is a body and at most `MAX_BODILESS_BYTES` beside it, before it is kept.

    Writers of protocol buffers put fields in the order of their numbers, and a body has the lowest.

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


def header_values(headers: HeaderMap) -> dict[str, str]:
    """Read headers: name in lower case -> value; commas join different values of one name (RFC 9110, 5.3).

    Envoy fills `raw_value`; proxies of other makes may still fill `value`.
    """
    values: dict[str, str] = {}
    for header in headers.headers:
        name, raw = intern(header.key.lower()), header.raw_value  # one string for all that wait
        value = raw.decode("utf-8", "replace") if raw else header.value
        known = values.get(name, value)
        values[name] = value if known == value else f"{known},{value}"
    return values


def metadata_values(metadata: Metadata, namespace: str) -> dict[str, dict[str, object]]:
    """Read one namespace of `filter_metadata`: namespace -> fields; empty without it."""
    found = metadata.filter_metadata
    return {namespace: plain_struct(found[namespace])} if namespace in found else {}


def plain_bytes(value: object) -> int:
    """Measure the memory of plain values: of a dict or a list with all that is in it."""
    size = getsizeof(value)
    if isinstance(value, dict):
        size += sum(map(getsizeof, value))
        value = list(value.values())
    if not isinstance(value, list):
        return size
    nested = [one for one in value if isinstance(one, dict | list)]
    return size + sum(map(getsizeof, value)) + sum(map(plain_bytes, nested)) - sum(map(getsizeof, nested))


def plain_struct(struct: Struct) -> dict[str, object]:
    """Read a Struct as a dict; null becomes None, numbers are floats."""
    return {name: _plain_value(value) for name, value in struct.fields.items()}


def _plain_value(value: Value) -> object:
    kind = value.WhichOneof("kind")
    if kind == "struct_value":
        return plain_struct(value.struct_value)
    if kind == "list_value":
        return [_plain_value(element) for element in value.list_value.values]
    if kind is None or kind == "null_value":
        return None
    plain: object = getattr(value, kind)
    return plain


def served_endpoint(metadata: Mapping[str, Mapping[str, object]]) -> str:
    """Read the endpoint that served; empty when the proxy does not say.

    Source: endpoint picker protocol (proposal 004), response direction.
    """
    served = metadata.get(LB_NAMESPACE, {}).get(SERVED_KEY, "")
    return served if isinstance(served, str) else ""


def upstream_address(message: ProcessingRequest) -> str:
    """Read the address that a response comes from, which our own Envoys tell; empty when not told."""
    if ATTRIBUTES_KEY not in message.attributes:
        return ""
    return message.attributes[ATTRIBUTES_KEY].fields[ADDRESS_KEY].string_value


def set_header(mutation: HeaderMutation, name: str, value: str) -> None:
    """Set a header, discarding the values it had."""
    option = mutation.set_headers.add(append_action=_OVERWRITE)
    option.header.key = name
    option.header.raw_value = value.encode()


def set_destination(response: CommonResponse, pick: Destination, body: bytes | None) -> None:
    """Put a decision's header changes on a reply, and the length of the body that replaces the request's."""
    response.clear_route_cache = True
    mutation = response.header_mutation
    for name, value in (*pick.set_headers.items(), *pick.proxy_headers.items()):
        set_header(mutation, name, value)
    mutation.remove_headers.extend(pick.remove_headers)
    if body is not None:
        set_header(mutation, "content-length", str(len(body)))
    set_header(mutation, DESTINATION_HEADER, pick.destination)


def set_metadata(reply: ProcessingResponse, pick: Destination) -> None:
    """Put a decision's dynamic metadata on a reply: destination, scores, decision."""
    fields = reply.dynamic_metadata.fields
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


def streamed_body(part: str, body: bytes, *, ends_stream: bool) -> list[ProcessingResponse]:
    """Build a body as FULL_DUPLEX_STREAMED replies of a part: ``request_body`` or ``response_body``."""
    replies = []
    for piece, ends in _pieces(body, ends_stream=ends_stream):
        reply = ProcessingResponse()
        streamed = getattr(reply, part).response.body_mutation.streamed_response
        streamed.body, streamed.end_of_stream = piece, ends
        replies.append(reply)
    return replies


def _pieces(body: bytes, *, ends_stream: bool) -> Iterator[tuple[bytes, bool]]:
    """Cut a body into (piece, end of stream); an empty body gives exactly one empty piece."""
    last = max(0, (len(body) - 1) // MAX_PIECE_BYTES)
    for index in range(last + 1):
        piece = body[index * MAX_PIECE_BYTES : (index + 1) * MAX_PIECE_BYTES]
        yield piece, ends_stream and index == last


def more_time(seconds: float) -> ProcessingResponse:
    """Ask the proxy to wait so much longer for the answer to its last message."""
    reply = ProcessingResponse()
    reply.override_message_timeout.FromMilliseconds(int(seconds * 1e3))
    return reply


def immediate(answer: LocalReply) -> ProcessingResponse:
    """Build an answer to the client instead of the upstream's."""
    # Response code details are one field of an access log line and hold no whitespace.
    response = ImmediateResponse(body=answer.body, details="_".join(answer.details.split()))
    # A plain number: StatusCode is an open enum, and statuses outside it (499, 529) are in use.
    response.status.code = answer.status  # type: ignore[assignment]
    set_header(response.headers, "content-type", answer.content_type)
    for name, value in answer.headers.items():
        set_header(response.headers, name, value)
    reply = ProcessingResponse(immediate_response=response)
    ours = reply.dynamic_metadata.fields[DECISION_NAMESPACE].struct_value.fields
    ours[REPLIED_KEY].string_value = answer.details
    return reply


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


def _empty(part: str) -> ProcessingResponse:
    reply = ProcessingResponse()
    message = getattr(reply, part)
    (message if part.endswith("trailers") else message.response).SetInParent()
    return reply


EMPTY_REQUEST_HEADERS = _empty("request_headers")
EMPTY_REQUEST_BODY = _empty("request_body")
EMPTY_REQUEST_TRAILERS = _empty("request_trailers")
EMPTY_RESPONSE_HEADERS = _empty("response_headers")
EMPTY_RESPONSE_BODY = _empty("response_body")
EMPTY_RESPONSE_TRAILERS = _empty("response_trailers")
CLEARED_REQUEST_BODY = ProcessingResponse()
CLEARED_REQUEST_BODY.request_body.response.body_mutation.clear_body = True
