"""Tuning runs: from weights that are off until a promotion or a freeze, measured on loads held out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epp_lab.experiment import Experiment
from epp_lab.tuner_life import CELLS, Rehearsals, held_out, life, rules_of, weights_off

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epp_lab.compare.trace import TraceRequest
    from epp_lab.tuner.state import NothingBetter, Proposed, TunerState
    from epp_lab.tuner_life import Life

#: Perturbed weights of the one are tuned, the published ones of the other.
POLICIES = ("gorgo-ms", "gorgo")
START, TUNED = "start", "tuned"
#: Requests lived through at most: 24 hours of the light cells, 12 of the others.
MOST_REQUESTS = 120_960
#: A third of production's measurements, of two fifths of its requests.
BUDGET, RECORDED, WINDOW_REQUESTS = 40, 7200, 600


def lived(place: str, policy: str, seed: int) -> Life:
    """Tune until a promotion or a freeze; all rehearsals are given the same records."""
    cell = CELLS[place]
    rehearsals = Rehearsals(policy, cell.fleet, rules_of(policy), seed, BUDGET, RECORDED, WINDOW_REQUESTS)
    records = cell.load((seed * 1000 - 1) % 2**32, RECORDED / cell.rate_rps)

    def rehearse(state: TunerState, now_wall_s: float, _: Sequence[TraceRequest]) -> Proposed | NothingBetter:
        return rehearsals(state, now_wall_s, records)

    world = life(cell, policy, weights_off(policy, seed), seed, rehearse)
    world.stop = lambda state: state.promotions > 0 or state.phase == "frozen"
    world.run(stretches=max(1, round(MOST_REQUESTS / cell.rate_rps / 3600.0)))
    return world


def run(cell: str, entry: str, seed: int) -> dict[str, float]:
    """Measure the weights of a start, or of the tuner at its end."""
    place, policy = cell.split(" | ")
    if entry == START:
        return held_out(CELLS[place], policy, weights_off(policy, seed))
    world = lived(place, policy, seed)
    ended = {"promoted": world.state.promotions > 0, "frozen": world.state.phase == "frozen"}
    measured = held_out(CELLS[place], policy, world.state.incumbent)
    return {**measured, **ended, "hours": world.hours}


EXPERIMENT = Experiment(
    question="What does the tuner make of weights that are off, and does a promotion ever do harm?",
    cells=tuple(f"{place} | {policy}" for place in CELLS for policy in POLICIES),
    entries=(START, TUNED),
    events=("promoted", "frozen"),
    run=run,
    minutes=276,
    seeds=9,
)
