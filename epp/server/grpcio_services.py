"""The services as grpcio serves them: ext_proc, the access log, health. All that knows grpc.aio's servicers.

Owns how a stream of ext_proc ends on grpcio's wire. The method is served as one that answers with a single
message, of which only the end is used: gRPC sends that message and the status as one batch, in one write,
whereas the end of a streaming method follows its last message by a turn of the event loop, in which Envoy may
have sent us pieces of an answer that it will then not get back (docs/transport.md). All messages before the
last are written as they come. A stream that the other side has closed is ended with an empty message, which
nobody reads.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2_grpc

from epp.extproc.types import Abort, Finish
from epp.pb.access_log_pb2 import StreamAccessLogsResponse
from epp.pb.ext_proc_pb2 import ProcessingRequest
from epp.server.als import METHOD as ACCESS_LOG_METHOD
from epp.server.als import SERVICE as ACCESS_LOG
from epp.server.ext_proc import ABORTED, BODILESS, FAILED, NO_MESSAGE, go_name
from epp.server.health import EXT_PROC, MAX_WATCHES, TOO_MANY_WATCHES
from epp.server.logs import REPEATED
from epp.transport.messages import BEGIN_BYTES, MessageError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from epp.pb.ext_proc_pb2 import ProcessingResponse
    from epp.server.als import AccessLogReceiver
    from epp.server.exchange import Exchange
    from epp.server.health import HealthNames
    from epp.server.metrics import Metrics
    from epp.server.rpc_handlers import Watching
    from epp.transport.messages import Room

log = logging.getLogger(__name__)


class ExtProc:
    """The servicer.

    Args:
        new_exchange: makes what carries one HTTP request.
        metrics: counted into.
        single: whether streams may end with their pick; without it the method is an ordinary streaming one.
        max_send_bytes: longest message sent. gRPC has the limit too, but fails a stream's last message when
            the stream is out of our hands, and with it its pick, whose lease nobody would end.
    """

    def __init__(
        self,
        new_exchange: Callable[[Room | None], Exchange],
        metrics: Metrics,
        *,
        single: bool,
        max_send_bytes: int,
    ) -> None:
        self._new_exchange, self._metrics, self._single = new_exchange, metrics, single
        self._max_send_bytes = max_send_bytes
        #: Set when the server begins to stop.
        self.leaving = False

    def handler(self) -> grpc.GenericRpcHandler:
        """What the server is given."""
        make = grpc.stream_unary_rpc_method_handler if self._single else grpc.stream_stream_rpc_method_handler
        # Messages are serialized here: a single-answer method's context would not do it.
        method = make(self._process, request_deserializer=_request)
        return grpc.method_handlers_generic_handler(EXT_PROC, {"Process": method})

    async def _process(self, _: Any, context: grpc.aio.ServicerContext[Any, Any]) -> bytes | None:
        exchange = self._new_exchange(None)
        self._metrics.streams.value += 1.0
        time_s = asyncio.get_running_loop().time
        began_s, code = time_s(), grpc.StatusCode.INTERNAL
        cut, last = True, b""
        try:
            last = await self._converse(exchange, context)
            cut, code = False, grpc.StatusCode.OK
        except asyncio.CancelledError:
            code = grpc.StatusCode.CANCELLED
            raise
        except _AbortedError as aborted:
            code = aborted.code
            if aborted.ours:
                self._metrics.value("epp_faults_total", "stream").inc()
            log.warning(ABORTED, aborted.detail, extra=REPEATED)
            await context.abort(code, aborted.detail)
        except Exception as error:
            if self.leaving and isinstance(error, grpc.aio.BaseError):
                raise  # the server has stopped under a stream that was over: gRPC says so in a line
            log.exception(FAILED, extra=REPEATED)
            self._metrics.value("epp_faults_total", "stream").inc()
            await context.abort(grpc.StatusCode.INTERNAL, "internal error")
        finally:
            exchange.closed(cut=cut)
            self._metrics.stream_ended(go_name(str(code.name)), time_s() - began_s)
        return last if self._single else None

    async def _converse(self, exchange: Exchange, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
        """Read and write until either side ends the stream; the message to end it with."""
        while True:
            try:
                message = await context.read()
            except DecodeError:
                raise _AbortedError(grpc.StatusCode.INTERNAL, NO_MESSAGE) from None
            except MessageError as error:
                raise _AbortedError(grpc.StatusCode[error.status.name], error.words) from None
            if message is grpc.aio.EOF:
                return b""
            replies, marker = await exchange.receive(message)
            last = replies.pop() if self._single and replies and isinstance(marker, Finish) else None
            for reply in replies:
                await context.write(self._sendable(reply))
            if isinstance(marker, Finish):
                return b"" if last is None else self._sendable(last)
            if isinstance(marker, Abort):
                raise _AbortedError(grpc.StatusCode[marker.status], marker.detail)

    def _sendable(self, reply: ProcessingResponse) -> bytes:
        message = reply.SerializeToString()
        if len(message) > self._max_send_bytes:
            words = f"Sent message larger than max ({len(message)} vs. {self._max_send_bytes})"
            raise _AbortedError(grpc.StatusCode.RESOURCE_EXHAUSTED, words, ours=True)
        return message


def _request(message: bytes) -> ProcessingRequest:
    """Read a message whose length gRPC has checked against that of bodies alone."""
    BODILESS.check(len(message), message[:BEGIN_BYTES])
    return ProcessingRequest.FromString(message)


class _AbortedError(Exception):
    """The stream is to end with an error; ``ours`` where it is not the other side's."""

    def __init__(self, code: grpc.StatusCode, detail: str, *, ours: bool = False) -> None:
        self.code, self.detail, self.ours = code, detail, ours
        super().__init__(detail)


