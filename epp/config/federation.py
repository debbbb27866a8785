"""Regions as peers: what a picker and its Envoy must know of their own region and of the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec

from epp.config.section import NotNegative, Section

if TYPE_CHECKING:
    from collections.abc import Iterable

_Degrees = Annotated[float, msgspec.Meta(ge=-180, le=180)]
#: Envoy and kernels take any port up to 65535; a region's is this far above the first at most.
MAX_REGIONS = 64
#: Domain of the certificates that regions' Envoys show each other, each for its own name below it.
DOMAIN = "region.epp.internal"
#: Request headers: the signed token of a decision that may be forwarded; the regions that it may go to;
#: who forwarded, as DNS names of its certificate, which Envoy sets for peers and removes elsewhere.
HOP_HEADER, FORWARD_HEADER, PEER_HEADER = "x-epp-hop", "x-epp-forward-to", "x-epp-peer"
#: Field of the decision's metadata: no engine of the own region may take the request.
AWAY_KEY = "away"

#: DNS name in the certificate of the Envoy before all regions.
ENTRY_NAME = "entry.epp.internal"


class Federation(Section, frozen=True):
    """A picker and an Envoy in each region of `relays.regions`, which hand each other requests.

    Attributes:
        region: the own one, a name of `relays.regions`, for which `relays.cert_file` is valid as
            ``REGION.region.epp.internal``; empty where regions do not cooperate.
        key_file: file whose bytes sign forwarded requests, the same in all regions.
        max_hops: how often a request may be forwarded.
        forward_port: first of the loopback ports at which the own Envoy takes requests for other
            regions, in the order of `relays.regions`.
        coordinates: region -> [latitude, longitude] in degrees, for `epp envoy render --entry`.
        prices: region -> [per GB that leaves it, per million tokens computed there], in any money.
        ms_per_unit: latency that a unit of money weighs.
    """

    region: str = ""
    key_file: str = ""
    max_hops: Annotated[int, msgspec.Meta(ge=1, le=8)] = 1
    forward_port: Annotated[int, msgspec.Meta(ge=1, le=65535 - MAX_REGIONS)] = 9100
    coordinates: dict[str, tuple[_Degrees, _Degrees]] = {}
    prices: dict[str, tuple[NotNegative, NotNegative]] = {}
    ms_per_unit: NotNegative = 0.0

    def forwards(self, regions: Iterable[str]) -> dict[str, str]:
        """Peer region -> loopback address at which the own Envoy takes requests for it.

        Args:
            regions: all regions, in the order of `relays.regions`.
        """
        ports = enumerate(regions, self.forward_port)
        return {region: f"127.0.0.1:{port}" for port, region in ports if region != self.region}
