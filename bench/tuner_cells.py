"""The cells that the tuner is measured on: three fleets under four loads, and what changes in a drift.

Owns the table. Fleets are as `epp.sim` has them, loads are generated chat sent at its own time. A cell's
loads are told apart by their seeds: some are searched on, others lived through, others judged on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from epp.demo.tuner_world import at_rate
from epp.replay.workloads.art_chat import APR_5, APR_7, ArtChat, Lognormal, generate
from epp.sim.engine_class import L40S_X2, scaled
from epp.sim.scenario import Event as FleetEvent
from epp.sim.scenario import FleetSpec, Happening, parse_fleet, regional_fleet

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epp.replay.trace import TraceRequest

#: A load that one replica could nearly carry alone, and one that it could not.
LIGHT_RPS, HEAVY_RPS = 1.4, 2.8
#: Prompts of a few hundred tokens, as of a chat that begins anew each time.
SHORT = replace(
    APR_5,
    prompt_tokens=Lognormal(900.0, 3_500.0, 1.6449),
    message_tokens=Lognormal(120.0, 600.0, 1.2816),
    max_prompt_tokens=8_000,
)


@dataclass(frozen=True, slots=True)
class Cell:
    """A load on a fleet.

    Attributes:
        name: ``load / fleet``.
        fleet: its replicas.
        traffic: recipe of the load.
        rate_rps: requests a second.
    """

    name: str
    fleet: FleetSpec
    traffic: ArtChat
    rate_rps: float

    def load(self, seed: int, duration_s: float) -> tuple[TraceRequest, ...]:
        """Requests of a seed, at their own time."""
        recipe = replace(self.traffic, duration_s=duration_s, rate_rps=self.rate_rps)
        return at_rate(generate(recipe, seed), 1.0)


REGIONS = regional_fleet(L40S_X2)
FLEETS: Mapping[str, FleetSpec] = {
    "three regions": REGIONS,
    "mixed engines": parse_fleet("l40s-x2@20,h100@102,l40s-x2@211"),
    "one region": parse_fleet("l40s-x2@20*3"),
}
_LOADS: Mapping[str, tuple[ArtChat, float]] = {
    "chat": (APR_5, LIGHT_RPS),
    "busy chat": (APR_5, HEAVY_RPS),
    "long conversations": (APR_7, LIGHT_RPS),
    "short prompts": (SHORT, HEAVY_RPS),
}
CELLS: Mapping[str, Cell] = {
    f"{load} / {fleet}": Cell(f"{load} / {fleet}", replicas, traffic, rate_rps)
    for load, (traffic, rate_rps) in _LOADS.items()
    for fleet, replicas in FLEETS.items()
}
HOME = CELLS["chat / three regions"]


def _slow(fleet: FleetSpec) -> FleetSpec:
    """The nearest region works at half its speed from the start on."""
    slow = FleetEvent(0.0, fleet.replicas[0].address, Happening.SLOW, 2.0)
    return replace(fleet, events=(slow,))


def _other_engines(fleet: FleetSpec) -> FleetSpec:
    """Engines that prefill at two thirds of the speed and decode at twice it, presented as what they were."""
    engine = scaled(L40S_X2, "other", prefill=1.5, decode=0.5)
    replicas = tuple(replace(r, engine_class=engine, known_as=L40S_X2.name) for r in fleet.replicas)
    return replace(fleet, replicas=replicas)


#: What may change: name -> the world before, the world after.
DRIFTS: Mapping[str, tuple[Cell, Cell]] = {
    "load triples": (replace(HOME, rate_rps=0.6), replace(HOME, rate_rps=1.8)),
    "a region slows": (HOME, replace(HOME, fleet=_slow(HOME.fleet))),
    "engine class changes": (HOME, replace(HOME, fleet=_other_engines(HOME.fleet))),
    "workload turns short": (HOME, replace(HOME, traffic=SHORT)),
}
