"""Regions in virtual time: users, engines and a picker in each, and the long links between them.

Owns the links, what crosses them, and the flights of forwarded requests. Pickers, policies and summaries are
those of production (`epp.regions`). A forward goes over open connections: half a round trip each way, without
handshake or slow start. A request that is on a link when it is cut, or sent into one, comes back as unserved
after `UNREACHABLE_MS`, without its answer; one whose first token had come fails.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from epp.errors import EppError
from epp.keyed_uniform import keyed_uniform
from epp.policies.base import Policy
from epp.regions.remote import RemoteRegions, peer_endpoint
from epp.regions.summary import LEAST_S, Summaries
from epp.signals.retry_after import PEER_PAUSE_S
from epp.types import NUMERIC_COLUMNS
from epp_lab.sim.fleet import ZERO_WALL_S, FleetSim, Flight
from epp_lab.sim.loop import Rank
from epp_lab.sim.network import NetworkPath
from epp_lab.sim.scenario import Happening, ReplicaSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from epp.schedule.scheduler import Scheduler
    from epp.signals.datastore import Datastore
    from epp.types import Floats, Slots
    from epp_lab.compare.trace import TraceRequest
    from epp_lab.sim.fleet import Oracle, Replica
    from epp_lab.sim.job import Finished, FirstToken
    from epp_lab.sim.scenario import Event, FleetSpec, Regions, WindowOptions

#: How soon Envoy gives up a request that was sent into a link that is gone.
UNREACHABLE_MS = 2_000.0
#: An event of a streamed answer, which carries one token.
ANSWER_BYTES_PER_TOKEN = 250
_QUESTION_BYTES = 100
_KEY_ID = "simulated"
_RTT: Final = NUMERIC_COLUMNS.index("rtt_ms")


@dataclass(slots=True)
class PeerRegion:
    """Another region as an endpoint of a picker: it is probed, and never scraped."""

    spec: ReplicaSpec
    network: NetworkPath
    up: bool = True

    def sample(self) -> None:
        """Return no metrics: summaries tell them."""


class Links:
    """The ways between regions.

    Args:
        regions: round trips.
        seed: of jitter and losses.
        loss: share of summaries that never come.
    """

    def __init__(self, regions: Regions, seed: int, loss: float) -> None:
        self._regions, self._seed, self._loss = regions, seed, loss
        self.cut: set[str] = set()
        #: Bytes of requests and answers that left each region.
        self.egress = dict.fromkeys(regions.names, 0.0)
        #: Messages between pickers, and their bytes.
        self.messages = self.message_bytes = 0

    def is_cut(self, one: str, other: str) -> bool:
        """Tell whether nothing comes through between two regions."""
        return one != other and not self.cut.isdisjoint((one, other))

    def way_ms(self, source: str, target: str, key: str) -> float:
        """Return how long a request or an answer takes from a region to another."""
        network = NetworkPath(self._regions.between_ms(source, target))
        return network.one_way_ms(self._seed, key, f"{source} to {target}")

    def arrives(self, source: str, target: str, size: int) -> bool:
        """Count a picker's message and tell whether it arrives."""
        self.messages += 1
        self.message_bytes += size
        lost = keyed_uniform(self._seed, f"{self.messages} {target}", "lost message") < self._loss
        return not (lost or self.is_cut(source, target))


class RegionPickers:
    """The pickers by region: one in each, or one for all of them."""

    def __init__(self, pickers: Mapping[str, Scheduler], links: Links, origins: Sequence[str]) -> None:
        self.by_region, self._links, self._origins = pickers, links, origins
        self.all = list(dict.fromkeys(pickers.values()))

    @property
    def sent(self) -> tuple[int, int]:
        """Messages between them, and their bytes."""
        return self._links.messages, self._links.message_bytes

    def of(self, decision_id: str) -> Scheduler:
        """Return the picker of a decision: of the region after the ``@``, else of the request's origin."""
        index, _, region = decision_id.removeprefix("r").partition("@")
        return self.by_region[region or self._origins[int(index)]]


class FromOrigin(RemoteRegions):
    """Sets the round trips of the one picker to those from where the request is; there are no peers."""

    def __init__(self, datastore: Datastore, regions: Regions) -> None:
        super().__init__(datastore, region="", key_id=_KEY_ID, peers={})
        self._regions, self.origin = regions, ""

    def fill(self, block: Floats, slots: Slots, now_s: float) -> None:  # noqa: ARG002  # nothing ages here
        """Add the way between the regions to each endpoint's round trip."""
        regions = {slot: endpoint.region for slot, endpoint in self._datastore.members}
        block[_RTT] += [self._regions.between_ms(self.origin, regions[slot]) for slot in slots.tolist()]


