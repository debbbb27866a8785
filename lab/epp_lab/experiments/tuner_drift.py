"""Drifts: a tuner has frozen on the defaults, then the world changes."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import geometric_mean
from typing import TYPE_CHECKING

from epp_lab.compare.stats import percentile
from epp_lab.experiment import Experiment
from epp_lab.sim.engine_class import L40S_X2, scaled
from epp_lab.sim.scenario import Event, Happening
from epp_lab.tuner.state import NothingBetter
from epp_lab.tuner_life import (
    BEGIN_WALL_S,
    HOME,
    SHORT,
    STRETCH_S,
    WINDOW_S,
    Rehearsals,
    defaults_of,
    life,
    rules_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epp_lab.compare.trace import TraceRequest
    from epp_lab.sim.scenario import FleetSpec
    from epp_lab.tuner.samples import Sample
    from epp_lab.tuner.state import Proposed, TunerState
    from epp_lab.tuner_life import LifeCell

POLICY = "gorgo-ms"
DEFAULTS, TUNER = "frozen defaults", "tuner"
#: Hours before the change, and after it.
CALM_H, CHANGED_H = 1, 4
BUDGET, RECORDED, WINDOW_REQUESTS = 16, 6000, 1000


def _slow(fleet: FleetSpec) -> FleetSpec:
    """Slow the nearest region to half its speed."""
    return replace(fleet, events=(Event(0.0, fleet.replicas[0].address, Happening.SLOW, 2.0),))


def _other_engines(fleet: FleetSpec) -> FleetSpec:
    """Let engines prefill in 1.5 times and decode in half the time, under their old name."""
    engine = scaled(L40S_X2, "other", prefill=1.5, decode=0.5)
    replicas = tuple(replace(r, engine_class=engine, known_as=L40S_X2.name) for r in fleet.replicas)
    return replace(fleet, replicas=replicas)


#: The world before and after.
DRIFTS = {
    "load triples": (replace(HOME, rate_rps=0.6), replace(HOME, rate_rps=1.8)),
    "a region slows": (HOME, replace(HOME, fleet=_slow(HOME.fleet))),
    "engine class changes": (HOME, replace(HOME, fleet=_other_engines(HOME.fleet))),
    "prompts turn short": (HOME, replace(HOME, traffic=SHORT)),
}


def run(cell: str, entry: str, seed: int) -> dict[str, float]:
    """Live through a change, frozen on the defaults, with a tuner or without."""
    before, after = DRIFTS[cell]
    rehearsals = Rehearsals(POLICY, after.fleet, rules_of(POLICY), seed, BUDGET, RECORDED, WINDOW_REQUESTS)

    def rehearse(
        state: TunerState, now_wall_s: float, requests: Sequence[TraceRequest]
    ) -> NothingBetter | Proposed:
        if entry == DEFAULTS:
            return NothingBetter(now_wall_s, "stays on the defaults")
        return rehearsals(state, now_wall_s, requests)

    def at(number: int) -> LifeCell:
        return before if number < CALM_H else after

    world = life(before, POLICY, defaults_of(POLICY), seed, rehearse)
    world.load = lambda number: at(number).load((seed * 1000 + number) % 2**32, STRETCH_S)
    world.fleet = lambda number: at(number).fleet
    world.state.phase = "frozen"
    world.run(stretches=CALM_H + CHANGED_H)
    thawed_wall_s = next((note.at_wall_s for note in world.notes if "drift" in note.reason), math.nan)
    windows = _by_window(world.samples)
    return {
        "p95_ms": geometric_mean(windows),
        "worst_window_p95_ms": max(windows),
        "thawed_h": (thawed_wall_s - BEGIN_WALL_S) / 3600.0 - CALM_H,
        "promoted": world.state.promotions > 0,
        "frozen": world.state.phase == "frozen",
    }


def _by_window(samples: Sequence[Sample]) -> list[float]:
    """Return the geometric mean of TTFT and E2E p95 of each ten minutes after the change."""
    windows: dict[int, list[Sample]] = {}
    for sample in samples:
        since_s = sample.dispatched_wall_s - BEGIN_WALL_S - CALM_H * STRETCH_S
        if sample.answered and since_s >= 0.0:
            windows.setdefault(int(since_s / WINDOW_S), []).append(sample)
    return [
        geometric_mean([percentile([getattr(s, fact) for s in part], 95) for fact in ("ttft_ms", "e2e_ms")])
        for part in windows.values()
    ]


EXPERIMENT = Experiment(
    question="How much worse than frozen defaults is a tuner's deployment after the world has changed?",
    cells=DRIFTS,
    entries=(DEFAULTS, TUNER),
    events=("promoted", "frozen"),
    run=run,
    minutes=13,
    seeds=3,
)
