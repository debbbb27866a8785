"""Envoy's gRPC access log: one report for each finished request.

Serves `envoy.service.accesslog.v3.AccessLogService` beside ext_proc, to be reached by Envoy alone: whoever
reaches it could report anything about a decision whose id it knows. A report is about facts that Envoy saw;
its decision is named by the picker's own id, which only ext_proc can write: no header of a client is read.

An entry that cannot be read is counted and dropped, and so is one that its receiver fails on; Envoy never
sees an error. A message longer than those that Envoy sends is dropped, and so are entries beyond a limit, so
that no message keeps the event loop for long.
"""

from __future__ import annotations

import logging
import math
from enum import Enum
from typing import TYPE_CHECKING, Protocol

import msgspec
from google.protobuf.message import DecodeError

from epp.apis.failure import AnswerFailure, failure_in
from epp.apis.usage import NO_USAGE, Usage, UsageReader
from epp.config.relays import RELAY_NAMESPACE, RELAY_SERVED_KEY, UNSERVED_HEADER
from epp.config.retries import MAX_RETRIES
from epp.extproc.messages import (
    DECISION_HEADER,
    DECISION_KEY,
    DECISION_NAMESPACE,
    DESTINATION_HEADER,
    LB_NAMESPACE,
    MAX_BODILESS_BYTES,
)
from epp.logs import REPEATED
from epp.pb.access_log_pb2 import StreamAccessLogsMessage, StreamAccessLogsResponse
from epp.rpc.handlers import Handler
from epp.rpc.http2.status import Status
from epp.schedule.decision import FAILED_ANSWER, FIRST_ERROR

if TYPE_CHECKING:
    from google.protobuf.duration_pb2 import Duration
    from google.protobuf.struct_pb2 import Struct

    from epp.pb.access_log_pb2 import AccessLogCommon, HTTPAccessLogEntry
    from epp.rpc.http2.connection import Call
    from epp.rpc.http2.messages import Message

log = logging.getLogger(__name__)

#: Namespaces and keys of dynamic metadata that Envoy writes, as `epp.envoy` configures them.
OBSERVED_NAMESPACE = "epp.observe"

ACCESS_LOG = "/envoy.service.accesslog.v3.AccessLogService/StreamAccessLogs"
#: Most entries of one message. Envoy sends what it has at 16 KiB, ``buffer_size_bytes``, and an entry of ours
#: takes some hundred bytes.
_MAX_ENTRIES = 1000
#: Messages of one stream: under load, minutes. A picker that returned hears from its Envoy again by the next.
MOST_MESSAGES = 1000


class AccessLogReceiver:
    """Decodes the log's streams, one for each Envoy worker, and hands reports on.

    Args:
        reports: told of every finished request.

    Attributes:
        received: reports handed on.
        malformed: messages that could not be decoded, and entries beyond a message's limit.
        failed: reports that their receiver raised on.
    """

    def __init__(self, reports: Reports) -> None:
        self._reports = reports
        self._streams: set[AccessLogCall] = set()
        self.received = 0
        self.malformed = 0
        self.failed = 0

    def serve(self, call: Call) -> AccessLogCall:
        """Serve a stream."""
        stream = AccessLogCall(call, self)
        self._streams.add(stream)
        return stream

    def closed(self, stream: AccessLogCall) -> None:
        """Forget a stream that is over."""
        self._streams.discard(stream)

    def take(self, message: Message) -> None:
        """Take one message of a stream."""
        if len(message) > MAX_BODILESS_BYTES:
            self.malformed += 1
            return
        try:
            entries = StreamAccessLogsMessage.FromString(message).http_logs.log_entry  # type: ignore[arg-type]  # stubs know bytes alone
        except DecodeError:
            self.malformed += 1
            return
        self.malformed += max(0, len(entries) - _MAX_ENTRIES)
        for entry in entries[:_MAX_ENTRIES]:
            try:
                if entry.request.request_headers:  # which entries about whole requests have not
                    self._reports.attempted(decode_attempt(entry))
                else:
                    self._reports.finished(decode(entry))
            except Exception:
                self.failed += 1
                log.exception("a report was lost", extra=REPEATED)
            else:
                self.received += 1

    def end_streams(self) -> None:
        """End the open streams with status OK; Envoy opens another for its next report.

        They have no end of their own, so without this a graceful stop of the server waits for them in vain.
        """
        for stream in list(self._streams):
            stream.ended()


class AccessLogCall(Handler):
    """One stream of the log, which Envoy never ends. The next one goes to the picker that it then prefers."""

    def __init__(self, call: Call, receiver: AccessLogReceiver) -> None:
        self._call, self._receiver, self._messages = call, receiver, 0

    def message(self, message: Message) -> None:
        """Take reports."""
        self._receiver.take(message)
        self._messages += 1
        if self._messages == MOST_MESSAGES:
            self.ended()

    def cancelled(self) -> None:
        """Forget the stream: the proxy has gone."""
        self._receiver.closed(self)

    def ended(self) -> None:
        """End the stream with status OK."""
        self._receiver.closed(self)
        self._call.finish(Status.OK, last=StreamAccessLogsResponse().SerializeToString())
        self._call.flush()


