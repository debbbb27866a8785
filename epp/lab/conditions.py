"""Name the conditions that policies are compared under: ``load / fleet / what happens or is wrong``.

The table is written without a look at any policy. `SEED` is the first seed of comparisons; the weights of
tuned policies were found on others (`epp.lab.compare.plan.TUNING_SEED`). Chat that lives on its caches runs
on the calibrated engine (docs/simulator.md), the rest on one that keeps every token.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from epp.errors import EppError
from epp.lab.compare.fleets import FLEETS, calibrated
from epp.lab.compare.plan import Cell, Source
from epp.lab.sim.engine_class import scaled
from epp.lab.sim.scenario import REGION_RTT_MS, Event, FleetSpec, Happening, ReplicaSpec, WindowOptions
from epp.lab.workloads.registry import PUBLISHED_IN_FLIGHT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

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


LOADS: Mapping[str, Load] = {
    "art-chat ts 1": Load("art-chat", 1.0, calibrated=True),
    "art-chat ts 2": Load("art-chat-apr-6", 2.0, calibrated=True),
    "art-chat ts 3": Load("art-chat-apr-7", 3.0, calibrated=True),
    "wild-chat": Load("wild-chat", 3.0),
    "mooncake": Load("mooncake-chat", 1.5),
    "agent sessions": Load("agent-sessions", limited=False),
    "siblings": Load("agent-bursts", limited=False),
}
#: Fleet and how many times as many users it gets, by name.
SIZED_FLEETS: Mapping[str, tuple[str, float]] = {
    "three regions": ("paper-exact", 1.0),
    "one region": ("one-region", 8 / 3),
    "six": ("six", 2.0),
    "mixed": ("mixed", 1.0),
}


def _fails(fleet: FleetSpec) -> FleetSpec:
    """Let the nearest replica die, and come back cold."""
    address = fleet.replicas[0].address
    dies = Event(0.4 * WINDOW_S, address, Happening.DIE)
    return replace(fleet, events=(dies, Event(0.5 * WINDOW_S, address, Happening.REVIVE)))


def _slow(fleet: FleetSpec) -> FleetSpec:
    """Let a replica in the middle of the list take twice as long for a while."""
    address = fleet.replicas[len(fleet.replicas) // 2].address
    slow = Event(0.35 * WINDOW_S, address, Happening.SLOW, 2.0)
    return replace(fleet, events=(slow, Event(0.75 * WINDOW_S, address, Happening.SLOW, 1.0)))


def _each(field: str, *values: float) -> Callable[[FleetSpec], FleetSpec]:
    """Set a field of the three replicas, in order."""
    return lambda fleet: replace(
        fleet,
        replicas=tuple(
            replace(spec, **{field: value})  # type: ignore[arg-type]
            for spec, value in zip(fleet.replicas, values, strict=True)
        ),
    )


def _other_rates(fleet: FleetSpec) -> FleetSpec:
    """Run engines that are faster and slower than configured."""

    def other(spec: ReplicaSpec, factor: float) -> ReplicaSpec:
        cls = scaled(spec.engine_class, f"x {factor:g}", prefill=factor, decode=factor)
        return replace(spec, engine_class=cls, known_as=spec.known_as or spec.engine_class.name)

    replicas = zip(fleet.replicas, (1.3, 1.0, 0.7), strict=True)
    return replace(fleet, replicas=tuple(other(spec, factor) for spec, factor in replicas))


#: Published round trips hold connection set-ups: 37, 279 and 456 ms for 20, 102 and 211 (source [G]).
_SETUPS = [published / warm for published, warm in zip((37, 279, 456), REGION_RTT_MS.values(), strict=True)]
#: What happens to a fleet; of any fleet.
HAPPENINGS: Mapping[str, Callable[[FleetSpec], FleetSpec]] = {
    "steady": lambda fleet: fleet,
    "one fails": _fails,
    "one slow": _slow,
}
#: What three regions are that the picker does not know.
WRONG: Mapping[str, Callable[[FleetSpec], FleetSpec]] = {
    "loses hits": calibrated,
    "RTT with set-ups": _each("probe_factor", *_SETUPS),
    "cache half as large": _each("kv_report_factor", 2.0, 2.0, 2.0),
    "cache twice as large": _each("kv_report_factor", 0.5, 0.5, 0.5),
    "rates +-30 %": _other_rates,
}
#: What is reported of requests.
REPORTS: Mapping[str, WindowOptions] = {
    "no usage": WindowOptions(report_usage=False),
    "no cached tokens": WindowOptions(report_cached_tokens=False),
    "first tokens a second late": WindowOptions(report_delay_ms=1_000.0),
    "connections reported": WindowOptions(report_connections=True),
}
NAMES = (
    *(f"{load} / {fleet} / {what}" for load in LOADS for fleet in SIZED_FLEETS for what in HAPPENINGS),
    *(f"{load} / three regions / {what}" for load in LOADS for what in (*WRONG, *REPORTS)),
)
#: What is compared first: chat with caches that forget, busy and idle; long prompts; sessions of agents.
STEADY_CELLS = tuple(
    f"{load} / {fleet} / steady"
    for load in ("art-chat ts 1", "art-chat ts 3", "mooncake", "agent sessions")
    for fleet in ("three regions", "mixed")
)


def condition(name: str) -> tuple[Cell, FleetSpec]:
    """Return the load and the fleet of a name of `NAMES`.

    Raises:
        EppError: it is none of them.
    """
    if name not in NAMES:
        raise EppError(f"no condition {name!r}; one of: {', '.join(NAMES)}")
    load_name, fleet_name, what = name.split(" / ")
    load, (spec, rate) = LOADS[load_name], SIZED_FLEETS[fleet_name]
    fleet = calibrated(FLEETS[spec][1]) if load.calibrated else FLEETS[spec][1]
    change = HAPPENINGS.get(what) or WRONG.get(what)
    fleet = change(fleet) if change else fleet
    limit = round(PUBLISHED_IN_FLIGHT * rate) if load.limited else None
    source = Source(workload=load.workload, rate=rate, until_s=WINDOW_S / load.time_scale)
    cell = Cell(name, source, time_scale=load.time_scale, max_in_flight=limit)
    return replace(cell, reports=REPORTS.get(what, cell.reports)), fleet