class AccessLog:
    """The access log's servicer.

    Args:
        receiver: takes what is sent.
    """

    def __init__(self, receiver: AccessLogReceiver) -> None:
        self._receiver = receiver

    def handler(self) -> grpc.GenericRpcHandler:
        """What the server is given."""
        method = grpc.stream_unary_rpc_method_handler(
            self._receive, response_serializer=StreamAccessLogsResponse.SerializeToString
        )
        return grpc.method_handlers_generic_handler(ACCESS_LOG, {ACCESS_LOG_METHOD: method})

    async def _receive(self, requests: AsyncIterator[bytes], _: object) -> StreamAccessLogsResponse:
        stream = _Ending()
        reading = asyncio.ensure_future(self._read(requests))
        self._receiver.opened(stream)
        try:
            await asyncio.wait((reading, stream.future), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._receiver.closed(stream)
            reading.cancel()
        return StreamAccessLogsResponse()

    async def _read(self, requests: AsyncIterator[bytes]) -> None:
        try:
            async for message in requests:
                self._receiver.take(message)
        except Exception:
            log.debug("a stream of the access log broke off", exc_info=True)


class _Ending:
    """The end of a stream that has none of its own: the access log's, or a watch of the health service."""

    def __init__(self) -> None:
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def end(self) -> None:
        """Ask for it."""
        if not self.future.done():
            self.future.set_result(None)

    leave = end


class Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # generated without types
    """The health servicer of one listener.

    Args:
        names: what is told under which name.
        watchers: holds those who watch, so that a stop can end them.
    """

    def __init__(self, names: HealthNames, watchers: set[Watching]) -> None:
        self._names, self._watchers = names, watchers

    async def Check(self, request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:  # noqa: N802
        """The state under a name."""
        answer = self._names.check(request.service)
        if answer is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, self._names.unknown(request.service))
        return answer

    async def Watch(  # noqa: N802
        self, request: Any, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[Any]:
        """The state under a name, and every change of it, until the server stops."""
        if len(self._watchers) >= MAX_WATCHES:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, TOO_MANY_WATCHES)
        answers, ending = self._names.watch(request.service), _Ending()
        self._watchers.add(ending)
        try:
            while True:
                answer = asyncio.ensure_future(anext(answers))
                try:
                    await asyncio.wait((answer, ending.future), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    answer.cancel()
                if not answer.done():
                    await context.abort(grpc.StatusCode.UNAVAILABLE, "the server stops")
                yield answer.result()
        finally:
            self._watchers.discard(ending)

    async def List(self, _request: Any, _context: object) -> Any:  # noqa: N802
        """The state under every known name."""
        return self._names.listed()