class Termination(Enum):
    """Why a request ended."""

    COMPLETED = "completed"  # the answer, whatever its status, was passed on to its end
    RETRIED_ELSEWHERE = "retried-elsewhere"  # completed, by another endpoint than the chosen one
    CLIENT_GONE = "client-gone"  # the client left before the end
    UPSTREAM_RESET = "upstream-reset"  # the endpoint, or its connection, broke off
    UNREACHABLE = "unreachable"  # no endpoint could be connected to, or none was there
    TIMED_OUT = "timed-out"  # a limit of Envoy's ran out
    FAILED_ANSWER = FAILED_ANSWER  # the answer, begun as a good one, says that the request failed
    REFUSED = "refused"  # Envoy answered by itself: too long, overloaded, refused by the picker


#: Flags of Envoy's by what they say; of several the first in this order ended the request.
_FLAGS = {
    Termination.CLIENT_GONE: {
        "downstream_connection_termination",
        "downstream_remote_reset",
        "downstream_protocol_error",
    },
    Termination.TIMED_OUT: {
        "upstream_request_timeout",
        "stream_idle_timeout",
        "duration_timeout",
        "upstream_max_stream_duration_reached",
    },
    Termination.UNREACHABLE: {
        "upstream_connection_failure",
        "no_healthy_upstream",
        "no_cluster_found",
        "no_route_found",
        "upstream_overflow",
        "dns_resolution_failure",
    },
    Termination.UPSTREAM_RESET: {
        "upstream_connection_termination",
        "upstream_remote_reset",
        "upstream_protocol_error",
        "local_reset",
    },
}


class Report(msgspec.Struct, frozen=True):
    """How a request went. Times are NaN, counts and texts None or empty, where Envoy did not see them.

    Attributes:
        decision_id: the picker's own id; ``""`` for a request that Envoy served without a decision.
        status: HTTP status sent to the client, 0 when none was.
        cause: why it ended.
        picked: the endpoints that the picker named, in its order.
        served: address of the endpoint that really answered, or was tried last, as its relay tells it where
            there is one; of a relay that was not reached, the relay's own.
        relayed: a relay told who served: it may have tried others before.
        attempts: tries on endpoints; 0 when none was tried.
        response_bytes: body bytes sent to the client.
        ttft_ms: from the request's arrival to the first content of a 2xx answer, as `epp.apis.events` has it,
            of what is no event stream to its first body chunk.
        e2e_ms: from the request's arrival to the end.
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
        response_id: under which the engine stores the response, ``""`` where there is none.
        failure: what the engine said of it where it failed, in an answer of any status.
        model: what the answer calls the model, ``""`` where it does not say.
    """

    decision_id: str
    status: int
    cause: Termination
    picked: tuple[str, ...]
    served: str
    relayed: bool
    attempts: int
    response_bytes: int
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
    response_id: str = ""
    failure: AnswerFailure | None = None
    model: str = ""

    @property
    def honoured(self) -> bool | None:
        """Whether the first attempt went to the chosen endpoint; None where attempts do not tell.

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


#: ``Retry-After`` of an endpoint that says that it is full, and not for how long.
FULL_PAUSE_S = "1"


class Attempt(msgspec.Struct, frozen=True):
    """A request that an endpoint refused, or that did not reach it; it may go on to another.

    Attributes:
        decision_id: the picker's own id; ``""`` where no retry was allowed.
        picked: the endpoints that the picker named, in its order.
        served: address of the endpoint tried.
        status: its answer's, 0 without one.
        retry_after: the answer's ``Retry-After``, ``""`` without one.
        unserved: a peer region's answer that no engine has seen the request.
    """

    decision_id: str
    picked: tuple[str, ...]
    served: str
    status: int
    retry_after: str
    unserved: bool

    @property
    def following(self) -> str:
        """Name the endpoint that is tried next, ``""`` where none is."""
        if self.served not in self.picked[: min(MAX_RETRIES, len(self.picked) - 1)]:
            return ""
        return self.picked[self.picked.index(self.served) + 1]


class Reports(Protocol):
    """Who is told. All are called on the event loop and must not block; unknown ids are theirs to count."""

    def first_token(self, decision_id: str) -> None:
        """Note that the first chunk of a streamed answer has just passed Envoy."""

    def stored(self, decision_id: str, response_id: str) -> None:
        """Note the id under which the engine stores a response that has begun to pass Envoy."""

    def attempted(self, attempt: Attempt) -> None:
        """Take an attempt that was refused or failed, as a rule before the request's end."""

    def finished(self, report: Report) -> None:
        """Take the end of a request; for one that the picker did not decide the id is empty."""


def decode_attempt(entry: HTTPAccessLogEntry) -> Attempt:
    """Decode a log entry about one attempt; nothing that is missing or odd in it raises."""
    asked, answered = entry.request.request_headers, entry.response.response_headers
    return Attempt(
        decision_id=asked.get(DECISION_HEADER, ""),
        picked=_listed(asked.get(DESTINATION_HEADER, "")),
        served=_host(entry.common_properties),
        status=entry.response.response_code.value,
        retry_after=answered.get("retry-after", ""),
        unserved=UNSERVED_HEADER in answered,
    )


