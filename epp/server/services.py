"""What a gRPC listener serves, whichever transport it is of.

Owns the list of services of a listener and their paths on the picker's own transport.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from epp.server.als import METHOD as ACCESS_LOG_METHOD
from epp.server.als import SERVICE as ACCESS_LOG
from epp.server.ext_proc import ProcessCall
from epp.server.health import EXT_PROC
from epp.server.rpc_handlers import AccessLogCall, Watching, health_service

if TYPE_CHECKING:
    from collections.abc import Callable

    from epp.server.als import AccessLogReceiver
    from epp.server.exchange import Exchange
    from epp.server.health import HealthNames
    from epp.server.metrics import Metrics
    from epp.server.rpc_handlers import Serve
    from epp.transport.messages import Room


@dataclass(slots=True)
class Services:
    """The services of one listener.

    Attributes:
        metrics: counted into.
        health: what its health service tells.
        new_exchange: makes what carries one HTTP request.
        access_log: takes Envoy's reports.
        may_leave: whether streams may end with their pick.
        watchers: who watches the health service.
    """

    metrics: Metrics
    health: HealthNames
    new_exchange: Callable[[Room | None], Exchange]
    access_log: AccessLogReceiver
    may_leave: bool = True
    watchers: set[Watching] = field(default_factory=set)

    def methods(self) -> dict[str, Serve]:
        """What serves a call, by its path."""
        new_exchange, metrics, access_log = self.new_exchange, self.metrics, self.access_log
        return {
            **health_service(self.health, self.watchers),
            f"/{EXT_PROC}/Process": lambda call, flush: ProcessCall(
                call, new_exchange(call.room), metrics, flush
            ),
            f"/{ACCESS_LOG}/{ACCESS_LOG_METHOD}": lambda call, flush: AccessLogCall(call, flush, access_log),
        }
