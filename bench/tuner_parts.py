"""What must not work, measured: the published search on its window, and a candidate that herds.

Owns these measurements; one function each, values in, a plain mapping of figures out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bench.tuner_cells import HOME, LIGHT_RPS, REGIONS
from bench.tuner_runs import BIN_S, HELD_OUT, OPEN, SEARCHED_ON, hours_of, life, told
from epp.demo.tuner import chat, defaults_of
from epp.demo.tuner_world import Stretch
from epp.replay.stats import percentile
from epp.sim.run import run_window
from epp.tuner.es_paper import BOX, START, EsPaper
from epp.tuner.state import NothingBetter, Proposed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bench.tuner_runs import Figures
    from epp.replay.trace import TraceRequest
    from epp.tuner.samples import Sample
    from epp.tuner.state import State

#: Requests a second of the published window.
RATE_RPS = 4.2
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
    stretch = Stretch(load, REGIONS, "gorgo", {}, seed=0, observer=follower, options=OPEN)
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
        held = chat(HELD_OUT, rate_rps=rate_rps, duration_s=BIN_S)
        out["found"] = judged(held, "gorgo", search.best)
        out["default"] = judged(held, "gorgo", {})
        out["herd"] = judged(held, "gorgo", {"rtt_weight": 50.0, "queue_weight": 1e-4})
    return out


def judged(load: Sequence[TraceRequest], policy: str, weights: Mapping[str, float]) -> Figures:
    """A window under frozen weights: p95s, failures, and the share of the hottest replica."""
    results = run_window(load, REGIONS, policy, weights, seed=7, options=OPEN).requests
    ok = [r for r in results if r.ok]
    served = [r.endpoint for r in ok]
    return {
        "ttft_p95_ms": percentile([r.ttft_ms for r in ok if r.ttft_ms is not None], 95),
        "e2e_p95_ms": percentile([r.e2e_ms for r in ok], 95),
        "failed": len(results) - len(ok),
        "hottest": max(served.count(name) for name in set(served)) / len(served),
    }


# ---- a candidate that herds ----------------------------------------------------------------------------


def free_rider(seed: int, *, hours: float) -> Figures:
    """A candidate that herds to the nearest, proposed to a tuner that holds good weights."""

    def propose(
        state: State,  # noqa: ARG001 - one shape
        now_wall_s: float,
        requests: Sequence[TraceRequest],  # noqa: ARG001 - one shape
    ) -> Proposed | NothingBetter:
        return Proposed(now_wall_s, FREE_RIDER, "herds to the nearest")

    world = life(HOME, "gorgo-ms", defaults_of("gorgo-ms"), seed, propose)
    world.stop = _first_trial_over
    world.run(stretches=max(1, round(hours)))
    return {**told(world), "promoted": world.state.promotions > 0, "hours": hours_of(world)}


def _first_trial_over(state: State) -> bool:
    """Promoted, ended, or nothing worth a trial."""
    return state.promotions > 0 or state.fruitless > 0