def decode(entry: HTTPAccessLogEntry) -> Report:
    """Decode one log entry; nothing that is missing or odd in it raises."""
    common, response = entry.common_properties, entry.response
    namespaces = common.metadata.filter_metadata
    # By `get`: looking a key up in a message map by brackets would create it.
    ours = namespaces.get(DECISION_NAMESPACE)
    seen = namespaces.get(OBSERVED_NAMESPACE)
    lb = namespaces.get(LB_NAMESPACE)
    relay = namespaces.get(RELAY_NAMESPACE)
    picked = _listed(_text(lb, DESTINATION_HEADER))
    flags: tuple[str, ...] = ()
    if common.HasField("response_flags"):
        flags = tuple([field.name for field, value in common.response_flags.ListFields() if value is True])
    told = _text(relay, RELAY_SERVED_KEY)
    served = told or _host(common)
    chunks, streamed, usage = _count(seen, "chunks"), _scalar(seen, "streamed"), _scalar(seen, "usage")
    # A client that hangs up at the end mark has all that it wanted.
    ended = chunks is not None and streamed is True
    status, told = response.response_code.value, _text(seen, "failure")
    failure = failure_in(told.encode(), status) if told else None
    e2e_ms, sent_ms = _ms(common, "duration"), _ms(common, "time_to_first_upstream_tx_byte")
    connect_ms, fresh_ms = _tag_ms(common, "connect_us"), _tag_ms(common, "fresh_us")
    return Report(
        # One that an engine refused has come back to the picker, with the refusal and before this entry.
        decision_id=""
        if response.response_code_details == "internal_redirect"
        else _text(ours, DECISION_KEY),
        status=status,
        cause=Termination.FAILED_ANSWER
        if failure is not None and status < FIRST_ERROR
        else _cause(flags, ended=ended, picked=picked, served=served),
        picked=picked,
        served=served,
        relayed=bool(told),
        attempts=common.upstream_request_attempt_count,
        response_bytes=response.response_body_bytes,
        # The first byte of a failure is no first token, and its counts are nobody's.
        ttft_ms=math.nan if failure and not streamed else _ttft_ms(common, _scalar(seen, "first_us"), e2e_ms),
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
        usage=_usage(usage) if isinstance(usage, str) and not failure else NO_USAGE,
        opened_ms=sent_ms - fresh_ms,
        retry_after=response.response_headers.get("retry-after", ""),
        response_id=_text(seen, "response_id"),
        failure=failure,
        model=_text(seen, "model"),
    )


def _listed(destination: str) -> tuple[str, ...]:
    """Read a decision's comma list."""
    return tuple([stripped for name in destination.split(",") if (stripped := name.strip())])


def _host(common: AccessLogCommon) -> str:
    """Read the address of the endpoint tried, "" where there was none."""
    socket = common.upstream_remote_address.socket_address
    host = f"[{socket.address}]" if ":" in socket.address else socket.address
    return f"{host}:{socket.port_value}" if host else ""


def _cause(flags: tuple[str, ...], *, ended: bool, picked: tuple[str, ...], served: str) -> Termination:
    """Choose why a request ended."""
    if not ended:
        for cause, names in _FLAGS.items():
            if not names.isdisjoint(flags):
                return cause
    if not served:
        return Termination.REFUSED
    if picked and served != picked[0]:
        return Termination.RETRIED_ELSEWHERE
    return Termination.COMPLETED


def _scalar(struct: Struct | None, name: str) -> str | float | bool | None:
    """Read a scalar field of a struct."""
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
    """Read the usage objects as they stood in the answer, names included."""
    reader = UsageReader()
    reader.feed(text.encode())
    return reader.usage


def _ms(common: AccessLogCommon, field: str) -> float:
    if not common.HasField(field):
        return math.nan
    duration: Duration = getattr(common, field)
    return duration.seconds * 1e3 + duration.nanos / 1e6


def _tag_ms(common: AccessLogCommon, tag: str) -> float:
    """Read a duration in a custom tag, microseconds in decimal; ``-`` where Envoy has none."""
    if tag not in common.custom_tags:
        return math.nan
    text = common.custom_tags[tag]
    # Nineteen digits are 300,000 years; of thousands Python makes no number.
    return int(text) / 1e3 if text.isascii() and text.isdigit() and len(text) < 20 else math.nan


def _ttft_ms(common: AccessLogCommon, first_us: object, e2e_ms: float) -> float:
    """Subtract two moments of Envoy's wall clock; NaN where that was set in between."""
    if not isinstance(first_us, float) or not math.isfinite(first_us) or not common.HasField("start_time"):
        return math.nan
    start = common.start_time
    ttft_ms = (first_us - start.seconds * 1e6) / 1e3 - start.nanos / 1e6
    limit_ms = math.inf if math.isnan(e2e_ms) else e2e_ms
    # The stamp is cut to microseconds, the rest are nanoseconds.
    return max(0.0, ttft_ms) if -1.0 <= ttft_ms <= limit_ms + 1.0 else math.nan