class RegionSim(FleetSim):
    """One window of a fleet with `Regions`; the arguments of `FleetSim`.

    Raises:
        EppError: an oracle, or a replica outside of the regions.
    """

    def __init__(
        self,
        requests: Sequence[TraceRequest],
        spec: FleetSpec,
        policy: Policy | Oracle,
        *,
        weights: Mapping[str, float],
        seed: int,
        options: WindowOptions,
    ) -> None:
        regions = spec.regions
        if regions is None or not isinstance(policy, Policy):
            raise EppError("a fleet of regions is for policies that pickers can run, not for yardsticks")
        if strangers := {replica.region for replica in spec.replicas}.difference(regions.names):
            raise EppError(f"fleet: no round trip to region {min(strangers)!r} in regions.rtt_ms")
        self._regions, self._mode = regions, options.pickers.regions
        self.origins = origins_of(requests, regions, seed)
        self.links = Links(regions, seed, options.pickers.loss)
        #: Requests that another region has.
        self.crossing: dict[OriginFlight, None] = {}
        #: Peers by region whose picker knows them, and address.
        self.peers: dict[str, dict[str, PeerRegion]] = {name: {} for name in regions.names}
        if self._mode == "regions":
            for name in regions.names:
                for number, other in enumerate(regions.names):
                    if other != name:
                        network = NetworkPath(regions.between_ms(name, other))
                        address, cls = f"127.0.0.1:{9100 + number}", spec.replicas[0].engine_class
                        peer = ReplicaSpec(address, cls, network, other)
                        self.peers[name][address] = PeerRegion(peer, network)
        super().__init__(requests, spec, policy, weights=weights, seed=seed, options=options)
        self.egress = self.links.egress
        for feed, scheduler in zip(self._signals, self._pickers.all, strict=True):
            for neighbour in self.peers[self._region_of(scheduler)].values():
                feed.watch(neighbour)

    def ways(self, replica: Replica, index: int) -> tuple[float, float]:
        """Return one-way delays of a request and its answer; one picker sends across regions itself."""
        up_ms, down_ms = super().ways(replica, index)
        origin, region = self.origins[index], replica.spec.region
        if self._mode != "global" or origin == region:
            return up_ms, down_ms
        return (
            up_ms + self.links.way_ms(origin, region, str(index)),
            down_ms + self.links.way_ms(region, origin, str(index)),
        )

    def forward(self, flight: OriginFlight, index: int) -> None:
        """Let a peer region decide a request that has arrived there, unless it is full."""
        region = flight.peer
        scheduler, decision_id = self._by_region[region], f"r{index}@{region}"
        answering = Forwarded(self, index, flight)
        if not scheduler.datastore.has_room(self.loop.now_ms / 1e3):
            answering.refused("full")
            return
        told = {"origin_region": flight.region, "origin_decision": f"r{index}"}
        request = replace(self._info(index), regions=frozenset({region}), **told)
        self._submit(decision_id, request, answering)

    def report_served(self, decision_id: str, address: str) -> None:
        """Report to a picker who answers, where that is not who was chosen."""
        self._pickers.of(decision_id).served(decision_id, address)

    def report_unserved(self, decision_id: str, address: str) -> None:
        """Report to a picker that a peer did not serve what it was chosen for."""
        datastore = self._pickers.of(decision_id).datastore
        if (slot := datastore.slot_of(address)) is not None:
            datastore.retry_after.pause_for(slot, PEER_PAUSE_S, self.loop.now_ms / 1e3)

    def report_first_token(self, decision_id: str) -> None:
        """Report a first token to the picker; it ends the pause of a peer that the request tried."""
        super().report_first_token(decision_id)
        self._pickers.of(decision_id).datastore.retry_after.answered(decision_id)

    @property
    def _by_region(self) -> Mapping[str, Scheduler]:
        pickers: RegionPickers = self._pickers  # type: ignore[assignment]  # made below
        return pickers.by_region

    def _build_pickers(self, weights: Mapping[str, float]) -> RegionPickers:
        names = self._regions.names
        if self._mode == "global":
            only = self._build_scheduler(weights)
            self._from_origin = FromOrigin(only.datastore, self._regions)
            return RegionPickers(dict.fromkeys(names, only), self.links, self.origins)
        pickers = {name: self._build_scheduler(weights) for name in names}
        self._remotes: dict[str, RemoteRegions] = {}
        self._summaries: dict[str, Summaries] = {}
        for name, scheduler in pickers.items() if self._mode == "regions" else ():
            peers = {peer.spec.region: address for address, peer in self.peers[name].items()}
            federation = self.options.config.federation
            self._remotes[name] = RemoteRegions(
                scheduler.datastore,
                region=name,
                key_id=_KEY_ID,
                peers=peers,
                prices=federation.prices,
                ms_per_unit=federation.ms_per_unit,
            )
            self._summaries[name] = Summaries(scheduler.datastore, region=name, origin=name, key_id=_KEY_ID)
            self.loop.at(self.loop.now_ms, Rank.SIGNAL, self._speak, name)
        return RegionPickers(pickers, self.links, self.origins)

    def _region_of(self, scheduler: Scheduler) -> str:
        return next(name for name, one in self._by_region.items() if one is scheduler)

    def _apply_pool(self) -> None:
        for scheduler in self._pickers.all:
            own = self._region_of(scheduler)
            pool = [one for one in self._pool.values() if self._mode == "global" or one.region == own]
            pool += [peer_endpoint(peer.spec.region, address) for address, peer in self.peers[own].items()]
            scheduler.set_pool(pool, self.loop.now_ms / 1e3)

    def _watch(self, replica: Replica) -> None:
        for feed, scheduler in zip(self._signals, self._pickers.all, strict=True):
            if scheduler is self._by_region[replica.spec.region]:
                feed.watch(replica)

    def _send(self, index: int, intended_ms: float) -> None:
        if self._mode == "global":
            self._from_origin.origin = self.origins[index]
        self._submit(f"r{index}", self._info(index), OriginFlight(self, index, intended_ms))

    def _happen(self, event: Event) -> None:
        if event.what not in (Happening.CUT, Happening.HEAL):
            super()._happen(event)
            return
        (self.links.cut.add if event.what is Happening.CUT else self.links.cut.discard)(event.address)
        for name, peers in self.peers.items():
            for peer in peers.values():
                peer.up = not self.links.is_cut(name, peer.spec.region)
        due_ms = self.loop.now_ms + UNREACHABLE_MS
        for flight in self.crossing:
            if self.links.is_cut(flight.region, flight.peer):
                self.loop.at(due_ms, Rank.REPORT, flight.give_up, flight.target)

    def _speak(self, name: str) -> None:
        """Send the summary that is due, and ask for sketches of which changes are missing."""
        now_s = self.loop.now_ms / 1e3
        data = self._summaries[name].make(now_s, ZERO_WALL_S + now_s)
        for other in self._remotes if data is not None else ():
            if other != name:
                self._post(name, other, len(data or b""), self._hear, other, data)
        for other in self._remotes[name].missing(now_s):
            self._post(name, other, _QUESTION_BYTES, self._answer, other, name)
        self.loop.at(self.loop.now_ms + LEAST_S * 1e3, Rank.SIGNAL, self._speak, name)

    def _answer(self, name: str, asker: str) -> None:
        data = self._summaries[name].whole()
        self._post(name, asker, len(data), self._hear, asker, data)

    def _hear(self, name: str, data: bytes) -> None:
        self._remotes[name].hear(data, self.loop.now_ms / 1e3)

    def _post(self, source: str, target: str, size: int, action: Callable[..., None], *args: object) -> None:
        if self.links.arrives(source, target, size):
            due_ms = self.loop.now_ms + self._regions.between_ms(source, target) / 2.0
            self.loop.at(due_ms, Rank.SIGNAL, action, *args)


