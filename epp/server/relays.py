"""Relays: which ones a pick goes through, and probes and scrapes by the same way.

A pick goes to the relays of its endpoints' regions, as addresses that Envoy knows, each connection of a relay
in turn; relays read the pick from its header and pass over endpoints of other regions. The picker speaks to a
relay as the global Envoy does, with its certificate, but over HTTP/1.1 and a connection for each poller. A
relay that cannot reach the endpoint asked for lets another of its region answer, which is a failure of the
one asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from epp.config.relays import RELAY_NAME
from epp.extproc.messages import DESTINATION_HEADER
from epp.server.client_credentials import client_tls
from epp.server.keep_alive import KeepAlive
from epp.server.resolve import Resolver

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Mapping

    from epp.config.relays import Relays
    from epp.extproc.types import Pick
    from epp.schedule.decision import Decision
    from epp.server.keep_alive import Answer


RELAYS_KEY = "relays"
"""Field of the decision's metadata that the global Envoy chooses a relay by (`epp.envoy.relays`)."""


class RelayPaths:
    """The way to each region.

    Args:
        relays: as configured, with regions.
    """

    def __init__(self, relays: Relays) -> None:
        self._addresses = {region: relays.addresses(region) for region in relays.regions}
        self._turn = dict.fromkeys(self._addresses, 0)
        self.resolver = Resolver()
        self.resolver.set_pool(address for addresses in self._addresses.values() for address in addresses)

    def set_path(self, pick: Pick, decision: Decision) -> None:
        """Name a pick's relays: of its endpoints first, then of the other regions that it may go to.

        Each region comes once, with the connection whose turn it is: a relay that cannot be reached on one
        is not likely to be on the next, so a retry goes elsewhere.
        """
        regions, allowed = decision.fleet.regions, decision.request.regions
        wanted = dict.fromkeys(regions[index] for index in (decision.chosen, *decision.fallbacks))
        wanted |= dict.fromkeys(region for region in self._addresses if allowed is None or region in allowed)
        path = [region for region in wanted if region in self._addresses]
        if not path:
            return
        pick.metadata[RELAYS_KEY] = ",".join(self._now(region) for region in path)
        # Only the first is used as a rule: turns of the others would fall into step with it.
        self._turn[path[0]] = (self._turn[path[0]] + 1) % len(self._addresses[path[0]])

    def _now(self, region: str) -> str:
        return self.resolver.known_as(self._addresses[region][self._turn[region]])


@dataclass(frozen=True, slots=True)
class Through:
    """A relay and what it takes to be served by it.

    Attributes:
        address: ``host:port`` of the relay.
        ca_file: who signed its certificate, for `RELAY_NAME`.
        cert_file: the global Envoy's certificate.
        key_file: its key.
    """

    address: str
    ca_file: str
    cert_file: str
    key_file: str

    def tls(self) -> ssl.SSLContext:
        """Make the context of connections to it.

        Raises:
            ValueError: a certificate or the key cannot be used.
        """
        return client_tls(self.ca_file, self.cert_file, self.key_file)


def relay_to(region: str, relays: Relays) -> Through | None:
    """Choose the relay that a region's endpoints are asked through, None for directly."""
    if region not in relays.regions:
        return None
    return Through(
        address=relays.addresses(region)[0],
        ca_file=relays.ca_file,
        cert_file=relays.cert_file,
        key_file=relays.key_file,
    )


class RelayedConnection:
    """As `KeepAlive`, to one endpoint behind a relay.

    Args:
        through: the relay.
        address: the endpoint.
        known_as: what the relay calls it now.
        max_body_bytes: longest body that is read.

    Raises:
        ValueError: a certificate or the key cannot be used.
    """

    def __init__(
        self, through: Through, address: str, known_as: Callable[[str], str], *, max_body_bytes: int
    ) -> None:
        self._address, self._known_as = address, known_as
        self._connection = KeepAlive(
            through.address, tls=through.tls(), server_name=RELAY_NAME, max_body_bytes=max_body_bytes
        )

    @property
    def opened(self) -> int:
        """Connections opened so far."""
        return self._connection.opened

    async def get(self, path: str, headers: Mapping[str, str], timeout_s: float) -> Answer:
        """Ask the endpoint for a page.

        Raises:
            OSError: relay or endpoint cannot be reached, or break off.
            TimeoutError: it takes too long.
            ValueError: its answer is no HTTP, or too long.
        """
        wanted = self._known_as(self._address)
        answer = await self._connection.get(path, {**headers, DESTINATION_HEADER: wanted}, timeout_s)
        check_served(answer.served, wanted)
        return answer

    def close(self) -> None:
        """Close it; the next request opens another."""
        self._connection.close()


def check_served(served: str, wanted: str) -> None:
    """Hold who answered, empty where the relay does not say, against who was asked.

    Raises:
        ConnectionError: it was another endpoint.
    """
    if served not in ("", wanted):
        raise ConnectionError(f"the relay did not reach {wanted}: {served} answered")
