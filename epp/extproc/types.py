"""What goes in and out of the protocol machine besides the ext_proc messages themselves.

The machine is fed `ProcessingRequest` messages and answers with a list of outputs, each either a
`ProcessingResponse` to send to Envoy, in order, one of the events below for the shell, or a marker that tells
the shell to end the RPC. `HttpRequest` is the one event that asks for an answer: the shell calls `decided` or
`refused`, now or later.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping


class Cause(Enum):
    """Event, the last of a stream and said once: how its exchange ended, as far as the stream tells.

    Where responses are not shown, STREAM_END and CLIENT_GONE do not tell a finished answer from a client that
    left: Envoy 1.40 closes the stream in order for both (96 of 100 and more). Access logs know.
    """

    COMPLETED = "completed"  # the response was seen to its end
    CUT_OFF = "cut-off"  # the response was seen to begin, not to end: by the client or the endpoint
    STREAM_END = "stream-end"  # Envoy closed the stream; what became of the response is not known here
    CLIENT_GONE = "client-gone"  # the stream was cut before the response ended
    REFUSED = "refused"  # answered by an immediate response
    PROTOCOL_ERROR = "protocol-error"  # Envoy sent what the protocol does not allow here
    UNOBSERVED = "unobserved"  # the stream was ended by us after the decision


class DecideAt(Enum):
    """How much of a request a decision must wait for."""

    BODY = "body"  # the body has to be read
    EITHER = "either"  # nobody needs the body: not waited for where that spares its way to us
    HEADERS = "headers"  # the body is not to be waited for nor held: an upload, or nothing that we read
    UPGRADE = "upgrade"  # what looks like a body is a connection that both sides talk on


class Observe(Enum):
    """What becomes of a response that a proxy shows us."""

    READ = "read"  # it passes through, and is reported
    CARRY = "carry"  # it passes through, unread
    END_STREAM_AFTER_PICK = "leave"  # where that is safe; else as CARRY


class HttpRequest(Struct, frozen=True):
    """Event: a request that waits for its decision, as far as Envoy has shown it.

    The machine waits for `Stream.decided` or `Stream.refused`.

    Attributes:
        method: ``:method``.
        path: ``:path`` with its query.
        headers: all headers, names lower-cased, the last value of each.
        body: the body; None when the request has none (headers end the stream) or it was not waited for.
        metadata: ``metadata_context.filter_metadata`` as plain values, namespace -> fields.
        whole: whether `body` is all there is; False when it was not waited for, or when it may have been cut
            off at a buffer's limit.
        full_duplex: whether Envoy keeps nothing of the body that it has shown, so that it cannot go on
            without an answer.
    """

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes | None
    metadata: Mapping[str, Mapping[str, object]] = {}
    whole: bool = True
    full_duplex: bool = False


class BodyRewriter(Protocol):
    """Changes a body that comes in pieces; holds nothing back, so that it needs no end."""

    def feed(self, data: bytes) -> bytes:
        """Return what goes on instead of the next piece."""
        ...


class Destination(Struct):
    """The answer to an `HttpRequest`: where it goes, and what changes on the way.

    Attributes:
        destination: ``host:port`` or an ordered comma list, primary first.
        decision_id: goes into dynamic metadata, to join later reports.
        set_headers: further request headers to set.
        body: replacement body, None to leave it as it is (content-length follows the replacement); has no
            effect on a request that was decided by its headers.
        metadata: further fields of the decision's dynamic metadata, for filters and access logs.
        scores: endpoint -> score, higher is better, for the metadata ``envoy.lb`` ->
            ``x-gateway-destination-endpoint-scores``; not sent when empty.
        response_headers: response headers to set, where the proxy shows the response; elsewhere it has to
            make them of the metadata itself.
        served_headers: from the metadata that comes with the response to further response headers.
        observe_response: what becomes of the response.
        rewrite_response: from the response's headers to what changes its body, None for one that stays as it
            is. Asked only where the proxy shows both; a response that may be changed is never left early.
        proxy_headers: request headers that tell the proxy what it may do.
        remove_headers: request headers that the endpoint must not see.
    """

    destination: str
    decision_id: str
    set_headers: dict[str, str] = {}
    body: bytes | None = None
    metadata: dict[str, str] = {}
    scores: Mapping[str, float] = {}
    response_headers: dict[str, str] = {}
    served_headers: Callable[[Mapping[str, Mapping[str, object]]], Mapping[str, str]] | None = None
    observe_response: Observe = Observe.READ
    rewrite_response: Callable[[Mapping[str, str]], BodyRewriter | None] | None = None
    proxy_headers: Mapping[str, str] = {}
    remove_headers: Collection[str] = ()


class LocalReply(Struct, frozen=True):
    """An HTTP answer instead of a decision: a refusal, or what the picker knows by itself.

    Attributes:
        status: of the answer.
        body: likewise.
        content_type: of the body.
        headers: further response headers.
        details: by which rule, for access logs.
    """

    status: int
    body: bytes
    content_type: str = "application/json"
    headers: Mapping[str, str] = {}
    details: str = ""


class ResponseStarted(Struct, frozen=True):
    """Response headers arrived.

    Attributes:
        status: ``:status``, 0 when missing or not a number.
        headers: all headers, names lower-cased, the last value of each.
        served: the endpoint that really served, as the proxy tells it in the metadata ``envoy.lb`` ->
            ``x-gateway-destination-endpoint-served`` (endpoint picker protocol 004); empty when it does not.
    """

    status: int
    headers: Mapping[str, str]
    served: str = ""


class ResponseData(Struct, frozen=True):
    """A piece of the response body, in order; may be empty at the end of the stream."""

    data: bytes


class Finish(Struct, frozen=True):
    """Marker, last of its list: end the RPC with status OK, in one write with the reply before it.

    A status that follows later loses answers: what an upstream sends in between goes to a stream that is
    about to end (docs/transport.md).
    """


class Abort(Struct, frozen=True):
    """Marker, last of its list: end the RPC with an error; Envoy's failure mode decides what follows.

    Attributes:
        status: name of a gRPC status code, e.g. ``"INVALID_ARGUMENT"``.
        detail: one sentence for the operator.
    """

    status: str
    detail: str


Event = HttpRequest | ResponseStarted | ResponseData | Cause
Marker = Finish | Abort


class ViolationError(Exception):
    """A message that the protocol does not allow where it came.

    Args:
        detail: one sentence for the operator.
        status: name of the gRPC status to end the stream with.
    """

    def __init__(self, detail: str, status: str = "INVALID_ARGUMENT") -> None:
        self.detail, self.status = detail, status
        super().__init__(detail)


def plain_refusal(_request: HttpRequest, status: int) -> LocalReply:
    """Refuse an unread request, 413 for its length or 503 for want of room, in the words of most APIs."""
    return LocalReply(status, b'{"error":{"message":"the request cannot be held","type":"server_error"}}')
