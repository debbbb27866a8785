"""The second tier: where each region's relay is, and how the global Envoy and the relays know each other."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from epp.config.address import join_address, split_address
from epp.config.section import Section

#: Envoy and kernels take any number; beyond this it is no longer few long-lived connections.
MAX_CONNECTIONS = 64
#: What of one request's body, or of one answer, may be on its way unacknowledged (HTTP/2 flow control): less
#: than bandwidth times round trip slows a long body down.
STREAM_WINDOW_BYTES = 4 * 1024 * 1024
#: DNS names in the certificates of the global Envoy and of every relay.
GLOBAL_NAME, RELAY_NAME = "global.epp.internal", "relay.epp.internal"
#: What a relay, or a region's Envoy, answers by itself.
READY_PATH = "/epp-relay/ready"
#: Response header of a region that reached no endpoint: no engine has seen the request, another may.
UNSERVED_HEADER = "x-epp-relay-unserved"
#: Field of the decision's metadata by which the global Envoy chooses a relay.
RELAYS_KEY = "relays"
#: Where Envoy's access log has the endpoint that a relay was served by.
RELAY_NAMESPACE, RELAY_SERVED_KEY = "epp.relay", "served"


class Relays(Section, frozen=True):
    """One relay per region, an Envoy or several at one address; the global Envoy reaches engines through it.

    Attributes:
        regions: region -> ``host:port`` of its relay, nearest first; empty where Envoy reaches
            engines itself.
        connections: HTTP/2 connections to a relay for each worker of Envoy, on ports from the relay's
            upwards.
        ca_file: who signs the certificates of both tiers; this and the next two are paths for Envoy
            and for the picker, which probes through relays.
        cert_file: certificate of the Envoy that reads it, for ``global.epp.internal`` or
            ``relay.epp.internal``.
        key_file: its private key.
        compression: of JSON bodies between the tiers: `none` or `gzip`.
    """

    regions: dict[str, str] = {}
    connections: Annotated[int, msgspec.Meta(ge=1, le=MAX_CONNECTIONS)] = 8
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    compression: Literal["none", "gzip"] = "none"

    def __post_init__(self) -> None:
        """Addresses with room for the ports of all connections, and certificates, once there are relays."""
        taken: dict[str, str] = {}
        wrong = [text for region in self.regions if (text := self._wrong(region, taken))]
        if self.regions and not (self.ca_file and self.cert_file and self.key_file):
            wrong.append("ca_file, cert_file and key_file are needed: relays serve nobody without them")
        if wrong:
            raise ValueError("\n".join(wrong))

    def _wrong(self, region: str, taken: dict[str, str]) -> str:
        """What is wrong with a region's relay, ``""`` for nothing; its addresses are taken afterwards."""
        address = self.regions[region]
        if not region or not region.isprintable():
            return f"{region!r} is not a region's name"
        try:
            port = split_address(address)[1]
        except ValueError as error:
            return f"regions.{region}: {error}"
        if not 0 < port <= 65_536 - self.connections:
            return f"{address} of {region} leaves no room for {self.connections} ports"
        for own in self.addresses(region):
            # Who answers there knows one of the two regions' endpoints alone.
            if (other := taken.setdefault(own, region)) != region:
                return f"{own} is a port of {other}'s relay and of {region}'s"
        return ""

    def addresses(self, region: str) -> tuple[str, ...]:
        """All addresses of a region's relay as Envoy spells them, one a connection; none without a relay."""
        if region not in self.regions:
            return ()
        host, port = split_address(self.regions[region])
        return tuple(join_address(host, port + offset) for offset in range(self.connections))
