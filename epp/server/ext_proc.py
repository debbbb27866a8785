"""The ext_proc service: a gRPC stream read and written, and ended so that nothing is lost.

Owns how a stream ends on the wire. The method is served as one that answers with a single message, of which
only the end is used: gRPC sends that message and the status as one batch, in one write, whereas the end of
a streaming method follows its last message by a turn of the event loop, in which Envoy may have sent us
pieces of an answer that it will then not get back (docs/transport.md). All messages before the last are
written as they come. A stream that the other side has closed is ended with an empty message, which nobody
reads.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import grpc

from epp.extproc.types import Abort, Finish
from epp.pb.ext_proc_pb2 import ProcessingRequest
from epp.server.health import EXT_PROC

if TYPE_CHECKING:
    from collections.abc import Callable

    from epp.server.exchange import Exchange
    from epp.server.metrics import Metrics

log = logging.getLogger(__name__)


class ExtProc:
    """The servicer.

    Args:
        new_exchange: makes what carries one HTTP request.
        metrics: counted into.
        single: whether streams may end with their pick; without it the method is an ordinary streaming one.
    """

    def __init__(self, new_exchange: Callable[[], Exchange], metrics: Metrics, *, single: bool) -> None:
        self._new_exchange, self._metrics, self._single = new_exchange, metrics, single
        #: Set when the server begins to stop.
        self.leaving = False

    def handler(self) -> grpc.GenericRpcHandler:
        """What the server is given."""
        make = grpc.stream_unary_rpc_method_handler if self._single else grpc.stream_stream_rpc_method_handler
        # Messages are serialized here: a single-answer method's context would not do it.
        method = make(self._process, request_deserializer=ProcessingRequest.FromString)
        return grpc.method_handlers_generic_handler(EXT_PROC, {"Process": method})

    async def _process(self, _: Any, context: grpc.aio.ServicerContext[Any, Any]) -> bytes | None:
        exchange = self._new_exchange()
        self._metrics.streams.inc()
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
            log.warning("a stream was aborted: %s", aborted.detail)
            await context.abort(code, aborted.detail)
        except Exception as error:
            if self.leaving and isinstance(error, grpc.aio.BaseError):
                raise  # the server has stopped under a stream that was over: gRPC says so in a line
            log.exception("a stream failed")
            self._metrics.stream_errors.inc()
            await context.abort(grpc.StatusCode.INTERNAL, "internal error")
        finally:
            exchange.closed(cut=cut)
            self._metrics.stream_ended(_go_name(code), time_s() - began_s)
        return last if self._single else None

    async def _converse(self, exchange: Exchange, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
        """Read and write until either side ends the stream; the message to end it with."""
        while True:
            message = await context.read()
            if message is grpc.aio.EOF:
                return b""
            replies, marker = await exchange.receive(message)
            last = replies.pop() if self._single and replies and isinstance(marker, Finish) else None
            for reply in replies:
                await context.write(reply.SerializeToString())
            if isinstance(marker, Finish):
                return b"" if last is None else last.SerializeToString()
            if isinstance(marker, Abort):
                raise _AbortedError(grpc.StatusCode[marker.status], marker.detail)


class _AbortedError(Exception):
    """The stream is to end with an error that is not the picker's."""

    def __init__(self, code: grpc.StatusCode, detail: str) -> None:
        self.code, self.detail = code, detail
        super().__init__(detail)


def _go_name(code: grpc.StatusCode) -> str:
    """A status as dashboards of llm-d know it, which is what Go calls it."""
    if code in _GO_NAMES:
        return _GO_NAMES[code]
    return "".join(word.capitalize() for word in str(code.name).split("_"))


_GO_NAMES = {grpc.StatusCode.OK: "OK", grpc.StatusCode.CANCELLED: "Canceled"}
