"""What a picker process knows of others on its host: nothing, where it is alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aiohttp.typedefs import Middleware

    from epp.clock import Clock
    from epp.cluster.link import Link
    from epp.cluster.messages import Group
    from epp.request.access_log import Reports
    from epp.rpc.connection_balancer import ConnectionBalancer
    from epp.server.process import DecisionIds
    from epp.signals.datastore import Datastore


class Host:
    """Of a process that is alone; `epp.server.siblings` has that of a worker.

    Attributes:
        index: of this process among the workers.
        seat: its part in the balance of connections.
        http: a second address of `listen.http`, for the others.
        middlewares: of `listen.http`.
        one_signal_s: signals within so long are one, told by several.
    """

    index = 0
    balancer: ConnectionBalancer | None = None
    http = ""
    middlewares: Sequence[Middleware] = ()
    one_signal_s = 0.0

    def link(self, group: Callable[[], Group], datastore: Datastore, clock: Clock) -> Link | None:  # noqa: ARG002  # of a worker
        """Make what shares with the others."""
        return None

    def route(self, own: Reports, ids: DecisionIds) -> Reports:  # noqa: ARG002  # of a worker
        """Make what takes Envoy's reports, of which ``own`` takes this process's."""
        return own

    def listen(self) -> None:
        """Hear the others from now on."""

    def beat(self, *, ready: bool) -> bool:  # noqa: ARG002  # of a worker
        """Show that this process goes on; whether another one is ready for requests."""
        return False

    def close(self) -> None:
        """Hear them no more."""
