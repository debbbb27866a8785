"""A finished request as Envoy's access log reports it, decoded into one plain value.

Owns the meaning of the log's fields, flags and metadata, no socket. A report is about facts that Envoy saw;
which decision it belongs to is told by the picker's own id, which only ext_proc can write: no header of a
client is read.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import TYPE_CHECKING, Protocol

import msgspec

from epp.apis.usage import NO_USAGE, Usage, UsageReader, parse_usage
from epp.extproc.headers import LB_NAMESPACE
from epp.extproc.mutate import DECISION_KEY, DECISION_NAMESPACE, DESTINATION_HEADER

if TYPE_CHECKING:
    from google.protobuf.duration_pb2 import Duration
    from google.protobuf.struct_pb2 import Struct

    from epp.pb.access_log_pb2 import AccessLogCommon, HTTPAccessLogEntry

OBSERVED_NAMESPACE = "epp.observe"
RELAY_NAMESPACE, RELAY_SERVED_KEY = "epp.relay", "served"
"""Namespaces and keys of dynamic metadata that Envoy writes, as `epp.envoy` configures them."""


class Termination(Enum):
    """Why a request ended."""

    COMPLETED = "completed"  # the answer, whatever its status, was passed on to its end
    RETRIED_ELSEWHERE = "retried-elsewhere"  # completed, by another endpoint than the one picked
    CLIENT_GONE = "client-gone"  # the client left before the end
    UPSTREAM_RESET = "upstream-reset"  # the endpoint, or its connection, broke off
    UNREACHABLE = "unreachable"  # no endpoint could be connected to, or none was there
    TIMED_OUT = "timed-out"  # a limit of Envoy's ran out
    REFUSED = "refused"  # Envoy answered by itself: too long, overloaded, refused by the picker


_TIMEOUTS = (
    "upstream_request_timeout",
    "stream_idle_timeout",
    "duration_timeout",
    "upstream_max_stream_duration_reached",
)
_GONE = ("downstream_connection_termination", "downstream_remote_reset", "downstream_protocol_error")
_UNREACHABLE = (
    "upstream_connection_failure",
    "no_healthy_upstream",
    "no_cluster_found",
    "no_route_found",
    "upstream_overflow",
    "dns_resolution_failure",
)
_RESET = (
    "upstream_connection_termination",
    "upstream_remote_reset",
    "upstream_protocol_error",
    "local_reset",
)


class Report(msgspec.Struct, frozen=True):
    """How a request went. Times are NaN, counts and texts None or empty, where Envoy did not see them.

    Attributes:
        decision_id: the picker's own id; ``""`` for a request that Envoy served without a decision.
        status: HTTP status sent to the client, 0 when none was.
        cause: why it ended.
        flags: Envoy's response flags that are set, by their names in the API.
        details: Envoy's response code details.
        picked: the endpoints that the picker named, in its order.
        served: address of the endpoint that really answered, or was tried last, as its relay tells it where
            there is one; of a relay that was not reached, the relay's own.
        relayed: a relay told who served: it may have tried others before.
        attempts: tries on endpoints; 0 when none was tried.
        request_bytes: body bytes received from the client.
        response_bytes: body bytes sent to the client.
        started_wall_s: Unix time at which the request came.
        ttft_ms: from then to the first body chunk of a 2xx answer (of an event stream the first that is no
            comment).
        e2e_ms: from then to the end.
        received_ms: from then to the last byte of the request.
        sent_ms: from then to the first byte sent to an endpoint; less `received_ms` it is the picker's share.
        headers_ms: from then to the first byte of the endpoint's answer.
        connect_ms: how long the TCP connect to the endpoint took, whenever that was.
        connected_anew: the connection was opened for this request and not found open; None when not known.
        opened_ms: from the beginning of such a connection to the first byte sent on it, handshakes included.
        streamed: the answer was an event stream; None when not known.
        encoding: content-encoding of the answer: its usage cannot be known.
        chunks: body chunks of the complete answer; None when it did not complete.
        usage: what the engine reported.
        retry_after: the answer's ``Retry-After``, ``""`` without one.
    """

    decision_id: str
    status: int
    cause: Termination
    flags: tuple[str, ...]
    details: str
    picked: tuple[str, ...]
    served: str
    relayed: bool
    attempts: int
    request_bytes: int
    response_bytes: int
    started_wall_s: float
    ttft_ms: float
    e2e_ms: float
    received_ms: float
    sent_ms: float
    headers_ms: float
    connect_ms: float
    connected_anew: bool | None
    streamed: bool | None
    encoding: str
    chunks: int | None
    usage: Usage
    opened_ms: float = math.nan
    retry_after: str = ""

    @property
    def honoured(self) -> bool | None:
        """Whether the first attempt went to the pick; None where attempts do not tell.

        Of several attempts the first may have failed there, and a relay tries endpoints by itself.
        """
        if self.attempts != 1 or self.relayed or not self.picked or not self.served:
            return None
        return self.served == self.picked[0]

    @property
    def first_byte_ms(self) -> float:
        """From when the endpoint could be sent all of the request to the first byte of its answer."""
        return self.headers_ms - max(self.sent_ms, self.received_ms)

    @property
    def unsent_ms(self) -> float:
        """Until the request was there and its connection found or begun; 0 where Envoy does not tell.

        Opening a connection is the network's, as its round trips are.
        """
        found_ms = self.sent_ms - (0.0 if math.isnan(self.opened_ms) else self.opened_ms)
        return max(0.0, found_ms, self.received_ms)  # one that is NaN is never the larger


class Reports(Protocol):
    """Who is told. Both are called on the event loop and must not block; unknown ids are theirs to count."""

    def first_token(self, decision_id: str) -> None:
        """The first chunk of a streamed answer has just passed Envoy."""

    def finished(self, report: Report) -> None:
        """A request has ended; for one that the picker did not decide the id is empty."""


def decode(entry: HTTPAccessLogEntry) -> Report:
    """One log entry as a report; nothing that is missing or odd in it raises."""
    common, response = entry.common_properties, entry.response
    namespaces = common.metadata.filter_metadata
    # By `get`: looking a key up in a message map by brackets would create it.
    ours = namespaces.get(DECISION_NAMESPACE)
    seen = namespaces.get(OBSERVED_NAMESPACE)
    lb = namespaces.get(LB_NAMESPACE)
    relay = namespaces.get(RELAY_NAMESPACE)
    named = _text(lb, DESTINATION_HEADER)
    picked = tuple([stripped for name in named.split(",") if (stripped := name.strip())])
    flags: tuple[str, ...] = ()
    if common.HasField("response_flags"):
        flags = tuple([field.name for field, value in common.response_flags.ListFields() if value is True])
    socket = common.upstream_remote_address.socket_address
    host = socket.address
    if ":" in host:
        host = f"[{host}]"
    served = f"{host}:{socket.port_value}" if host else ""
    told = _text(relay, RELAY_SERVED_KEY)
    served = told or served
    chunks, streamed, usage = _count(seen, "chunks"), _scalar(seen, "streamed"), _scalar(seen, "usage")
    # A client that hangs up at the end mark has all that it wanted.
    ended = chunks is not None and streamed is True
    e2e_ms, sent_ms = _ms(common, "duration"), _ms(common, "time_to_first_upstream_tx_byte")
    connect_ms, fresh_ms = _tag_ms(common, "connect_us"), _tag_ms(common, "fresh_us")
    start = common.start_time
    return Report(
        decision_id=_text(ours, DECISION_KEY),
        status=response.response_code.value,
        cause=_cause(flags, ended=ended, picked=picked, served=served),
        flags=flags,
        details=response.response_code_details,
        picked=picked,
        served=served,
        relayed=bool(told),
        attempts=common.upstream_request_attempt_count,
        request_bytes=entry.request.request_body_bytes,
        response_bytes=response.response_body_bytes,
        started_wall_s=start.seconds + start.nanos / 1e9,
        ttft_ms=_ttft_ms(common, _scalar(seen, "first_us"), e2e_ms),
        e2e_ms=e2e_ms,
        received_ms=_ms(common, "time_to_last_rx_byte"),
        sent_ms=sent_ms,
        headers_ms=_ms(common, "time_to_first_upstream_rx_byte"),
        connect_ms=connect_ms,
        # A connection from before the request has no time since its start.
        connected_anew=None if math.isnan(connect_ms) else not math.isnan(fresh_ms),
        streamed=streamed if isinstance(streamed, bool) else None,
        encoding=_text(seen, "encoding"),
        chunks=chunks,
        usage=_usage(usage) if isinstance(usage, str) else NO_USAGE,
        opened_ms=sent_ms - fresh_ms,
        retry_after=response.response_headers.get("retry-after", ""),
    )


def _cause(flags: tuple[str, ...], *, ended: bool, picked: tuple[str, ...], served: str) -> Termination:
    """The flags tell; of several the one that ended the request, which is the first in this order."""
    if flags and not ended:
        for names, cause in (
            (_GONE, Termination.CLIENT_GONE),
            (_TIMEOUTS, Termination.TIMED_OUT),
            (_UNREACHABLE, Termination.UNREACHABLE),
            (_RESET, Termination.UPSTREAM_RESET),
        ):
            if any(name in flags for name in names):
                return cause
    if not served:
        return Termination.REFUSED
    if picked and served != picked[0]:
        return Termination.RETRIED_ELSEWHERE
    return Termination.COMPLETED


def _scalar(struct: Struct | None, name: str) -> str | float | bool | None:
    """A field of a struct; lists and objects are none of ours."""
    if struct is None or name not in struct.fields:
        return None
    value = struct.fields[name]
    match value.WhichOneof("kind"):
        case "string_value":
            return value.string_value
        case "number_value":
            return value.number_value
        case "bool_value":
            return value.bool_value
    return None


def _text(struct: Struct | None, name: str) -> str:
    value = _scalar(struct, name)
    return value if isinstance(value, str) else ""


def _count(struct: Struct | None, name: str) -> int | None:
    value = _scalar(struct, name)
    return int(value) if isinstance(value, float) and math.isfinite(value) else None


def _usage(text: str) -> Usage:
    """The objects as they stood in the answer, names included; of an older filter the last one alone."""
    if text.startswith("{"):
        return parse_usage(text)
    reader = UsageReader()
    reader.feed(text.encode())
    return reader.usage


def _ms(common: AccessLogCommon, field: str) -> float:
    if not common.HasField(field):
        return math.nan
    duration: Duration = getattr(common, field)
    return duration.seconds * 1e3 + duration.nanos / 1e6


def _tag_ms(common: AccessLogCommon, tag: str) -> float:
    """A duration in a custom tag, microseconds in decimal; ``-`` where Envoy has none."""
    if tag not in common.custom_tags:
        return math.nan
    text = common.custom_tags[tag]
    # Nineteen digits are 300,000 years; of thousands Python makes no number.
    return int(text) / 1e3 if text.isascii() and text.isdigit() and len(text) < 20 else math.nan


def _ttft_ms(common: AccessLogCommon, first_us: object, e2e_ms: float) -> float:
    """Both moments are Envoy's wall clock; when that was set in between the difference makes no sense."""
    if not isinstance(first_us, float) or not math.isfinite(first_us) or not common.HasField("start_time"):
        return math.nan
    start = common.start_time
    ttft_ms = (first_us - start.seconds * 1e6) / 1e3 - start.nanos / 1e6
    limit_ms = math.inf if math.isnan(e2e_ms) else e2e_ms
    # The stamp is cut to microseconds, the rest are nanoseconds.
    return max(0.0, ttft_ms) if -1.0 <= ttft_ms <= limit_ms + 1.0 else math.nan
