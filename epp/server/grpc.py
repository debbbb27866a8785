"""The gRPC face: ext_proc, access log and health on one listener.

Owns which transport serves (`listen.transport`), limits, and the order of a stop; the transports are
`epp.rpc.server`, the picker's own, and `epp.rpc.grpcio_server`. A stream that ends in any way -
closed, reset, cancelled, failed - ends its exchange exactly once.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from epp.config.listen import LONGEST_MESSAGE_BYTES
from epp.errors import ConfigError
from epp.extproc.body_budget import BodyBudget
from epp.extproc.stream import Stream
from epp.request.access_log import ACCESS_LOG, AccessLogReceiver
from epp.request.ext_proc import BODILESS, PROCESS, Exchange, ProcessCall
from epp.request.first_token import TOLD
from epp.rpc.accepting import located
from epp.rpc.server import RpcServer
from epp.server.health import HealthState, health_service
from epp.server.process import allowed_held_bytes
from epp.server.tls import GRPC_SECTION

if TYPE_CHECKING:
    from collections.abc import Callable

    from epp.config.schema import Config
    from epp.extproc.body_budget import Share
    from epp.metrics.metrics import Metrics
    from epp.request.access_log import Reports
    from epp.request.director import Director
    from epp.request.first_token import FirstTokenReceiver
    from epp.request.response_sampling import Sampler
    from epp.rpc.connection_balancer import ConnectionBalancer
    from epp.rpc.grpcio_server import GrpcioServer
    from epp.rpc.handlers import Serve
    from epp.rpc.http2.messages import Room
    from epp.server.tls import Certificates

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
        tls: makes what the listener presents.
        director: decides.
        metrics: counted into.
        source: name of the configuration file, for errors.
        reports: takes what Envoy's access log says.
        first_tokens: takes what Envoy says while answers run.
        sampler: says which responses are read.
        max_connections: at once; those beyond are closed as they come.
        balancer: this process's part among several that listen; None where there is one.

    Raises:
        ConfigError: a TLS file cannot be read.
    """

    def __init__(
        self,
        config: Config,
        tls: Certificates,
        director: Director,
        metrics: Metrics,
        source: str,
        *,
        reports: Reports,
        first_tokens: FirstTokenReceiver,
        sampler: Sampler,
        max_connections: int,
        balancer: ConnectionBalancer | None = None,
    ) -> None:
        self._config, self._director, self._metrics, self._source = config, director, metrics, source
        self._sampler, self._balancer = sampler, balancer
        self._max_body_bytes = config.request.max_body_bytes
        longest = max(self._max_body_bytes, _LONGEST_PIECE_BYTES) + _ENVELOPE_BYTES
        max_send_bytes = min(longest, LONGEST_MESSAGE_BYTES)
        max_receive_bytes = config.listen.max_receive_bytes or max_send_bytes
        held_bytes = allowed_held_bytes(config.request.max_held_body_bytes)
        bodies = BodyBudget(held_bytes, beside_bytes=max_receive_bytes)
        #: Of all calls on grpcio, which does not say which connection a call is on.
        self._grpcio_share = bodies.share()
        self._bodies = bodies
        metrics.show("bodies", bodies)
        self.access_log = AccessLogReceiver(reports)
        metrics.receivers["access-log"] = self.access_log
        self._health = HealthState()
        self._started = False
        methods = grpc_methods(metrics, self._health, self._new_exchange, self.access_log)
        methods[TOLD] = first_tokens.serve
        self._listener: RpcServer | GrpcioServer
        if config.listen.transport == "grpcio":
            self._listener = _grpcio_server(source)(
                methods,
                max_receive_bytes=max_receive_bytes,
                max_send_bytes=max_send_bytes,
                credentials=tls.credentials(config.listen.tls),
                max_connections=max_connections,
                room=self._grpcio_share,
                bodiless=BODILESS,
                single={PROCESS} if sampler.may_end_streams else (),
            )
        else:
            self._listener = RpcServer(
                methods,
                max_receive_bytes=max_receive_bytes,
                max_send_bytes=max_send_bytes,
                tls=tls.context(config.listen.tls, GRPC_SECTION),
                new_room=bodies.share,
                max_connections=max_connections,
                bodiless=BODILESS,
                on_closed=lambda reason: metrics.value("epp_connections_closed_total", "grpc", reason).inc(),
                on_throttled=metrics.value("epp_connections_throttled_seconds_total").inc,
                balancer=balancer,
            )

    async def start(self) -> str:
        """Open the listener; its address with the port that it really has.

        Raises:
            ConfigError: an address cannot be bound.
        """
        listen = self._config.listen
        with located(self._source, "listen.grpc", listen.grpc):
            bound = await self._listener.start(listen.grpc)
        self._started = True
        return bound

    def set_serving(self, *, serving: bool) -> None:
        """Set what the health service answers."""
        self._health.update(serving=serving)

    async def stop(self, grace_s: float) -> None:
        """Take no new streams, give the open ones ``grace_s``, then cut them.

        The access log's streams have no end of their own: they are ended once their last reports are in.
        """
        if not self._started:
            return
        stopping = asyncio.ensure_future(self._listener.stop(grace_s))
        deadline_s = asyncio.get_running_loop().time() + grace_s
        # A drain is rare and short: polling spares every request an event.
        while self._in_flight and asyncio.get_running_loop().time() < deadline_s:  # noqa: ASYNC110
            await asyncio.sleep(_DRAIN_POLL_S)
        await asyncio.sleep(min(grace_s, _LAST_REPORTS_S))
        self.access_log.end_streams()
        self._health.end_watches()
        await stopping

    @property
    def _in_flight(self) -> float:
        """Count requests in flight: other workers' may be reported here."""
        own = self._director.scheduler.in_flight
        return own if self._balancer is None else self._balancer.in_flight(own)

    def _new_exchange(self, room: Room) -> Exchange:
        stream = Stream(
            self._max_body_bytes,
            self._director.refuse_unread,
            pick_at=self._director.decide_at,
            bodies=cast("Share", room),
        )
        return Exchange(stream, self._director, self._metrics, self._sampler)


def grpc_methods(
    metrics: Metrics,
    health: HealthState,
    new_exchange: Callable[[Room], Exchange],
    access_log: AccessLogReceiver,
) -> dict[str, Serve]:
    """What a listener serves, by path.

    Args:
        metrics: counted into.
        health: what its health service says.
        new_exchange: makes what carries one HTTP request.
        access_log: takes Envoy's reports.
    """
    return {
        **health_service(health, any_name=False),
        PROCESS: lambda call: ProcessCall(call, new_exchange(call.room), metrics),
        ACCESS_LOG: access_log.serve,
    }


def _grpcio_server(source: str) -> type[GrpcioServer]:
    try:
        from epp.rpc.grpcio_server import GrpcioServer  # noqa: PLC0415  # no threads of gRPC's unless asked for
    except ImportError:
        problem, fix = "needs the package grpcio", "pip install 'gorgo-epp[grpcio]'"
        raise ConfigError(source, "listen.transport", problem, fix) from None
    return GrpcioServer
