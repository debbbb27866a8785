"""Regions as peers, on the serving side: peers in the pool, requests that come from them and go to them.

Owns which regions are open to a request. One that a peer forwarded is believed by its hop header
(`epp.regions.hop`) and decided anew among the own engines, and among regions that it has not passed while
hops are left. Where the own engines have no room it is refused, before any of them sees it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec.structs import replace

from epp.cluster.seal import key_of
from epp.config.federation import AWAY_KEY, DOMAIN, FORWARD_HEADER, HOP_HEADER, PEER_HEADER
from epp.config.pool import EndpointSpec
from epp.config.relays import READY_PATH
from epp.errors import NoEndpointError
from epp.feeds.files import read_secret
from epp.feeds.poll import Target, through
from epp.regions.hop import HopRefusedError, Hops
from epp.regions.link import RegionLink
from epp.regions.remote import RemoteRegions
from epp.types import PEER_CLASS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from epp.clock import Clock
    from epp.cluster.nats_link import NatsLink
    from epp.config.schema import Config
    from epp.extproc.types import Destination, HttpRequest
    from epp.metrics.metrics import Metrics
    from epp.regions.hop import Hop
    from epp.schedule.decision import Decision
    from epp.signals.datastore import Datastore


class Regions:
    """What a picker does for its region among others.

    Args:
        config: of the picker, with `federation.region`.
        base: folder that its paths are relative to.
        source: its name, for errors.
        clock: the time.
        datastore: the signals.
        key_id: of block size and hashing key (`BlockHasher.key_id`).
        metrics: counted into.

    Attributes:
        peers: endpoint of the pool that stands for a peer region -> the region.
        link: to the peers, once `connect` has made it.

    Raises:
        ConfigError: `federation.key_file` cannot be used.
    """

    def __init__(
        self,
        config: Config,
        base: Path,
        source: str,
        clock: Clock,
        *,
        datastore: Datastore,
        key_id: str,
        metrics: Metrics,
    ) -> None:
        federation = config.federation
        self._region, self._relays = federation.region, config.relays
        self._datastore, self._metrics, self._clock, self._key_id = datastore, metrics, clock, key_id
        self._key = read_secret(base / federation.key_file, "federation.key_file", source)
        self._hops = Hops(self._region, self._key, federation.max_hops)
        addresses = federation.forwards(config.relays.regions)
        self.peers = {address: region for region, address in addresses.items()}
        self.link: RegionLink
        self._remote = RemoteRegions(
            datastore,
            region=self._region,
            key_id=key_id,
            peers=addresses,
            prices=federation.prices,
            ms_per_unit=federation.ms_per_unit,
        )

    def pool(self, specs: Mapping[str, EndpointSpec]) -> dict[str, EndpointSpec]:
        """Add the peers to the own engines, which belong to the own region unless they say another.

        A peer serves what the own engines serve.
        """
        own = {
            address: spec if spec.region else replace(spec, region=self._region)
            for address, spec in specs.items()
        }
        engines = [spec.endpoint() for spec in specs.values()]
        models = sorted(frozenset().union(*(each.models for each in engines)))
        named = models if all(each.models for each in engines) else []
        for address, region in self.peers.items():
            own[address] = EndpointSpec(address, region=region, engine_class=PEER_CLASS, models=named)
        return own

    def target(self, address: str) -> Target | None:
        """Describe how a peer is probed: its Envoy answers itself; None for an engine."""
        region = self.peers.get(address)
        if region is None:
            return None
        own = Target(
            address, tls=True, server_name=None, ca_file="", bearer_token_file="", ready_path=READY_PATH
        )
        return through(own, self._relays, region, f"{region}.{DOMAIN}")

    def admit(
        self, request: HttpRequest, allowed: frozenset[str] | None
    ) -> tuple[frozenset[str] | None, Hop | None]:
        """Bind a request that a peer forwarded to the regions open to it.

        Args:
            request: the request.
            allowed: regions allowed by the rules, None for any.

        Returns:
            The regions allowed, and the hop that it came by; as given, and None, for a client's own.

        Raises:
            NoEndpointError: it is not believed (rule ``hop``), or there is no room for it (``room``).
        """
        peer = request.headers.get(PEER_HEADER)
        if peer is None:
            return allowed, None
        token, request_id = request.headers.get(HOP_HEADER, ""), request.headers.get("x-request-id", "")
        try:
            hop = self._hops.check(token, peer, request_id, self._now_ms())
        except HopRefusedError as error:
            self._metrics.value("epp_region_refused_total", error.reason).inc()
            raise NoEndpointError("hop", str(error)) from error
        regions = self._hops.reachable(hop, self._relays.regions)
        if not (hop.bound or self._datastore.has_room(self._clock.mono_s())):
            regions -= {self._region}
        if not regions:
            self._metrics.value("epp_region_refused_total", "full").inc()
            raise NoEndpointError("room", f"{self._region} has no room")
        self._hops.use(hop)
        return regions if allowed is None else regions & allowed, hop

    def set_hop(self, pick: Destination, request: HttpRequest, decision: Decision, hop: Hop | None) -> None:
        """Let a request go to the peers that its decision names, under a token; it came by ``hop``."""
        names, rows = decision.snapshot.endpoints, (decision.chosen, *decision.fallbacks)
        targets = tuple(dict.fromkeys(self.peers[names[row]] for row in rows if names[row] in self.peers))
        if not targets:
            return
        request_id = request.headers.get("x-request-id") or decision.id
        bound = all(names[row] in self.peers for row in rows)
        may, allowed = targets, decision.request.regions
        if self._hops.max_hops > 1:
            may = tuple(peer for peer in self.peers.values() if allowed is None or peer in allowed)
        token = self._hops.forward(hop, decision.id, request_id, may, self._now_ms(), bound=bound)
        pick.set_headers |= {FORWARD_HEADER: ",".join(targets), HOP_HEADER: token}
        if allowed is not None and self._region not in allowed:
            pick.metadata |= {AWAY_KEY: "true"}
        if decision.endpoint in self.peers:
            self._metrics.value("epp_region_forwarded_total", targets[0]).inc()

    def connect(self, nats: NatsLink, pool: str) -> None:
        """Tell peers of a pool of this region, over the connection to the own region's pickers."""
        nats.index_sync.share_tokens(self._hops)
        subject = f"epp.regions.1.{re.sub(r'[^A-Za-z0-9_-]', '_', pool)}"
        self.link = RegionLink(
            self._datastore,
            self._remote,
            nats.channel(subject, [key_of(self._key, b"epp regions")]),
            self._clock,
            subject=subject,
            peers=tuple(self.peers.values()),
            region=self._region,
            origin=nats.leading.name,
            key_id=self._key_id,
            tells=lambda: nats.connected and nats.index_sync.first,
        )

    def _now_ms(self) -> int:
        return round(self._clock.wall_s() * 1e3)
