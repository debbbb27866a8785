"""The cells that policies are judged on: a load, a fleet, what happens to it, and what the picker believes.

Owns the table. Must not know any policy: it is written before those that are judged on it, and a change to
it, to a workload, a fleet or the engine model runs every policy again. Rules: policies are tuned on
`TUNING_SEEDS` of each cell's tuning load and steady fleet, looked at while being written on
`DEVELOPMENT_SEEDS`, and judged on `SCORING_SEEDS`, which nobody looks at before.

Groups:

* ``matched``: every workload on every fleet, steady, with a replica that dies and comes back cold, and with
  one that becomes slow. Chat windows run on the calibrated engine (docs/simulator.md), the rest on one that
  keeps every token.
* ``engine``: engines that no policy was written for, presented as what they are not.
* ``belief``: what the picker is told is wrong, by amounts seen in life, or not told at all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from epp.replay.fleets import FLEETS, calibrated
from epp.replay.plan import TUNING_SEED, Cell, Reports, Source
from epp.replay.workloads.registry import PUBLISHED_IN_FLIGHT
from epp.sim.engine_class import H100, VARIANTS, EngineClass, scaled
from epp.sim.scenario import REGION_RTT_MS, Event, FleetSpec, Happening

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

TUNING_SEEDS = tuple(range(TUNING_SEED, TUNING_SEED + 2))
DEVELOPMENT_SEEDS = tuple(range(2_000_000, 2_000_005))
SCORING_SEEDS = tuple(range(101, 121))

#: Parts of the window at which the failing replica dies and is back, and the slow one is slow.
_DIES, _BACK = 0.4, 0.5
_SLOW, _WELL = 0.35, 0.75
_SLOW_FACTOR = 2.0
#: Larger fleets get more users, and a shorter window that costs no more to run.
_LARGE_FLEET_S = 900.0
_HALF_HOUR_S = 1800.0
_TRACE_S = 3540.0
#: Share of a trace's rows that are judged on: what is left of the part that policies are tuned on.
_JUDGED_SHARE = 2 / 3


@dataclass(frozen=True, slots=True)
class PolicyCell:
    """One cell.

    Attributes:
        name: ``load / fleet / what happens or is wrong``.
        group: ``matched``, ``engine`` or ``belief``.
        cell: the load, its pace, its tuning load, and what the picker hears.
        fleet: the replicas, and what happens to them.
        core: part of the short run of a comparison.
    """

    name: str
    group: str
    cell: Cell
    fleet: FleetSpec
    core: bool = False

    @property
    def tuning_fleet(self) -> FleetSpec:
        """The fleet without anything happening to it."""
        return replace(self.fleet, events=())


@dataclass(frozen=True, slots=True)
class _Load:
    """A row of the table of loads."""

    name: str
    workload: str
    time_scale: float
    calibrated: bool = False
    tuning: str = ""
    limited: bool = True


_LOADS = (
    _Load("art-chat ts 1", "art-chat", 1.0, calibrated=True),
    _Load("art-chat ts 2", "art-chat-apr-6", 2.0, calibrated=True, tuning="art-chat"),
    _Load("art-chat ts 3", "art-chat-apr-7", 3.0, calibrated=True, tuning="art-chat"),
    _Load("wild-chat", "wild-chat", 3.0),
    _Load("mooncake", "mooncake-chat", 1.5),
    _Load("agent sessions", "agent-sessions", 1.0, limited=False),
    _Load("siblings", "agent-bursts", 1.0, limited=False),
)
_FLEETS: Mapping[str, tuple[str, float]] = {
    "three regions": ("paper-exact", 1.0),
    "one region": ("one-region", 8 / 3),
    "six": ("six", 2.0),
    "mixed": ("mixed", 1.0),
}
#: The loads that engines and beliefs are varied on: one that lives on its caches, one whose caches forget.
_VARIED = ("art-chat ts 1", "mooncake")


def policy_cells(*, mooncake: str = "", agents: str = "") -> tuple[PolicyCell, ...]:
    """The table.

    Args:
        mooncake: path of Mooncake's conversation trace, ``""`` for generated traffic of its statistics.
        agents: path of recorded agent sessions, ``""`` for generated ones.
    """
    traces = {"mooncake": mooncake, "agent sessions": agents}
    out: list[PolicyCell] = []
    for load in _LOADS:
        for fleet_name, (spec_name, rate) in _FLEETS.items():
            cell = _cell(load, rate, traces.get(load.name, ""))
            fleet = FLEETS[spec_name][1]
            fleet = calibrated(fleet) if load.calibrated else fleet
            for what, happen in _HAPPENINGS.items():
                name = f"{load.name} / {fleet_name} / {what}"
                core = what == "steady" and fleet_name in {"three regions", "mixed"}
                out.append(
                    PolicyCell(
                        name, "matched", replace(cell, name=name), happen(fleet, _window_s(cell)), core
                    )
                )
    for load in _LOADS:
        if load.name in _VARIED:
            out += _varied(load, _cell(load, 1.0, traces.get(load.name, "")))
    return tuple(out)


def _cell(load: _Load, rate: float, trace: str) -> Cell:
    limit = round(PUBLISHED_IN_FLIGHT * rate) if load.limited else None
    until_s = _LARGE_FLEET_S if rate > 1.0 else 0.0
    if trace:
        # A recorded load cannot have more users: larger fleets get it faster.
        source = Source(trace=trace, part="judge")
        tuning = replace(source, part="tune")
        return Cell(
            load.name,
            source,
            load=rate,
            time_scale=load.time_scale,
            max_in_flight=limit,
            tuning=tuning,
        )
    return Cell(
        load.name,
        Source(workload=load.workload, rate=rate, until_s=until_s),
        time_scale=load.time_scale,
        max_in_flight=limit,
        tuning=Source(workload=load.tuning or load.workload, rate=rate, until_s=until_s),
    )


def _window_s(cell: Cell) -> float:
    nominal_s = _TRACE_S * _JUDGED_SHARE if cell.source.trace else cell.source.until_s or _HALF_HOUR_S
    return nominal_s * cell.pace


# What happens


def _steady(fleet: FleetSpec, window_s: float) -> FleetSpec:  # noqa: ARG001 - one shape for all
    return fleet


def _failing(fleet: FleetSpec, window_s: float) -> FleetSpec:
    """The nearest replica dies, and comes back cold."""
    address = fleet.replicas[0].address
    dies = Event(_DIES * window_s, address, Happening.DIE)
    return replace(fleet, events=(dies, Event(_BACK * window_s, address, Happening.REVIVE)))


def _slow(fleet: FleetSpec, window_s: float) -> FleetSpec:
    """One replica in the middle of the list takes twice as long for a while; of mixed ones, the fast one."""
    address = fleet.replicas[len(fleet.replicas) // 2].address
    slow = Event(_SLOW * window_s, address, Happening.SLOW, _SLOW_FACTOR)
    return replace(fleet, events=(slow, Event(_WELL * window_s, address, Happening.SLOW, 1.0)))


_HAPPENINGS: Mapping[str, Callable[[FleetSpec, float], FleetSpec]] = {
    "steady": _steady,
    "one fails": _failing,
    "one slow": _slow,
}


# What is not as believed


def _each(fleet: FleetSpec, field: str, *values: object) -> FleetSpec:
    """The fleet with a field of its replicas set, in order."""
    pairs = zip(fleet.replicas, values, strict=True)
    return replace(fleet, replicas=tuple(replace(spec, **{field: value}) for spec, value in pairs))  # type: ignore[arg-type]  # the callers' values fit


def _engines(fleet: FleetSpec, *classes: EngineClass) -> FleetSpec:
    """Other engines than the picker is told of; one class for all, or one for each."""
    classes = classes * len(fleet.replicas) if len(classes) == 1 else classes
    told = _each(fleet, "known_as", *(spec.known_as or spec.engine_class.name for spec in fleet.replicas))
    return _each(told, "engine_class", *classes)


def _varied(load: _Load, cell: Cell) -> list[PolicyCell]:
    """Cells of one load in three regions, where one thing at a time is not as the picker believes."""
    exact = FLEETS["paper-exact"][1]
    base = calibrated(exact) if load.calibrated else exact
    out = []

    def add(
        group: str, what: str, fleet: FleetSpec, reports: Reports | None = None, *, core: bool = False
    ) -> None:
        name = f"{load.name} / three regions / {what}"
        named = replace(cell, name=name, reports=reports or cell.reports)
        out.append(PolicyCell(name, group, named, fleet, core))

    if load.calibrated:
        add("engine", "keeps every token", exact, core=True)
    else:
        add("engine", "loses hits", calibrated(exact), core=True)
    for cls in VARIANTS:
        core = cls.name in {"l40s-x2-mixed", "l40s-x2-slow-decode"}
        add("engine", cls.name.removeprefix("l40s-x2-"), _engines(exact, cls), core=core)
    # Published round trips hold connection set-ups: 37, 279 and 456 ms for 20, 102 and 211 (source [G]).
    setups = [
        published / warm for published, warm in zip((37, 279, 456), REGION_RTT_MS.values(), strict=True)
    ]
    add("belief", "RTT with set-ups", _each(base, "probe_factor", *setups))
    add("belief", "RTT +-50 %", _each(base, "probe_factor", 1.5, 0.5, 1.5), core=True)
    add("belief", "cache half as large", _each(base, "kv_report_factor", *[2.0] * 3))
    add("belief", "cache twice as large", _each(base, "kv_report_factor", *[0.5] * 3))
    rates = [_faster(base, index, factor) for index, factor in enumerate((1.3, 1.0, 0.7))]
    add("belief", "rates +-30 %", _engines(base, *rates), core=True)
    add(
        "belief",
        "an H100 unknown",
        _engines(base, base.replicas[0].engine_class, H100, base.replicas[2].engine_class),
    )
    add("belief", "no usage", base, Reports(usage=False), core=True)
    add("belief", "no cached tokens", base, Reports(cached_tokens=False))
    add("belief", "first tokens a second late", base, Reports(delay_ms=1_000.0))
    return out


def _faster(fleet: FleetSpec, index: int, factor: float) -> EngineClass:
    cls = fleet.replicas[index].engine_class
    return scaled(cls, f"{cls.name} x {factor:g}", prefill=factor, decode=factor)


POLICY_CELLS = policy_cells()
