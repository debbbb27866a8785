"""What is simulated: replicas and the way to them, what happens to them, and how the load is sent.

Values only. Must not know how any of it is simulated. A fleet is also one line of text (`parse_fleet`):
``l40s-x2@20,h100@102*2`` is three replicas, each a class and its round trip in ms.
"""

from __future__ import annotations

import re
from collections.abc import Mapping  # noqa: TC003  # fleets are read from files by their annotations
from dataclasses import dataclass, field, replace
from enum import Enum
from math import inf
from typing import Literal

from msgspec import structs

from epp.config.schema import Config
from epp.types import Role
from epp_lab.sim.engine_class import ENGINE_CLASSES, EngineClass
from epp_lab.sim.network import NetworkPath


@dataclass(frozen=True, slots=True)
class ReplicaSpec:
    """One replica.

    Attributes:
        address: ``host:port``, its name in results. Data-parallel ranks of a pod have ports of one host; each
            is an engine of its own.
        engine_class: how fast it is and how it works.
        network: the way from the gateway to it.
        region: region name.
        absent: not there at the start: an `Event` of kind ``ADD`` brings it.
        lost_hit_share: share of requests that find nothing of their prompt in the cache although it is there,
            drawn by (request, replica). An invention to study caches less reliable than a radix tree.
        known_as: engine class that the picker believes it is, ``""`` for the true one.
        probe_factor: what probes measure, as a multiple of the true round trip.
        kv_report_factor: KV capacity that the engine reports, as a multiple of the true one.
        model: what its engine calls the model, where replicas of a fleet serve different ones.
        role: what it does of a request.
        link_gbps: rate at which its host sends and receives KV caches, in Gb/s; whole engines send none.
    """

    address: str
    engine_class: EngineClass
    network: NetworkPath = NetworkPath()  # noqa: RUF009 - frozen
    region: str = ""
    absent: bool = False
    lost_hit_share: float = 0.0
    known_as: str = ""
    probe_factor: float = 1.0
    kv_report_factor: float = 1.0
    model: str = ""
    role: Role = Role.WHOLE
    link_gbps: float = 400.0


class Happening(Enum):
    """What can happen to a replica."""

    DIE = "die"  # connections are reset, new ones refused
    REVIVE = "revive"  # the same address answers again, cold, as a new process
    SLOW = "slow"  # GPU work takes `factor` times as long, 1 for its own speed
    REROUTE = "reroute"  # round trips to it take `factor` times as long, 1 for its own way
    ADD = "add"  # joins the pool (discovery tells the picker), cold
    REMOVE = "remove"  # leaves the pool; what runs there runs on
    CLEAR = "clear"  # drops what it has cached and no request holds
    CUT = "cut"  # nothing comes through between a region, the address, and the others
    HEAL = "heal"  # its links are back


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happens to a replica or a region.

    Attributes:
        at_s: seconds after the start of the window.
        address: whom; the host of a pod stands for all of its ranks.
        what: what.
        factor: for ``SLOW`` and ``REROUTE``.
    """

    at_s: float
    address: str
    what: Happening
    factor: float = 1.0


@dataclass(frozen=True, slots=True)
class Regions:
    """Regions that have users, an Envoy and a picker each; their engines are the replicas of that region.

    Attributes:
        rtt_ms: round trips between any two regions, in either order; the keys and theirs are the regions.
        shares: requests by the region they come from, in proportion, drawn by session: one mapping for each
            of equal stretches of the load. Empty for as many from each.
    """

    rtt_ms: Mapping[str, Mapping[str, float]]
    shares: tuple[Mapping[str, float], ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Every region, in order of appearance."""
        return tuple(dict.fromkeys((*self.rtt_ms, *(name for row in self.rtt_ms.values() for name in row))))

    def between_ms(self, one: str, other: str) -> float:
        """Return the round trip between two regions, 0 within one."""
        if one == other:
            return 0.0
        found = self.rtt_ms.get(one, {}).get(other)
        return self.rtt_ms[other][one] if found is None else found


@dataclass(frozen=True, slots=True)
class FleetSpec:
    """Replicas, and what happens to them.

    Attributes:
        replicas: in pool order; each has an address of its own.
        events: in any order, of these addresses.
        scrape_interval_s: how often the picker reads engine metrics there; None for the configuration's.
        regions: regions with pickers of their own; None for pickers in one place.
    """

    replicas: tuple[ReplicaSpec, ...]
    events: tuple[Event, ...] = ()
    scrape_interval_s: float | None = None
    regions: Regions | None = None


RegionMode = Literal["nearest", "regions", "global"]


