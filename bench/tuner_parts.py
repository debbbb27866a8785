"""What is measured of the tuner, one function a measurement: values in, a plain mapping of figures out.

Owns the measurements. Loads are generated chat at its own time, fleets the published regions; a measurement
is a function of its arguments. Windows that a measurement judges on have seeds of their own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from epp.demo.tuner import Rehearsals, chat, defaults_of, rules_of
from epp.demo.tuner_world import BEGIN_WALL_S, Life, Stretch
from epp.draw import draw
from epp.replay.stats import percentile
from epp.sim.engine_class import L40S_X2
from epp.sim.run import run_window
from epp.sim.scenario import WindowOptions, regional_fleet
from epp.tuner import machine
from epp.tuner.es_paper import BOX, START, EsPaper
from epp.tuner.search import Search
from epp.tuner.state import NothingBetter, Proposed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from epp.replay.trace import TraceRequest
    from epp.tuner.samples import Sample
    from epp.tuner.state import State

Figures = dict[str, Any]

FLEET = regional_fleet(L40S_X2)
OPEN = WindowOptions(closed_loop=False)
#: Requests a second of the published window, and of a load that one replica can carry.
RATE_RPS, LIGHT_RPS = 4.2, 1.4
#: A box in which the queue can be left out, and the start of the published run that did without it.
FREE_BOX = {"rtt_weight": (0.05, 50.0), "queue_weight": (1e-4, 5.0)}
FREE_START = {"rtt_weight": 0.5, "queue_weight": 1e-4}
#: Everything to the nearest, as far as the hard bounds let it.
FREE_RIDER = {
    "network_weight": 4.0,
    "prefill_weight": 1.0,
    "waiting_weight": 0.5,
    "stall_weight": 0.05,
    "decode_weight": 0.2,
}
#: Weights that do at a light load, and herd at a heavy one.
LIGHT_WEIGHTS = {**FREE_RIDER, "network_weight": 2.0, "decode_weight": 0.2}
#: Seeds of loads that nothing is searched or tried on.
HELD_OUT, SEARCHED_ON = 900_000, 700_000
_BIN_S = 600.0
_CALM_S = 3600.0
_WORSE = 1.05
_FACTOR = 6.0


# ---- the published search -----------------------------------------------------------------------------


@dataclass(slots=True)
class _Follower:
    """Feeds the published search and puts in force what it says."""

    search: EsPaper
    stretch: Stretch | None = None
    samples: list[Sample] = field(default_factory=list)

    def answered(self, sample: Sample) -> None:
        """Failed requests vanish, as published."""
        if sample.answered and self.search.tell(sample.ttft_ms) and self.stretch is not None:
            self.stretch.override(self.search.weights)

    def look(self, now_wall_s: float) -> None:
        """It looks at nothing but answers."""


def es_paper(seed: int, *, free: bool, duration_s: float, window: int = 128) -> Figures:
    """The published search on its window; ``free`` begins without a price of the queue, at a light load."""
    rate_rps = LIGHT_RPS if free else RATE_RPS
    start, box = (FREE_START, FREE_BOX) if free else (START, BOX)
    search = EsPaper(seed=seed, window=window, start=dict(start), box=dict(box))
    follower = _Follower(search)
    load = chat(SEARCHED_ON, rate_rps=rate_rps, duration_s=duration_s)
    stretch = Stretch(load, FLEET, "gorgo", {}, seed=0, observer=follower, options=OPEN)
    follower.stretch = stretch
    stretch.override(search.weights)
    stretch.loop.run(lambda: stretch.busy and not search.stopped)
    out: Figures = {
        "weights": search.best,
        "stopped": search.stopped,
        "sigma": search.sigma,
        "history": search.history,
    }
    if free:
        held = chat(HELD_OUT, rate_rps=rate_rps, duration_s=_BIN_S)
        out["found"] = judged(held, "gorgo", search.best)
        out["default"] = judged(held, "gorgo", {})
        out["herd"] = judged(held, "gorgo", {"rtt_weight": 50.0, "queue_weight": 1e-4})
    return out


def judged(load: Sequence[TraceRequest], policy: str, weights: Mapping[str, float]) -> Figures:
    """A window under frozen weights: p95s, failures, and the share of the hottest replica."""
    results = run_window(load, FLEET, policy, weights, seed=7, options=OPEN).requests
    ok = [r for r in results if r.ok]
    served = [r.endpoint for r in ok]
    return {
        "ttft_p95_ms": percentile([r.ttft_ms for r in ok if r.ttft_ms is not None], 95),
        "e2e_p95_ms": percentile([r.e2e_ms for r in ok], 95),
        "failed": len(results) - len(ok),
        "hottest": max(served.count(name) for name in set(served)) / len(served),
    }


# ---- lives --------------------------------------------------------------------------------------------


def free_rider(seed: int, *, hours: float) -> Figures:
    """A candidate that herds to the nearest, proposed to a tuner that holds good weights."""

    def propose(
        state: State,  # noqa: ARG001 - one shape
        now_wall_s: float,
        requests: Sequence[TraceRequest],  # noqa: ARG001 - one shape
    ) -> Proposed | NothingBetter:
        return Proposed(now_wall_s, FREE_RIDER, "herds to the nearest")

    world = _life("gorgo-ms", defaults_of("gorgo-ms"), seed, propose, rate_rps=LIGHT_RPS)
    world.stop = _first_trial_over
    world.run(stretches=max(1, round(hours)))
    return {**_told(world), "promoted": world.state.promotions > 0, "hours": _hours(world)}


def tuning_run(policy: str, seed: int, *, hours: float, windows: int, budget: int, patience: int) -> Figures:
    """From weights that are off: rehearsal, trial, and what came of it on windows held out.

    Ends with a promotion, or after so many candidates or rehearsals in vain as ``patience`` says.
    """
    start = perturbed(policy, seed)
    rehearsals = Rehearsals(policy, FLEET, rules_of(policy), seed=seed, budget=budget, recorded=3000)
    world = _life(policy, start, seed, rehearsals, rate_rps=LIGHT_RPS)
    world.stop = lambda state: state.promotions > 0 or state.fruitless >= patience
    world.run(stretches=max(1, round(hours)))
    end = world.state.incumbent
    loads = [chat(HELD_OUT + i, rate_rps=LIGHT_RPS, duration_s=_BIN_S) for i in range(windows)]
    gain = gains(policy, loads, start, end)
    best = gains(policy, loads, start, optimum(policy, budget))
    cost = exploring(world, policy, start, seed)
    out = {**_told(world), "promoted": world.state.promotions > 0, "hours": _hours(world), "start": start}
    proposal = rehearsals.refused[0] if rehearsals.refused else start
    rehearsed = gains(policy, loads, start, proposal)
    return {**out, "end": end, "gain": gain, "attainable": best, "rehearsed": rehearsed, "cost": cost}


def perturbed(policy: str, seed: int) -> dict[str, float]:
    """`gorgo`'s published weights as they are; any other policy's defaults, each off by up to 6 times."""
    weights = defaults_of(policy)
    if policy == "gorgo":
        return weights
    bounds = rules_of(policy).bounds
    out = {}
    for name, value in weights.items():
        moved = value * _FACTOR ** (2.0 * draw(seed, name, "perturbed") - 1.0)
        out[name] = min(max(moved, bounds[name][0]), bounds[name][1])
    return out


def optimum(policy: str, budget: int) -> dict[str, float]:
    """The best weights found on windows that nothing is judged on, from the defaults."""
    loads = [chat(SEARCHED_ON + i, rate_rps=LIGHT_RPS, duration_s=_BIN_S) for i in range(2)]
    search = Search(defaults_of(policy), rules_of(policy).bounds, seed=0)
    while not search.stop(budget=budget):
        found = judged(loads[search.told % len(loads)], policy, search.ask())
        search.tell((math.log(found["ttft_p95_ms"]) + math.log(found["e2e_p95_ms"])) / 2.0)
    return search.recommend()


def gains(
    policy: str,
    loads: Sequence[Sequence[TraceRequest]],
    before: Mapping[str, float],
    after: Mapping[str, float],
) -> dict[str, list[float]]:
    """Log-ratios of p95 after to before, window by window; below zero is better."""
    out: dict[str, list[float]] = {"ttft": [], "e2e": []}
    for load in loads:
        a, b = judged(load, policy, after), judged(load, policy, before)
        for name, logs in out.items():
            logs.append(math.log(a[f"{name}_p95_ms"] / b[f"{name}_p95_ms"]))
    return out


def exploring(world: Life, policy: str, start: Mapping[str, float], seed: int) -> dict[str, float]:
    """p95 of all requests of the trial over that of the same requests under the weights of the start."""
    calm = _life(policy, start, seed, _nothing, rate_rps=LIGHT_RPS)
    calm.stop = _until(world, calm)
    calm.run(stretches=100)
    return _ratio(world.samples, calm.samples)


def drift(seed: int, *, hours: float, budget: int) -> Figures:
    """Frozen on weights for a light load; then the load triples."""
    policy = "gorgo-ms"
    rehearsals = Rehearsals(policy, FLEET, rules_of(policy), seed=seed, budget=budget, recorded=3000)
    world = _drifting(dict(LIGHT_WEIGHTS), seed, rehearsals)
    world.state.phase = "frozen"
    world.stop = lambda state: state.promotions > 0
    world.run(stretches=1 + round(hours))
    best = _drifting(defaults_of(policy), seed, _nothing)
    best.stop = _until(world, best)
    best.run(stretches=100)
    began_s = _CALM_S
    thaw = next((n.at_wall_s for n in world.notes if "drift" in n.reason), math.nan)
    promoted = next((c.at_wall_s for c in world.state.history if c.how == "promoted"), math.nan)
    after = [s for s in world.samples if s.dispatched_wall_s - BEGIN_WALL_S >= began_s]
    ours, theirs = _bins(after), _bins(best.samples)
    worse = sum(ours[place] > _WORSE * theirs[place] for place in ours if place in theirs)
    return {
        **_told(world),
        "thawed_h": (thaw - BEGIN_WALL_S - began_s) / 3600.0,
        "promoted_h": (promoted - BEGIN_WALL_S - began_s) / 3600.0,
        "worse_h": worse * _BIN_S / 3600.0,
        "observed_h": len(ours) * _BIN_S / 3600.0,
        "end": world.state.incumbent,
        "held_out": gains(
            policy,
            [chat(HELD_OUT + i, rate_rps=3.0 * LIGHT_RPS, duration_s=_BIN_S) for i in range(2)],
            defaults_of(policy),
            world.state.incumbent,
        ),
    }


def _drifting(weights: Mapping[str, float], seed: int, rehearse: Any) -> Life:
    world = _life("gorgo-ms", weights, seed, rehearse, rate_rps=LIGHT_RPS)

    def load(number: int) -> tuple[TraceRequest, ...]:
        rate_rps = LIGHT_RPS if number * 3600.0 < _CALM_S else 3.0 * LIGHT_RPS
        return chat(seed * 1000 + number, rate_rps=rate_rps, duration_s=3600.0)

    world.load = load
    return world


def _life(policy: str, weights: Mapping[str, float], seed: int, rehearse: Any, *, rate_rps: float) -> Life:
    rules = rules_of(policy)
    return Life(
        policy=policy,
        fleet=FLEET,
        load=lambda number: chat(seed * 1000 + number, rate_rps=rate_rps, duration_s=3600.0),
        state=machine.start(policy, weights, rules, BEGIN_WALL_S),
        rules=rules,
        rehearse=rehearse,
        stop=lambda _: False,
        seed=seed,
    )


def _nothing(
    state: State,  # noqa: ARG001 - one shape
    now_wall_s: float,
    requests: Sequence[TraceRequest],  # noqa: ARG001 - one shape
) -> NothingBetter:
    return NothingBetter(now_wall_s, "not looked for")


def _until(longer: Life, shorter: Life) -> Callable[[State], bool]:
    """Whether the one has met every request that the other has."""
    last_s = max(sample.dispatched_wall_s for sample in longer.samples)
    return lambda _: bool(shorter.samples) and shorter.samples[-1].dispatched_wall_s >= last_s


def _first_trial_over(state: State) -> bool:
    """Promoted, ended, or nothing worth a trial."""
    return state.promotions > 0 or state.fruitless > 0


def _hours(world: Life) -> float:
    return (world.samples[-1].dispatched_wall_s - BEGIN_WALL_S) / 3600.0


def _told(world: Life) -> Figures:
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


def _bins(samples: Sequence[Sample]) -> dict[int, float]:
    """Geometric mean of TTFT and E2E p95 by stretches of ten minutes."""
    rows: dict[int, list[Sample]] = {}
    for sample in samples:
        if sample.answered:
            rows.setdefault(int((sample.dispatched_wall_s - BEGIN_WALL_S) // _BIN_S), []).append(sample)
    return {
        place: math.sqrt(percentile([s.ttft_ms for s in row], 95) * percentile([s.e2e_ms for s in row], 95))
        for place, row in rows.items()
    }
