"""The loads and fleets that the tuner is measured on, and windows of them that nothing was searched on."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from epp.keyed_uniform import keyed_uniform
from epp.lab.compare.stats import percentile
from epp.lab.sim.engine_class import L40S_X2
from epp.lab.sim.run import run_window
from epp.lab.sim.scenario import parse_fleet, regional_fleet
from epp.lab.tuner_life import BEGIN_WALL_S, OPEN, Life, defaults_of, rules_of
from epp.lab.workloads.art_chat import APR_5, APR_7, ArtChat, generate
from epp.lab.workloads.content import Lognormal
from epp.learn.tuner import machine

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from epp.lab.compare.trace import TraceRequest
    from epp.lab.sim.results import SimResult
    from epp.lab.sim.scenario import FleetSpec
    from epp.lab.tuner_life import Rehearsing

#: Seeds of loads that nothing is searched or tried on, and of those that only an optimum is searched on.
HELD_OUT_SEED, SEARCHED_SEED = 900_000, 700_000
STRETCH_S, WINDOW_S = 3600.0, 600.0
#: Loads held out, and requests of each after as many that warm the fleet.
LOADS_HELD_OUT, HELD_OUT_REQUESTS = 30, 420
#: Weights to start from are off by up to this factor.
_OFF = 6.0


@dataclass(frozen=True, slots=True)
class Cell:
    """A load on a fleet.

    Attributes:
        fleet: its replicas.
        traffic: recipe of the load.
        rate_rps: requests a second.
    """

    fleet: FleetSpec
    traffic: ArtChat
    rate_rps: float

    def load(self, seed: int, duration_s: float) -> tuple[TraceRequest, ...]:
        """Return the requests of a seed, sent at their own time."""
        recipe = replace(self.traffic, duration_s=duration_s, rate_rps=self.rate_rps)
        return tuple(replace(request, after=None) for request in generate(recipe, seed))


#: Prompts of a few hundred tokens, as of a chat that begins anew each time.
SHORT = replace(
    APR_5,
    prompt_tokens=Lognormal(900.0, 3_500.0, 1.6449),
    message_tokens=Lognormal(120.0, 600.0, 1.2816),
    max_prompt_tokens=8_000,
)
REGIONS = regional_fleet(L40S_X2)
_FLEETS = {
    "three regions": REGIONS,
    "mixed engines": parse_fleet("l40s-x2@20,h100@102,l40s-x2@211"),
    "one region": parse_fleet("l40s-x2@20*3"),
}
#: One replica could nearly carry 1.4 requests a second of chat alone, and not 2.8.
_LOADS = {
    "chat": (APR_5, 1.4),
    "busy chat": (APR_5, 2.8),
    "long conversations": (APR_7, 1.4),
    "short prompts": (SHORT, 2.8),
}
CELLS = {
    f"{load} / {name}": Cell(fleet, traffic, rate_rps)
    for load, (traffic, rate_rps) in _LOADS.items()
    for name, fleet in _FLEETS.items()
}
HOME = CELLS["chat / three regions"]


def life(cell: Cell, policy: str, weights: Mapping[str, float], seed: int, rehearse: Rehearsing) -> Life:
    """Return a tuner in a cell, with weights in force."""
    rules = rules_of(policy)
    return Life(
        policy=policy,
        fleet=lambda _: cell.fleet,
        load=lambda number: cell.load((seed * 1000 + number) % 2**32, STRETCH_S),
        state=machine.start(policy, weights, rules, BEGIN_WALL_S),
        rules=rules,
        rehearse=rehearse,
        seed=seed,
    )


def weights_off(policy: str, seed: int) -> dict[str, float]:
    """Return `gorgo`'s published weights as they are, any other policy's defaults each off by a factor."""
    weights = defaults_of(policy)
    if policy == "gorgo":
        return weights
    bounds = rules_of(policy).bounds
    off = {name: _OFF ** (2.0 * keyed_uniform(seed, name, "perturbed") - 1.0) for name in weights}
    return {
        name: min(max(value * off[name], bounds[name][0]), bounds[name][1]) for name, value in weights.items()
    }


def held_out(cell: Cell, policy: str, weights: Mapping[str, float]) -> dict[str, float]:
    """Measure weights on loads that nothing was searched on: geometric means of the loads' p95.

    What is sent in a load's first window warms the fleet, and does not count.
    """
    windows: list[dict[str, float]] = []
    window_s = HELD_OUT_REQUESTS / cell.rate_rps
    for number in range(LOADS_HELD_OUT):
        load = cell.load(HELD_OUT_SEED + number, 2 * window_s)
        results = run_window(load, cell.fleet, policy, weights, seed=7, options=OPEN).requests
        windows.append(p95s([result for result in results if load[result.index].at_ms >= window_s * 1e3]))
    return {name: geometric_mean([window[name] for window in windows]) for name in windows[0]}


def p95s(results: Sequence[SimResult]) -> dict[str, float]:
    """Return p95 of TTFT and E2E of the requests that ended well."""
    ok = [result for result in results if result.ok]
    return {
        "ttft_p95_ms": percentile([r.ttft_ms for r in ok if r.ttft_ms is not None], 95),
        "e2e_p95_ms": percentile([r.e2e_ms for r in ok], 95),
    }


def geometric_mean(values: Sequence[float]) -> float:
    """Return the geometric mean."""
    return math.exp(sum(math.log(value) for value in values) / len(values))
