"""Receives Envoy's gRPC access log: one report for each finished request.

Owns what is counted of the service `envoy.service.accesslog.v3.AccessLogService` and who is sending; what a
report says is read in `epp.server.report`. Registered on the picker's gRPC listener beside ext_proc, and to
be reached by Envoy alone, as that one is: whoever reaches it could report anything about a decision whose id
it knows.

Rules: an entry that cannot be read is counted and dropped, and so is what the receiver of reports fails on;
the stream goes on, and Envoy never sees an error. A message longer than those that Envoy sends is dropped,
and so are entries beyond a limit, so that no message keeps the event loop for long.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from epp.extproc.message_size import MAX_BODILESS_BYTES
from epp.pb.access_log_pb2 import StreamAccessLogsMessage, StreamAccessLogsResponse
from epp.server.handlers import Handler
from epp.server.logs import REPEATED
from epp.server.report import decode
from epp.transport.status import Status

if TYPE_CHECKING:
    from epp.server.report import Reports
    from epp.transport.calls import Call
    from epp.transport.messages import Message

log = logging.getLogger(__name__)

ACCESS_LOG = "/envoy.service.accesslog.v3.AccessLogService/StreamAccessLogs"
#: Most entries of one message. Envoy sends what it has at 16 KiB, ``buffer_size_bytes``, and an entry of ours
#: takes some hundred bytes.
_MAX_ENTRIES = 1000


class AccessLogReceiver:
    """Decodes the log's streams, one for each Envoy worker, and hands reports on.

    Args:
        reports: takes every finished request.

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
        """One message of a stream."""
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
    """One stream of the log. It has no end of its own: `AccessLogReceiver.end_streams` ends it."""

    def __init__(self, call: Call, receiver: AccessLogReceiver) -> None:
        self._call, self._receiver = call, receiver

    def message(self, message: Message) -> None:
        """Take reports."""
        self._receiver.take(message)

    def cancelled(self) -> None:
        """Forget the stream: the proxy has gone."""
        self._receiver.closed(self)

    def ended(self) -> None:
        """End the stream with status OK."""
        self._receiver.closed(self)
        self._call.finish(Status.OK, last=StreamAccessLogsResponse().SerializeToString())
        self._call.flush()
