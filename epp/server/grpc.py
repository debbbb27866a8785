"""The gRPC face: ext_proc and health on one listener. All that knows grpc.aio is here.

The servicer is a loop of reads and writes (`docs/transport.md` has the measurements behind that choice), in
`epp.server.ext_proc`. A stream that ends in any way - closed, reset, cancelled, failed - ends its exchange
exactly once.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import grpc
from grpc_health.v1 import health_pb2_grpc

from epp.config.address import join_address, split_address
from epp.extproc.modes import Assumption, BodyMode
from epp.extproc.stream import Stream, StreamLimits
from epp.server.als import AccessLogReceiver
from epp.server.exchange import Exchange
from epp.server.ext_proc import ExtProc
from epp.server.health import EXT_PROC, Health, HealthState
from epp.server.metrics_hot import FamilyCollector
from epp.server.metrics_protocol import ProtocolMetrics
from epp.server.tls import grpc_credentials

if TYPE_CHECKING:
    from pathlib import Path

    from epp.config.schema import Config
    from epp.server.core import Core
    from epp.server.metrics import Metrics
    from epp.server.observation import Observation

SERVICE = EXT_PROC

#: Envoy pings an idle connection, and asks often when it must notice a frozen picker soon; the defaults of
#: gRPC would drop it for that.
_OPTIONS = (
    ("grpc.http2.min_ping_interval_without_data_ms", 100),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.so_reuseport", 0),
)
_ENVELOPE_BYTES = 1024 * 1024
#: In full duplex a long upload passes the picker piece by piece, whatever the longest body that it reads, and
#: Envoy 1.36 gathers what came in the meantime into one piece (4 MB were seen, 1.40 does not).
_LONGEST_PIECE_BYTES = 32 * 1024 * 1024
_DRAIN_POLL_S = 0.05
#: Twice the interval at which Envoy, as we configure it, sends its access log.
_LAST_REPORTS_S = 0.25


class GrpcServer:
    """Listener, servicer and health.

    Args:
        config: listener, TLS and body limit.
        base: folder that relative paths are relative to.
        core: decides.
        metrics: counted into.
        source: name of the configuration file, for errors.
        observation: what is seen of responses.

    Raises:
        ConfigError: a TLS file cannot be read.
    """

    def __init__(
        self,
        config: Config,
        base: Path,
        core: Core,
        metrics: Metrics,
        source: str,
        *,
        observation: Observation,
    ) -> None:
        self._config, self._core, self._metrics = config, core, metrics
        self._protocol = ProtocolMetrics()
        metrics.registry.register(FamilyCollector(self._protocol.families()))
        self._sampler, self._leases = observation.sampler, observation.leases
        self._limits = StreamLimits(max_body_bytes=config.request.max_body_bytes)
        self._assume = Assumption()
        if config.request.assume_mode == "buffered":
            self._assume = Assumption(BodyMode.BUFFERED, BodyMode.NONE)
        self._credentials = grpc_credentials(config.listen.tls, base, source)
        self.access_log = AccessLogReceiver(core.outcomes)
        self._health = HealthState()
        self._server: grpc.aio.Server | None = None
        self._health_server: grpc.aio.Server | None = None
        #: Where the listener for health alone is, once it is open.
        self.health_address = ""

    async def start(self) -> str:
        """Open the listener; its address with the port that it really has.

        Raises:
            OSError: the address cannot be bound.
        """
        address = self._config.listen.grpc
        longest = max(self._limits.max_body_bytes, _LONGEST_PIECE_BYTES) + _ENVELOPE_BYTES
        listen = self._config.listen
        server = grpc.aio.server(
            options=(
                *_OPTIONS,
                ("grpc.max_receive_message_length", listen.max_receive_bytes or longest),
                ("grpc.max_send_message_length", listen.max_send_bytes or longest),
            )
        )
        self._ext_proc = ExtProc(self._new_exchange, self._metrics, single=self._sampler.may_leave)
        server.add_generic_rpc_handlers((self._ext_proc.handler(), self.access_log.handler()))
        health_pb2_grpc.add_HealthServicer_to_server(Health(self._health, any_name=False), server)
        bound = _bind(server, address, self._credentials)
        if listen.health:
            self._health_server = grpc.aio.server(options=_OPTIONS)
            health_pb2_grpc.add_HealthServicer_to_server(
                Health(self._health, any_name=True), self._health_server
            )
            self.health_address = _bind(self._health_server, listen.health, None)
            await self._health_server.start()
        await server.start()
        self._server = server
        return bound

    async def set_serving(self, *, serving: bool) -> None:
        """Tell the health service's clients."""
        await self._health.set_serving(serving=serving)

    async def stop(self, grace_s: float) -> None:
        """Take no new streams, give the open ones ``grace_s``, then cut them.

        The access log's streams have no end of their own: they are ended once their last reports are in.
        """
        if self._server is None:
            await self._stop_health()
            return
        self._ext_proc.leaving = True
        stopping = asyncio.ensure_future(self._server.stop(grace_s))
        deadline_s = asyncio.get_running_loop().time() + grace_s
        # A drain is rare and short: polling spares every request an event.
        while self._core.picker.in_flight and asyncio.get_running_loop().time() < deadline_s:  # noqa: ASYNC110
            await asyncio.sleep(_DRAIN_POLL_S)
        await asyncio.sleep(min(grace_s, _LAST_REPORTS_S))
        self.access_log.end_streams()
        await stopping
        await self._stop_health()

    async def _stop_health(self) -> None:
        """Last, so that readiness is told for as long as the picker drains."""
        if self._health_server is not None:
            await self._health_server.stop(0)

    def _new_exchange(self) -> Exchange:
        gateway, conformance = self._core.gateway, self._config.protocol.conformance
        stream = Stream(
            self._limits,
            self._assume,
            gateway.too_large,
            pick_at=self._core.pick_at,
            tell_served=conformance,
        )
        return Exchange(
            stream, self._core, self._metrics, self._sampler, self._leases, protocol=self._protocol
        )


def _bind(server: grpc.aio.Server, address: str, credentials: grpc.ServerCredentials | None) -> str:
    """Open a listener; its address with the port that it really has.

    Raises:
        OSError: the address cannot be bound.
    """
    try:
        if credentials is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, credentials)
    except RuntimeError as error:
        raise OSError(f"cannot listen on {address}: {error}") from error
    return join_address(split_address(address)[0], port)
