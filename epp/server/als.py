"""Receives Envoy's gRPC access log: one report for each finished request.

Owns the wire side of the service `envoy.service.accesslog.v3.AccessLogService`; what a report says is read in
`epp.server.report`. Registered on the picker's gRPC server beside ext_proc, and to be reached by Envoy alone,
as that one is: whoever reaches it could report anything about a decision whose id it knows.

Rules: an entry that cannot be read is counted and dropped, and so is what the receiver of reports fails on;
the stream goes on, and Envoy never sees an error.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.message import DecodeError

from epp.pb.access_log_pb2 import StreamAccessLogsMessage, StreamAccessLogsResponse
from epp.server.report import decode

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from epp.server.report import Reports

log = logging.getLogger(__name__)

SERVICE = "envoy.service.accesslog.v3.AccessLogService"
METHOD = "StreamAccessLogs"


class AccessLogReceiver:
    """Decodes the log's streams, one for each Envoy worker, and hands reports on.

    Args:
        reports: told of every finished request.

    Attributes:
        received: reports handed on.
        malformed: messages that could not be decoded.
        failed: reports that their receiver raised on.
    """

    def __init__(self, reports: Reports) -> None:
        self._reports = reports
        self._streams: set[asyncio.Task[Any]] = set()
        self.received = 0
        self.malformed = 0
        self.failed = 0

    def handler(self) -> grpc.GenericRpcHandler:
        """What `grpc.aio.Server.add_generic_rpc_handlers` takes."""
        method = grpc.stream_unary_rpc_method_handler(
            self._receive, response_serializer=StreamAccessLogsResponse.SerializeToString
        )
        return grpc.method_handlers_generic_handler(SERVICE, {METHOD: method})

    def take(self, message: bytes) -> None:
        """One message of a stream."""
        try:
            entries = StreamAccessLogsMessage.FromString(message).http_logs.log_entry
        except DecodeError:
            self.malformed += 1
            return
        for entry in entries:
            try:
                self._reports.finished(decode(entry))
            except Exception:
                self.failed += 1
                log.exception("a report was lost")
            else:
                self.received += 1

    async def close(self) -> None:
        """End the streams. They have no end of their own, so a graceful stop would wait for them in vain."""
        streams = list(self._streams)
        for stream in streams:
            stream.cancel()
        for stream in streams:
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await stream

    async def _receive(self, requests: AsyncIterator[bytes], _: object) -> StreamAccessLogsResponse:
        task = asyncio.current_task()
        if task is not None:
            self._streams.add(task)
        try:
            async for message in requests:
                self.take(message)
        finally:
            if task is not None:
                self._streams.discard(task)
        return StreamAccessLogsResponse()