class OriginFlight(Flight):
    """A request of a region's user, on its way to an engine there or over a link.

    Attributes:
        region: where it comes from.
        peer: region that has it, "" while none has.
        target: address of that region or engine.
        answering: its part in that region.
    """

    def __init__(self, sim: RegionSim, index: int, intended_ms: float) -> None:
        super().__init__(sim, index, intended_ms)
        self._regions = sim
        self.region = self._result.region = sim.origins[index]
        self.peer, self.target = "", ""
        self.answering: Forwarded | None = None

    def unserved(self) -> None:
        """Go on to the next choice: the peer refused it, or no engine there could be reached."""
        self._send_back(self._not_served)

    def answered(self, event: FirstToken, replica: Replica | None, network_ms: float) -> None:
        """Take the first token of a replica of the peer."""
        self._replica = replica
        self._result.network_ms += network_ms
        self.on_first_token(event)

    def give_up(self, target: str) -> None:
        """Give up an attempt whose link was cut; a first token that has come leaves no second choice."""
        if self.target != target or not self.peer:  # over, or with another
            return
        self.answering = None
        if self._result.ttft_ms is None:
            self._not_served()
        else:
            self._failed("region cut off")

    def _attempt(self) -> None:
        sim, links, index = self._regions, self._regions.links, self._index
        self.target, size = self._targets[0], float(sim.body_bytes(self._index))
        peer = sim.peers[self.region].get(self.target)
        self.peer, self.answering = "", None
        if peer is None:
            super()._attempt()
            if self._replica is not None and self._replica.spec.region != self.region:
                links.egress[self.region] += size
            return
        self._targets.pop(0)
        self._tries += 1
        self._replica = self._connection = None
        self.peer = peer.spec.region
        links.egress[self.region] += size
        now_ms = sim.loop.now_ms
        if links.is_cut(self.region, self.peer):
            sim.loop.at(now_ms + UNREACHABLE_MS, Rank.REPORT, self.give_up, self.target)
            return
        sim.crossing[self] = None
        up_ms = self._result.network_ms = links.way_ms(self.region, self.peer, str(index))
        self._down_ms = links.way_ms(self.peer, self.region, str(index))
        sim.loop.at(now_ms + up_ms, Rank.REPORT, sim.forward, self, index)

    def _send_back(self, action: Callable[..., None], *args: object) -> None:
        """Send over the link, if one is between and not cut."""
        if not self._regions.links.is_cut(self.region, self.peer or self.region):
            super()._send_back(action, *args)

    def _not_served(self) -> None:
        sim = self._regions
        sim.crossing.pop(self, None)
        self._result.refused += 1
        due_ms, decision_id = sim.loop.now_ms + sim.options.report_delay_ms, self._result.decision_id
        sim.loop.at(due_ms, Rank.REPORT, sim.report_unserved, decision_id, self.target)
        self._not_connected()

    def _first_token(self) -> None:
        super()._first_token()
        if self._tries > 1:
            sim, decision_id = self._regions, self._result.decision_id
            due_ms = sim.loop.now_ms + sim.options.report_delay_ms
            sim.loop.at(due_ms, Rank.REPORT, sim.report_served, decision_id, self.target)

    def _end(self, error: str, tokens: int) -> None:
        self._regions.crossing.pop(self, None)
        self.peer = ""
        if self._replica is not None and self._replica.spec.region != self.region:
            self._regions.links.egress[self._replica.spec.region] += tokens * ANSWER_BYTES_PER_TOKEN
        super()._end(error, tokens)


