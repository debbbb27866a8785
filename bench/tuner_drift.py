"""Drifts: weights that were best for one world, frozen, and then the world changes.

Owns what is seen of it: when the tuner wakes up, what it puts in force, and for how long its deployment is
worse than one that stayed on the policy's defaults. Both meet the same requests.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from bench.tuner_cells import DRIFTS
from bench.tuner_runs import BIN_S, HELD_OUT, STRETCH_S, best_of, gains, life, nothing, told, until
from epp.demo.tuner import Rehearsals, defaults_of, rules_of
from epp.demo.tuner_world import BEGIN_WALL_S
from epp.replay.stats import percentile

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bench.tuner_cells import Cell
    from bench.tuner_runs import Figures
    from epp.demo.tuner_world import Life
    from epp.tuner.samples import Sample

POLICY = "gorgo-ms"
_CALM_STRETCHES = 1
_WORSE = 1.05
_HELD_OUT_WINDOWS = 4


def drift(what: str, seed: int, *, hours: float, budget: int) -> Figures:
    """One drift.

    Args:
        what: name among `DRIFTS`.
        seed: of everything but the search for the weights before.
        hours: of virtual time after the change.
        budget: measurements of searches.
    """
    before, after = DRIFTS[what]
    start, defaults = dict(best_of(before, POLICY, budget=budget)), defaults_of(POLICY)
    rehearsals = Rehearsals(POLICY, after.fleet, rules_of(POLICY), seed=seed, budget=budget)
    world = _drifting(before, after, start, seed, rehearsals)
    world.state.phase = "frozen"
    world.run(stretches=_CALM_STRETCHES + max(1, round(hours)))
    frozen = _drifting(before, after, defaults, seed, nothing)
    frozen.stop = until(world, frozen)
    frozen.run(stretches=200)
    ours, theirs = _bins(world.samples), _bins(frozen.samples)
    places = [place for place in ours if place in theirs]
    worse = [place for place in places if ours[place] > _WORSE * theirs[place]]
    thaw = next((n.at_wall_s for n in world.notes if "drift" in n.reason), math.nan)
    promoted = next((c.at_wall_s for c in world.state.history if c.how == "promoted"), math.nan)
    again = next((n.at_wall_s for n in world.notes if n.after == "frozen" and n.at_wall_s > thaw), math.nan)
    loads = [after.load(HELD_OUT + i, BIN_S) for i in range(_HELD_OUT_WINDOWS)]
    return {
        **told(world),
        "what": what,
        "start": start,
        "end": world.state.incumbent,
        "thawed_h": _hours_after(thaw),
        "promoted_h": _hours_after(promoted),
        "frozen_h": _hours_after(again),
        "worse_h": len(worse) * BIN_S / 3600.0,
        "last_worse_h": (max(worse) + 1) * BIN_S / 3600.0 if worse else 0.0,
        "observed_h": len(places) * BIN_S / 3600.0,
        "ratio": math.exp(sum(math.log(ours[p] / theirs[p]) for p in places) / max(1, len(places))),
        "before": gains(after, POLICY, loads, defaults, start),
        "after": gains(after, POLICY, loads, defaults, world.state.incumbent),
    }


def _drifting(before: Cell, after: Cell, weights: Mapping[str, float], seed: int, rehearse: Any) -> Life:
    world = life(before, POLICY, weights, seed, rehearse)

    def now(number: int) -> Cell:
        return before if number < _CALM_STRETCHES else after

    world.load = lambda number: now(number).load((seed * 1000 + number) % 2**32, STRETCH_S)
    world.fleet = lambda number: now(number).fleet
    return world


def _hours_after(at_wall_s: float) -> float:
    return (at_wall_s - BEGIN_WALL_S) / 3600.0 - _CALM_STRETCHES


def _bins(samples: Sequence[Sample]) -> dict[int, float]:
    """Geometric mean of TTFT and E2E p95 by stretches of ten minutes after the change."""
    rows: dict[int, list[Sample]] = {}
    for sample in samples:
        at_s = sample.dispatched_wall_s - BEGIN_WALL_S - _CALM_STRETCHES * STRETCH_S
        if sample.answered and at_s >= 0.0:
            rows.setdefault(int(at_s // BIN_S), []).append(sample)
    return {
        place: math.sqrt(percentile([s.ttft_ms for s in row], 95) * percentile([s.e2e_ms for s in row], 95))
        for place, row in rows.items()
    }
