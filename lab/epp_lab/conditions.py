"""Name the conditions that policies are compared under: ``load / fleet / steady``.

The table is written without a look at any policy. `SEED` is the first seed of comparisons; the weights of
tuned policies were found on others (`epp_lab.compare.plan.TUNING_SEED`). Chat that lives on its caches runs
on the calibrated engine (docs/simulator.md), the rest on one that keeps every token: busy and idle chat, long
prompts, sessions of agents.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from epp_lab.compare.fleets import FLEETS, calibrated
from epp_lab.compare.plan import PlanCell, Source
from epp_lab.workloads.registry import PUBLISHED_IN_FLIGHT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epp_lab.sim.scenario import FleetSpec

SEED = 101
#: How long requests are sent, in seconds.
WINDOW_S = 600.0


@dataclass(frozen=True, slots=True)
class Load:
    """A generated workload, how much slower it is sent, and whether its client limits requests in flight."""

    workload: str
    time_scale: float = 1.0
    calibrated: bool = False
    limited: bool = True

    def on(self, name: str, fleet: FleetSpec) -> tuple[PlanCell, FleetSpec]:
        """Return the load as a cell, and the fleet as this load has it."""
        source = Source(workload=self.workload, until_s=WINDOW_S / self.time_scale)
        limit = PUBLISHED_IN_FLIGHT if self.limited else None
        cell = PlanCell(name, source, time_scale=self.time_scale, max_in_flight=limit)
        return cell, calibrated(fleet) if self.calibrated else fleet


LOADS: Mapping[str, Load] = {
    "art-chat ts 1": Load("art-chat", 1.0, calibrated=True),
    "art-chat ts 3": Load("art-chat-apr-7", 3.0, calibrated=True),
    "mooncake": Load("mooncake-chat", 1.5),
    "agent sessions": Load("agent-sessions", limited=False),
}
_FLEETS: Mapping[str, str] = {"three regions": "paper-exact", "mixed": "mixed"}
CELLS = tuple(f"{load} / {fleet} / steady" for load in LOADS for fleet in _FLEETS)


def condition(name: str) -> tuple[PlanCell, FleetSpec]:
    """Return the load and the fleet of a name of `CELLS`."""
    load_name, fleet_name, _ = name.split(" / ")
    return LOADS[load_name].on(name, FLEETS[_FLEETS[fleet_name]][1])