class Forwarded(Flight):
    """The part of a forwarded request in the region that answers it; its client is the origin's flight."""

    def __init__(self, sim: RegionSim, index: int, origin: OriginFlight) -> None:
        super().__init__(sim, index, sim.loop.now_ms)
        self._origin = origin
        origin.answering = self

    def on_first_token(self, event: FirstToken) -> None:
        """Pass the first token on from where this region's Envoy has it."""
        super().on_first_token(event)
        self._send_back(self._pass_on, self._origin.answered, event, self._replica, self._result.network_ms)

    def on_finished(self, event: Finished) -> None:
        """Pass the end on."""
        super().on_finished(event)
        self._send_back(self._pass_on, self._origin.on_finished, event)

    def on_broken(self, problem: str) -> None:
        """Pass the news on."""
        super().on_broken(problem)
        self._send_back(self._pass_on, self._origin.on_broken, problem)

    def _pass_on(self, action: Callable[..., None], *args: object) -> None:
        if self._origin.answering is self:
            action(*args)

    def _end(self, error: str, tokens: int) -> None:  # noqa: ARG002  # passed on already
        if error == "connection refused" or error.startswith("no endpoint"):
            self._pass_on(self._origin.unserved)


def origins_of(requests: Sequence[TraceRequest], regions: Regions, seed: int) -> list[str]:
    """Return the region that each request comes from: its own, else drawn by its session."""
    shares = regions.shares or (dict.fromkeys(regions.names, 1.0),)
    end_ms = max((request.at_ms for request in requests), default=0.0) + 1.0
    starts: dict[str, float] = {}  # a session stays where it began
    origins = []
    for request in requests:
        at_ms = starts.setdefault(request.session, request.at_ms)
        row = shares[int(at_ms / end_ms * len(shares))]
        left = keyed_uniform(seed, request.session, "region") * sum(row.values())
        drawn = ""
        for drawn, share in row.items():  # noqa: B007  # the last one is left where rounding leaves some
            left -= share
            if left < 0.0:
                break
        origins.append(request.region or drawn)
    return origins
