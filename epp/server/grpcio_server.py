"""A gRPC listener of grpcio's: `listen.transport: grpcio`. All that knows its channel arguments is here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc
from grpc_health.v1 import health_pb2_grpc

from epp.config.address import join_address, split_address
from epp.config.listen import MAX_CONNECTIONS
from epp.server.grpcio_services import AccessLog, ExtProc, Health

if TYPE_CHECKING:
    from epp.server.services import Services

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


class GrpcioServer:
    """One listener.

    Args:
        services: what is served.
        max_receive_bytes: longest message taken.
        max_send_bytes: longest message sent.
        credentials: of the listener, None for plaintext.
        max_connections: at once; those beyond are closed as they come, and not counted.
    """

    def __init__(
        self,
        services: Services,
        *,
        max_receive_bytes: int,
        max_send_bytes: int,
        credentials: grpc.ServerCredentials | None = None,
        max_connections: int = MAX_CONNECTIONS,
    ) -> None:
        self._services, self._credentials = services, credentials
        self._max_send_bytes = max_send_bytes
        self._options = (
            *_OPTIONS,
            ("grpc.max_receive_message_length", max_receive_bytes),
            ("grpc.max_send_message_length", max_send_bytes),
            ("grpc.max_allowed_incoming_connections", max_connections),
        )
        self._server: grpc.aio.Server | None = None
        self._ext_proc: ExtProc | None = None

    async def start(self, address: str) -> str:
        """Listen; the address with the port that it really has.

        Raises:
            OSError: the address cannot be bound.
        """
        services = self._services
        server = grpc.aio.server(options=self._options)
        self._ext_proc = ExtProc(
            services.new_exchange,
            services.metrics,
            single=services.may_leave,
            max_send_bytes=self._max_send_bytes,
        )
        log = AccessLog(services.access_log)
        server.add_generic_rpc_handlers((self._ext_proc.handler(), log.handler()))
        health_pb2_grpc.add_HealthServicer_to_server(Health(services.health, services.watchers), server)
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
        if self._ext_proc is not None:
            self._ext_proc.leaving = True
        if self._server is not None:
            await self._server.stop(grace_s)
