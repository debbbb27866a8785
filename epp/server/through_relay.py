"""Probes and scrapes by the way that requests take: through the region's relay.

Owns how the picker speaks to a relay: as the global Envoy does, with its certificate, but over HTTP/1.1 and a
connection for each poller. A relay that cannot reach the endpoint asked for lets another of its region
answer, which says nothing of this one, so such an answer is a failure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from epp.extproc.messages import DESTINATION_HEADER
from epp.server.client_credentials import client_tls
from epp.server.keep_alive import KeepAlive

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Mapping

    from epp.config.relays import Relays
    from epp.server.keep_alive import Answer


@dataclass(frozen=True, slots=True)
class Through:
    """A relay and what it takes to be served by it.

    Attributes:
        address: ``host:port`` of the relay.
        relay_name: name in its certificate.
        ca_file: who signed that.
        cert_file: the global Envoy's certificate.
        key_file: its key.
    """

    address: str
    relay_name: str
    ca_file: str
    cert_file: str
    key_file: str

    def tls(self) -> ssl.SSLContext:
        """What a connection to it is opened with.

        Raises:
            ValueError: a certificate or the key cannot be used.
        """
        return client_tls(self.ca_file, self.cert_file, self.key_file)


def relay_to(region: str, relays: Relays) -> Through | None:
    """The relay that a region's endpoints are asked through, None where they are asked directly."""
    if relays.probes != "relay" or region not in relays.regions:
        return None
    return Through(
        address=relays.addresses(region)[0],
        relay_name=relays.relay_name,
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
            through.address, tls=through.tls(), server_name=through.relay_name, max_body_bytes=max_body_bytes
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
