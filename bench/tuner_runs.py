"""Tuning runs, and what came of them: the start, the trial, and windows that nothing was searched on.

Owns the measurement of harm, of the attainable gain, and of what exploring costs. A run is a function of its
arguments. Windows that are judged on, and searched on for the optimum, have seeds of their own; both sets of
weights meet them alike (common random numbers).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from bench.tuner_cells import CELLS
from epp.demo.tuner import Rehearsals, defaults_of, rules_of
from epp.demo.tuner_world import BEGIN_WALL_S, Life
from epp.keyed_uniform import keyed_uniform
from epp.replay.stats import percentile
from epp.sim.run import run_window
from epp.sim.scenario import WindowOptions
from epp.tune.calibrate import MAX_REQUESTS
from epp.tune.rehearse import WINDOW_REQUESTS
from epp.tuner import machine
from epp.tuner.search import Search
from epp.tuner.state import NothingBetter, Proposed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from bench.tuner_cells import Cell
    from epp.replay.trace import TraceRequest
    from epp.sim.results import SimResult
    from epp.tuner.samples import Sample
    from epp.tuner.state import State

Figures = dict[str, Any]

OPEN = WindowOptions(closed_loop=False)
#: Seeds of loads that nothing is searched or tried on, and of those that only the optimum is picked on.
HELD_OUT, SEARCHED_ON = 900_000, 700_000
BIN_S, STRETCH_S = 600.0, 3600.0
#: Windows held out follow each other on a warm fleet: requests of each, windows of a load, and what warms it.
HELD_OUT_REQUESTS, HELD_OUT_PER_LOAD, _WARM_REQUESTS = 420, 10, 420
_FACTOR = 6.0


@dataclass(frozen=True, slots=True)
class Effort:
    """What the rehearsals of a run may spend.

    Attributes:
        budget: measurements of the first.
        recorded: requests that they are given, all of them the same.
        window_requests: of a measurement.
    """

    budget: int
    recorded: int
    window_requests: int


#: What 200 runs can be given, and what a deployment has.
SMALL, PRODUCTION = Effort(40, 7200, 600), Effort(120, MAX_REQUESTS, WINDOW_REQUESTS)


def tuning_run(
    place: str, policy: str, seed: int, *, hours: float, windows: int, effort: Effort, priced: bool
) -> Figures:
    """From weights that are off until a promotion or a freeze, or until time is up.

    Args:
        place: name of the cell.
        policy: that is tuned.
        seed: of everything.
        hours: of virtual time at most.
        windows: held out, that are judged on.
        effort: of its rehearsals.
        priced: whether to live through the same time again without the tuner, for what exploring costs.
    """
    cell, start = CELLS[place], perturbed(policy, seed)
    rehearsals = Rehearsals(
        policy,
        cell.fleet,
        rules_of(policy),
        seed=seed,
        budget=effort.budget,
        recorded=effort.recorded,
        window_requests=effort.window_requests,
    )
    records = cell.load((seed * 1000 - 1) % 2**32, effort.recorded / cell.rate_rps)

    def rehearse(
        state: State,
        now_wall_s: float,
        requests: Sequence[TraceRequest],  # noqa: ARG001 - one shape
    ) -> Proposed | NothingBetter:
        return rehearsals(state, now_wall_s, records)

    world = life(cell, policy, start, seed, rehearse)
    world.stop = lambda state: state.promotions > 0 or state.phase == "frozen"
    world.run(stretches=max(1, round(hours)))
    out: Figures = {**told(world), "cell": place, "policy": policy, "seed": seed}
    out |= {"start": start, "end": world.state.incumbent}
    promoted = world.state.promotions > 0
    if promoted:
        out["gain"] = held_out(place, policy, start, world.state.incumbent, windows)
    if priced:
        out["cost"] = _exploring(world, cell, policy, start, seed)
    return {**out, "promoted": promoted, "hours": hours_of(world), "proposals": world.state.number}


def attainable(place: str, policy: str, seed: int, *, best: Mapping[str, float]) -> Figures:
    """What the cell's optimum would win from a run's start, on the windows of one load held out.

    Args:
        place: name of the cell.
        policy: that was tuned.
        seed: of the run.
        best: the cell's optimum.
    """
    return {"gain": held_out(place, policy, perturbed(policy, seed), best, HELD_OUT_PER_LOAD)}


def perturbed(policy: str, seed: int) -> dict[str, float]:
    """`gorgo`'s published weights as they are; any other policy's defaults, each off by up to 6 times."""
    weights = defaults_of(policy)
    if policy == "gorgo":
        return weights
    bounds = rules_of(policy).bounds
    out = {}
    for name, value in weights.items():
        moved = value * _FACTOR ** (2.0 * keyed_uniform(seed, name, "perturbed") - 1.0)
        out[name] = min(max(moved, bounds[name][0]), bounds[name][1])
    return out


def optimum(place: str, policy: str, *, budget: int) -> Figures:
    """The best weights found on windows that nothing else meets, the defaults among them."""
    return {"weights": best_of(CELLS[place], policy, budget=budget)}


@lru_cache(maxsize=32)
def best_of(cell: Cell, policy: str, *, budget: int) -> dict[str, float]:
    """The best weights of a cell: searched and picked on `SEARCHED_ON`."""
    loads = [cell.load(SEARCHED_ON + i, BIN_S) for i in range(2)]
    defaults = defaults_of(policy)
    usual = [_price(judged(cell, load, policy, defaults)) for load in loads]
    search = Search(defaults, rules_of(policy).bounds, seed=0)
    while not search.stop(budget=budget):
        turn = search.told % len(loads)
        search.tell(_price(judged(cell, loads[turn], policy, search.ask())) - usual[turn])
    found = search.recommend()
    gain = sum(_price(judged(cell, load, policy, found)) for load in loads) - sum(usual)
    return found if gain < 0.0 else defaults


def judged(
    cell: Cell, load: Sequence[TraceRequest], policy: str, weights: Mapping[str, float]
) -> dict[str, float]:
    """p95s of a window under frozen weights."""
    results = run_window(load, cell.fleet, policy, weights, seed=7, options=OPEN).requests
    return _p95s([result for result in results if result.ok])


def _price(found: Mapping[str, float]) -> float:
    return (math.log(found["ttft"]) + math.log(found["e2e"])) / 2.0


def held_out(
    place: str, policy: str, before: Mapping[str, float], after: Mapping[str, float], windows: int
) -> dict[str, list[float]]:
    """Log-ratios of p95 after to before, window by window of the loads held out; below zero is better."""
    loads = range(math.ceil(windows / HELD_OUT_PER_LOAD))
    ours, theirs = (
        [p95s for load in loads for p95s in _held_out(place, policy, load, tuple(sorted(weights.items())))]
        for weights in (after, before)
    )
    return {
        name: [math.log(a[name] / b[name]) for a, b in zip(ours, theirs, strict=True)]
        for name in ("ttft", "e2e")
    }


@lru_cache(maxsize=1024)
def _held_out(
    place: str, policy: str, number: int, weights: tuple[tuple[str, float], ...]
) -> list[dict[str, float]]:
    """p95s of the windows of one load held out, which follow each other on a warm fleet."""
    cell = CELLS[place]
    window_s, warm_s = HELD_OUT_REQUESTS / cell.rate_rps, _WARM_REQUESTS / cell.rate_rps
    load = cell.load(HELD_OUT + number, warm_s + HELD_OUT_PER_LOAD * window_s)
    parts: list[list[SimResult]] = [[] for _ in range(HELD_OUT_PER_LOAD)]
    for result in run_window(load, cell.fleet, policy, dict(weights), seed=7, options=OPEN).requests:
        at = (load[result.index].at_ms / 1e3 - warm_s) / window_s
        if result.ok and 0.0 <= at < HELD_OUT_PER_LOAD:
            parts[int(at)].append(result)
    return [_p95s(part) for part in parts]


def _p95s(ok: Sequence[SimResult]) -> dict[str, float]:
    return {
        "ttft": percentile([r.ttft_ms for r in ok if r.ttft_ms is not None], 95),
        "e2e": percentile([r.e2e_ms for r in ok], 95),
    }


def gains(
    cell: Cell,
    policy: str,
    loads: Sequence[Sequence[TraceRequest]],
    before: Mapping[str, float],
    after: Mapping[str, float],
) -> dict[str, list[float]]:
    """Log-ratios of p95 after to before, window by window; below zero is better."""
    out: dict[str, list[float]] = {"ttft": [], "e2e": []}
    for load in loads:
        a, b = judged(cell, load, policy, after), judged(cell, load, policy, before)
        for name, logs in out.items():
            logs.append(math.log(a[name] / b[name]))
    return out


def _exploring(
    world: Life, cell: Cell, policy: str, start: Mapping[str, float], seed: int
) -> dict[str, float]:
    """p95 of all requests until the end over that of the same requests under the weights of the start."""
    calm = life(cell, policy, start, seed, nothing)
    calm.stop = until(world, calm)
    calm.run(stretches=200)
    return _ratio(world.samples, calm.samples)


def life(cell: Cell, policy: str, weights: Mapping[str, float], seed: int, rehearse: Any) -> Life:
    """A tuner that lives in a cell."""
    rules = rules_of(policy)
    return Life(
        policy=policy,
        fleet=cell.fleet,
        load=lambda number: cell.load((seed * 1000 + number) % 2**32, STRETCH_S),
        state=machine.start(policy, weights, rules, BEGIN_WALL_S),
        rules=rules,
        rehearse=rehearse,
        stop=lambda _: False,
        seed=seed,
    )


def nothing(
    state: State,  # noqa: ARG001 - one shape
    now_wall_s: float,
    requests: Sequence[TraceRequest],  # noqa: ARG001 - one shape
) -> Proposed | NothingBetter:
    """A tuner that never looks for anything."""
    return NothingBetter(now_wall_s, "not looked for")


def until(longer: Life, shorter: Life) -> Callable[[State], bool]:
    """Whether the one has met every request that the other has."""
    last_s = max(sample.dispatched_wall_s for sample in longer.samples)
    return lambda _: bool(shorter.samples) and shorter.samples[-1].dispatched_wall_s >= last_s


def hours_of(world: Life) -> float:
    """How long it was."""
    return (world.samples[-1].dispatched_wall_s - BEGIN_WALL_S) / 3600.0


def told(world: Life) -> Figures:
    """Where it went."""
    moves = [note for note in world.notes if note.before != note.after]
    return {
        "requests": len(world.samples),
        "phases": [note.before for note in moves],
        "reason": moves[-1].reason if moves else world.state.reason,
        "phase": world.state.phase,
        "pairs": max((len(pieces) for (_, s), pieces in world.evidence.items() if "switch" in s), default=0),
    }


def _ratio(a: Sequence[Sample], b: Sequence[Sample]) -> dict[str, float]:
    last_s = min(max(sample.dispatched_wall_s for sample in part) for part in (a, b))
    out = {}
    for name in ("ttft_ms", "e2e_ms"):
        ours, theirs = (
            percentile([getattr(s, name) for s in part if s.answered and s.dispatched_wall_s <= last_s], 95)
            for part in (a, b)
        )
        out[name] = ours / theirs
    return out
