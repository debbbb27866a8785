"""A gRPC listener of grpcio's: `listen.transport: grpcio`, the readable reference of the transport.

Serves the same handlers as the picker's own transport. Each call is read by a task of its own and written
here. A method whose last message must not be parted from its end is served as one that answers with a single
message: gRPC sends that and the status in one write, whereas the end of a streaming method follows its last
message by a turn of the event loop, in which Envoy may have sent us pieces of an answer that it will then not
get back (docs/transport.md). Such a call that ends without a last message ends with an empty one, which
nobody reads.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import grpc

from epp.config.address import join_address, split_address
from epp.config.listen import MAX_CONNECTIONS
from epp.logs import REPEATED
from epp.rpc.http2.messages import BEGIN_BYTES, UNBOUNDED, MessageError
from epp.rpc.http2.status import Status

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from epp.rpc.handlers import Handler, Serve
    from epp.rpc.http2.connection import Call
    from epp.rpc.http2.messages import BodilessLimit, Room

    Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]

log = logging.getLogger(__name__)

#: Envoy pings an idle connection, and asks often when it must notice a frozen picker soon; the defaults of
#: gRPC would drop it for that.
_OPTIONS = (
    ("grpc.http2.min_ping_interval_without_data_ms", 100),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.so_reuseport", 0),
    # Identity alone: a few kilobytes of compressed messages unpack to megabytes.
    ("grpc.compression_enabled_algorithms_bitset", 1),
    ("grpc.max_connection_idle_ms", 300_000),  # as on the built-in transport
)
#: gRPC says of a call that was reset first that no more messages come, and cancels it within so long.
_RESET_S = 0.02


class GrpcioCall:
    """One call as handlers know it: what of `epp.rpc.http2.connection.Call` they use.

    Attributes:
        messages: sent, and not written yet.
        wake: set whenever something has become of the call.
        taking: set while messages are taken.
        failure: what reading it, or its handler, raised.
    """

    def __init__(self, path: str, room: Room, max_send_bytes: int) -> None:
        self.path, self.room, self._max_send_bytes = path, room, max_send_bytes
        self.messages: deque[bytes] = deque()
        self.over = self.ended_there = False
        self.status, self.words = Status.OK, ""
        self.error: MessageError | None = None
        self.failure: Exception | None = None
        self.wake, self.taking = asyncio.Event(), asyncio.Event()
        self.taking.set()

    @property
    def blocked(self) -> bool:
        """Whether something waits to be written."""
        return bool(self.messages)

    def send(self, message: bytes) -> None:
        """Send a message; one that is too long ends the call instead."""
        if self.over:
            return
        if len(message) > self._max_send_bytes:
            words = f"Sent message larger than max ({len(message)} vs. {self._max_send_bytes})"
            self.finish(Status.RESOURCE_EXHAUSTED, words)
            return
        self.messages.append(message)
        self.wake.set()

    def finish(self, status: Status, words: str = "", *, last: bytes | None = None) -> bool:
        """End the call, with a last message where there is one; False where that is too long."""
        if self.over:
            return True
        if last is not None:
            self.send(last)
            if self.over:
                return False
        self.over, self.status, self.words = True, status, words
        self.wake.set()
        return True

    def flush(self) -> None:
        """Wait for `_converse`, which writes."""

    def hold(self) -> None:
        """Take no messages for now."""
        self.taking.clear()

    def release(self) -> None:
        """Take them again."""
        self.taking.set()


class GrpcioServer:
    """One listener.

    Args:
        methods: what serves a call, by its path.
        max_receive_bytes: longest message taken.
        max_send_bytes: longest message sent.
        credentials: of the listener, None for plaintext.
        max_connections: at once; those beyond are closed as they come, and not counted.
        room: what messages are held out of that wait.
        bodiless: the limit of messages without a body.
        single: paths of methods whose last message is sent with the status.
    """

    def __init__(
        self,
        methods: Mapping[str, Serve],
        *,
        max_receive_bytes: int,
        max_send_bytes: int,
        credentials: grpc.ServerCredentials | None = None,
        max_connections: int = MAX_CONNECTIONS,
        room: Room = UNBOUNDED,
        bodiless: BodilessLimit | None = None,
        single: Container[str] = (),
    ) -> None:
        self._methods, self._credentials, self._room = methods, credentials, room
        self._max_send_bytes, self._single, self._bodiless = max_send_bytes, single, bodiless
        self._options = (
            *_OPTIONS,
            ("grpc.max_receive_message_length", max_receive_bytes),
            ("grpc.max_send_message_length", max_send_bytes),
            ("grpc.max_allowed_incoming_connections", max_connections),
        )
        self._server: grpc.aio.Server | None = None

    async def start(self, address: str) -> str:
        """Listen; the address with the port that it really has.

        Raises:
            OSError: the address cannot be bound.
        """
        server = grpc.aio.server(options=self._options)
        server.add_generic_rpc_handlers(tuple(map(self._handler, self._methods)))
        try:
            if self._credentials is None:
                port = server.add_insecure_port(address)
            else:
                port = server.add_secure_port(address, self._credentials)
        except RuntimeError as error:
            raise OSError(f"cannot listen on {address}: {error}") from error
        await server.start()
        self._server = server
        return join_address(split_address(address)[0], port)

    async def stop(self, grace_s: float) -> None:
        """Take no new streams, give the open ones ``grace_s``, then cut them."""
        if self._server is not None:
            await self._server.stop(grace_s)

    def _handler(self, path: str) -> grpc.GenericRpcHandler:
        single = path in self._single

        async def serve(_requests: Any, context: Context) -> bytes | None:
            return await self._serve(path, context, single=single)

        make = grpc.stream_unary_rpc_method_handler if single else grpc.stream_stream_rpc_method_handler
        _, service, method = path.split("/")
        return grpc.method_handlers_generic_handler(service, {method: make(serve)})

    async def _serve(self, path: str, context: Context, *, single: bool) -> bytes | None:
        call = GrpcioCall(path, self._room, self._max_send_bytes)
        try:
            handler = self._methods[path](cast("Call", call))
        except Exception:
            log.exception("a call of %s failed", path, extra=REPEATED)
            await context.abort(grpc.StatusCode.INTERNAL, "internal error")
        reading = asyncio.ensure_future(_read(call, handler, context, self._bodiless))
        try:
            await _converse(call, handler, context, single=single)
        except MessageError as error:
            log.warning("a call of %s was ended: %s", path, error.words, extra=REPEATED)
            call.error = error
            call.finish(error.status, error.words)
            handler.cancelled()
        except (asyncio.CancelledError, grpc.aio.BaseError):  # the other side has gone, or we stop
            call.over = True
            handler.cancelled()
            raise
        except Exception:
            log.exception("a call of %s failed", path, extra=REPEATED)
            call.finish(Status.INTERNAL, "internal error")
            handler.cancelled()
        finally:
            reading.cancel()
        if call.status is not Status.OK:
            await context.abort(grpc.StatusCode[call.status.name], call.words)
        return (call.messages.popleft() if call.messages else b"") if single else None


async def _read(call: GrpcioCall, handler: Handler, context: Context, bodiless: BodilessLimit | None) -> None:
    """Pass messages to the handler."""
    try:
        while (message := await context.read()) is not grpc.aio.EOF:
            if bodiless is not None:
                bodiless.check(len(message), message[:BEGIN_BYTES])
            handler.message(message)
            await call.taking.wait()
        # gRPC says the same of a call that was reset, and cancels `_converse` a moment later.
        await asyncio.sleep(_RESET_S)
        call.ended_there = True
    except Exception as error:  # noqa: BLE001  # raised there
        call.failure = error
    call.wake.set()


async def _converse(call: GrpcioCall, handler: Handler, context: Context, *, single: bool) -> None:
    """Write what is sent until the call is over; of a ``single`` one all but the last message."""
    while True:
        await call.wake.wait()
        call.wake.clear()
        if call.failure is not None:
            raise call.failure
        while len(call.messages) > (single and call.over and call.status is Status.OK):
            await context.write(call.messages[0])
            call.messages.popleft()
        if call.over:
            return
        if call.ended_there:
            call.ended_there = False
            handler.ended()
        handler.drained()
