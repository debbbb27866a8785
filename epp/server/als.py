"""Receives Envoy's gRPC access log: one report for each finished request.

Owns the wire side of the service `envoy.service.accesslog.v3.AccessLogService`; what a report says is read in
`epp.server.report`. Registered on the picker's gRPC server beside ext_proc, and to be reached by Envoy alone,
as that one is: whoever reaches it could report anything about a decision whose id it knows.

Rules: an entry that cannot be read is counted and dropped, and so is what the receiver of reports fails on;
the stream goes on, and Envoy never sees an error.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

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
        self._streams: set[asyncio.Future[None]] = set()
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

    def end_streams(self) -> None:
        """End the open streams with status OK; Envoy opens another for its next report.

        They have no end of their own, so without this a graceful stop of the server waits for them in vain.
        """
        for ending in self._streams:
            if not ending.done():
                ending.set_result(None)

    async def _receive(self, requests: AsyncIterator[bytes], _: object) -> StreamAccessLogsResponse:
        ending: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        reading = asyncio.ensure_future(self._read(requests))
        self._streams.add(ending)
        try:
            await asyncio.wait((reading, ending), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._streams.discard(ending)
            reading.cancel()
        return StreamAccessLogsResponse()

    async def _read(self, requests: AsyncIterator[bytes]) -> None:
        try:
            async for message in requests:
                self.take(message)
        except Exception:
            log.debug("a stream of the access log broke off", exc_info=True)