@dataclass(frozen=True, slots=True)
class PickerOptions:
    """How many pickers there are, and what they share.

    Attributes:
        count: pickers, each asked as often as the others.
        share: nothing, prefixes, or prefixes and load.
        delay_ms: how long a message takes from one to another; between regions, half a round trip.
        loss: share of the messages that never come.
        past: share of requests that come past them, by another picker, which shares nothing and hears no
            events.
        regions: of a fleet with `Regions`: a picker in each that knows its own engines alone, one in each
            that forwards to the others (`epp.regions`), or one for all that sees everything at once.
    """

    count: int = 1
    share: Literal["none", "index", "all"] = "all"
    delay_ms: float = 1.0
    loss: float = 0.0
    past: float = 0.0
    regions: RegionMode = "regions"


@dataclass(frozen=True, slots=True)
class EventOptions:
    """How pickers hear of what engines' KV caches hold.

    Attributes:
        delay_ms: how long a message takes to the picker.
        loss: share of the messages that do not come.
        replays: engines send again what was missed.
    """

    delay_ms: float = 50.0
    loss: float = 0.0
    replays: bool = True


#: A tenth of the messages never comes.
LOSSY = EventOptions(loss=0.1, replays=False)
#: By name: all, none, and a tenth lost for good.
EVENTS: Mapping[str, EventOptions | None] = {
    "on": EventOptions(),
    "off": None,
    "lossy": LOSSY,
}


@dataclass(frozen=True, slots=True)
class WindowOptions:
    """How a load is sent, and how the picker is configured.

    Attributes:
        time_scale: multiplies send times and think times; 2 is half the load.
        max_in_flight: requests at once (the paper's client: 64); what waits for its turn slips. None for an
            open loop without limit.
        closed_loop: followers wait for the answer before them and their think time; otherwise everything is
            sent at its nominal time.
        report_usage: whether the picker hears of any usage (prompt, completion, cached tokens).
        report_cached_tokens: whether engines report cached tokens to the picker.
        report_connections: whether it hears of their connections, at the end; engines send headers at once.
        report_delay_ms: how long reports take from the gateway to the picker.
        config: the picker's configuration as served live: intervals of probes and scrapes, tie band, slow
            start, index sizes. The policy's name and weights in it are not read.
        pickers: how many there are.
        events: how pickers hear of engines' KV caches, None for not at all.
        patience_s: after which a client whose request still waits in a picker gives up, and thinks on.
    """

    time_scale: float = 1.0
    max_in_flight: int | None = None
    closed_loop: bool = True
    report_usage: bool = True
    report_cached_tokens: bool = True
    report_connections: bool = False
    report_delay_ms: float = 2.0
    config: Config = field(default_factory=Config)
    pickers: PickerOptions = field(default_factory=PickerOptions)
    events: EventOptions | None = None
    patience_s: float = inf

    def with_queue(self) -> WindowOptions:
        """Return the same with requests that may wait in the picker."""
        return self._with_queue(enabled=True)

    def with_programs(self) -> WindowOptions:
        """Return the same with turns of agents held until their contexts have a place."""
        programs = structs.replace(self.config.queue.programs, enabled=True)
        return self._with_queue(enabled=True, programs=programs)

    def _with_queue(self, **values: object) -> WindowOptions:
        queue = structs.replace(self.config.queue, **values)
        return replace(self, config=structs.replace(self.config, queue=queue))


_PART = re.compile(r"(?P<name>[\w.-]+)(@(?P<rtt>\d+(\.\d+)?))?(\*(?P<count>[1-9]\d*))?")

#: Regions of the published fleet by round trip (source [G]).
REGION_RTT_MS = {"us-ashburn": 20.0, "eu-frankfurt": 102.0, "ap-seoul": 211.0}


def regional_fleet(engine_class: EngineClass) -> FleetSpec:
    """Return the published fleet: one replica of a class in each of `REGION_RTT_MS`."""
    return FleetSpec(
        tuple(
            ReplicaSpec(f"{region}:8000", engine_class, NetworkPath(rtt_ms), region)
            for region, rtt_ms in REGION_RTT_MS.items()
        )
    )


def parse_fleet(text: str) -> FleetSpec:
    """Return a fleet from ``class@rtt_ms[*count]`` parts joined by commas; equal round trips share a region.

    Raises:
        ValueError: a part cannot be read; names it and what would do.
    """
    replicas: list[ReplicaSpec] = []
    for part in text.split(","):
        found = _PART.fullmatch(part.strip())
        cls = ENGINE_CLASSES.get(found["name"]) if found else None
        if found is None or cls is None:
            known = ", ".join(sorted(ENGINE_CLASSES))
            raise ValueError(f"{part.strip()!r} is not class@rtt_ms or class@rtt_ms*count; classes: {known}")
        rtt_ms = float(found["rtt"] or 0)
        for _ in range(int(found["count"] or 1)):
            address = f"{cls.name}-{len(replicas) + 1}:8000"
            replicas.append(ReplicaSpec(address, cls, NetworkPath(rtt_ms), f"rtt-{rtt_ms:g}ms"))
    return FleetSpec(tuple(replicas))
