"""Many switchbacks from few simulations: the judgement played on blocks that were simulated once.

Owns a pool of blocks for each set of weights in a cell, and trials that draw pairs from two pools: the same
tallies, thresholds, tests and levels as in a live trial, on a world whose truth is known exactly, because it
is the pools themselves. Any weights are tried on any others, harmful ones too, which no rehearsal would have
proposed and no split has screened.

Rules
- All pools of a cell come from the same requests, network and draws.
- Pairs are drawn in runs of neighbours, so that what lasts for minutes stays together (stationary bootstrap).
- What a block inherits from the other arm's block before it is not in here; live, a quarter of each is
  dropped for that. How near a played trial is to a simulated one is for the other parts to tell.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from bench.tuner_cells import CELLS
from bench.tuner_parts import FREE_RIDER
from bench.tuner_runs import OPEN, perturbed
from epp.demo.tuner import defaults_of
from epp.keyed_uniform import keyed_uniform
from epp.replay.stats import percentile
from epp.sim.run import run_window
from epp.tuner.discoveries import level
from epp.tuner.record import Record, Unit
from epp.tuner.samples import Sample
from epp.tuner.settings import TunerSettings
from epp.tuner.tally import Baseline, Tally, add, differences, freeze, observe
from epp.tuner.trials import block_s
from epp.tuner.verdict import END, PASS, judge_switchback

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bench.tuner_runs import Figures
    from epp.sim.results import SimResult
    from epp.tuner.tally import Thresholds

POLICY = "gorgo-ms"
#: Requests before this have met a cold fleet.
_WARM_S = 300.0
_POOL_SEED = 800_000
#: Chance that a pair is not the neighbour of the one before.
_JUMP = 1.0 / 8.0
_LOOK_EVERY = 5

#: Spreads over the regions as if the network and caches cost nothing.
SPREADS = {
    "network_weight": 0.05,
    "prefill_weight": 1.0,
    "waiting_weight": 12.0,
    "stall_weight": 2.0,
    "decode_weight": 1.0,
}
#: Weights that are set against each other: good ones, everything to the nearest, spread whatever it costs,
#: and some that are off by chance.
WEIGHTS: Mapping[str, Mapping[str, float]] = {
    "defaults": defaults_of(POLICY),
    "herds": FREE_RIDER,
    "spreads": SPREADS,
    "off 1": perturbed(POLICY, 1),
    "off 2": perturbed(POLICY, 2),
}


@dataclass(frozen=True, slots=True)
class _Pool:
    """Requests of one set of weights, in order, with the time of their dispatch."""

    samples: Sequence[Sample]
    duration_s: float


@lru_cache(maxsize=12)
def _pool(place: str, weights: str, seed: int, duration_s: float) -> _Pool:
    cell = CELLS[place]
    load = cell.load(_POOL_SEED + seed, duration_s)
    found = run_window(load, cell.fleet, POLICY, WEIGHTS[weights], seed=seed, options=OPEN)
    samples = [_sample(result, load[result.index].at_ms / 1e3) for result in found.requests]
    return _Pool(sorted(samples, key=lambda sample: sample.dispatched_wall_s), duration_s)


def _sample(result: SimResult, at_s: float) -> Sample:
    return Sample(
        id=result.decision_id,
        stamp=None,
        weights_version="",
        dispatched_wall_s=at_s,
        ended_wall_s=at_s + result.e2e_ms / 1e3,
        endpoint=result.endpoint,
        session="",
        prompt_tokens=0,
        ttft_ms=math.nan if result.ttft_ms is None else result.ttft_ms,
        e2e_ms=result.e2e_ms,
        itl_ms=math.nan if result.itl_ms is None else result.itl_ms,
        answer_tokens=result.completion_tokens,
        failed=not result.ok,
    )


def played(place: str, incumbent: str, candidate: str, seed: int, *, pool_s: float) -> Figures:
    """One switchback of two sets of weights of `WEIGHTS`, from the first pair to its verdict."""
    settings = TunerSettings()
    old, new = (_pool(place, name, seed, pool_s) for name in (incumbent, candidate))
    baseline = Baseline()
    for sample in old.samples:
        baseline = observe(baseline, sample, settings.goal)
    thresholds = freeze(baseline, settings.goal, 0.0)
    assert thresholds is not None  # noqa: S101 - simulated fleets answer
    width_s = block_s(settings.stages, thresholds)
    blocks = [_blocks(pool, thresholds, settings, width_s) for pool in (old, new)]
    needed, record = level(settings.evidence.false_promotions, 1, 0), Record()
    verdict, place_now, pairs = None, 0, len(blocks[0]) // 2
    for number in range(settings.evidence.max_pairs):
        key = f"{place} {incumbent} {candidate} {number}"
        jump = number == 0 or keyed_uniform(seed, key, "jump") < _JUMP
        place_now = int(keyed_uniform(seed, key, "place") * pairs) if jump else (place_now + 1) % pairs
        first = int(keyed_uniform(seed, key, "order") < 0.5)
        a, b = blocks[0][2 * place_now + first], blocks[1][2 * place_now + 1 - first]
        record.units.append(Unit(**differences(b, a), requests=a.requests + b.requests))
        if number % _LOOK_EVERY == _LOOK_EVERY - 1:
            verdict = judge_switchback(record, settings, needed)
            if verdict.kind in (PASS, END):
                break
    slow = record.values("slow")
    mean = sum(slow) / len(slow)
    return {
        "cell": place,
        "incumbent": incumbent,
        "candidate": candidate,
        "promoted": verdict is not None and verdict.kind == PASS,
        "reason": verdict.reason if verdict is not None else "",
        "pairs": len(slow),
        "slow_mean": mean,
        "slow_sd": math.sqrt(sum((value - mean) ** 2 for value in slow) / max(1, len(slow) - 1)),
        "ttft": math.log(_p95(new, "ttft_ms") / _p95(old, "ttft_ms")),
        "e2e": math.log(_p95(new, "e2e_ms") / _p95(old, "e2e_ms")),
    }


def _blocks(pool: _Pool, thresholds: Thresholds, settings: TunerSettings, width_s: float) -> list[Tally]:
    """Counts by block, its first part dropped, from the warm fleet on."""
    out = [Tally() for _ in range(int((pool.duration_s - _WARM_S) // width_s))]
    for sample in pool.samples:
        at, within = divmod(sample.dispatched_wall_s - _WARM_S, width_s)
        if 0 <= at < len(out) and within >= settings.stages.drop_share * width_s:
            add(out[int(at)], sample, thresholds, settings.goal)
    return out


def _p95(pool: _Pool, fact: str) -> float:
    values = [getattr(s, fact) for s in pool.samples if s.answered and s.dispatched_wall_s >= _WARM_S]
    return percentile(values, 95)
