"""The guard over the whole fleet on queues: harmless trials that it ends, and how soon it ends harm.

Owns a queue that is cheap enough for hundreds of trials: servers that take requests in order, lognormal
service, arrivals that swing over hours and come in bursts of minutes. A trial here changes nothing, or makes
all requests dearer, whichever arm serves. The guard is the production one; nothing else is judged.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from epp.tuner import watch
from epp.tuner.histogram import count, quantile
from epp.tuner.samples import Sample, Stamp
from epp.tuner.settings import TunerSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bench.tuner_runs import Figures

_SERVERS, _SERVICE_S, _SPREAD = 7, 2.0, 0.8
_PERIOD_S, _BURST_S, _LATE_S = 7200.0, 30.0, 75.0
_TRIAL_S = 2.0 * 3600.0


@dataclass(frozen=True, slots=True)
class Load:
    """Arrivals.

    Attributes:
        share: of what the servers can do, in the mean.
        swing: of the rate over two hours, as a part of it.
        burst: standard deviation of the rate's logarithm from minute to minute.
    """

    share: float
    swing: float
    burst: float


LOADS: Mapping[str, Load] = {
    "steady": Load(0.75, 0.0, 0.1),
    "swings by 35 %": Load(0.6, 0.35, 0.1),
    "bursts": Load(0.6, 0.0, 0.3),
    "swings and bursts into overload": Load(0.75, 0.3, 0.3),
}


def guarded(load: str, seed: int, *, baseline_s: float, harm: float) -> Figures:
    """One trial of two hours.

    Args:
        load: name among `LOADS`.
        seed: of everything.
        baseline_s: time before the trial.
        harm: factor by which requests are dearer during it; 1 for a trial without harm.
    """
    settings, block_s = TunerSettings(), TunerSettings().stages.block_s
    rows = _lived(LOADS[load], seed, baseline_s, harm)
    before: dict[int, int] = {}
    for at_s, ttft_ms in rows:
        if at_s < baseline_s:
            count(before, ttft_ms)
    slow_ms, fleet, on_trial, upcoming_s = (
        quantile(before, settings.goal.quantile),
        watch.Watch(),
        False,
        block_s,
    )
    ended_s: float | None = None
    for at_s, ttft_ms in rows:
        while at_s > upcoming_s + _LATE_S and ended_s is None:
            now_s = upcoming_s + _LATE_S
            upcoming_s += block_s
            if now_s > baseline_s and not on_trial:
                fleet, on_trial = watch.begin(fleet), True
            watch.close(fleet, settings, now_s, late_s=_LATE_S, slow_ms=slow_ms if on_trial else None)
            if on_trial and watch.harmed(fleet, settings):
                ended_s = now_s - baseline_s
        if ended_s is not None:
            break
        watch.enter(fleet, _sample(at_s, ttft_ms, tried=at_s >= baseline_s), settings)
    return {
        "load": load,
        "baseline_s": baseline_s,
        "harm": harm,
        "ended_s": ended_s,
        "passed_over": fleet.alone / max(1, fleet.alone + fleet.blocks),
    }


def _lived(load: Load, seed: int, baseline_s: float, harm: float) -> list[tuple[float, float]]:
    """Times of arrival and TTFT."""
    rng = np.random.default_rng(seed)
    begin, level, upcoming_s, now_s = float(rng.random()) * 2.0 * math.pi, 0.0, 0.0, 0.0
    free, rows = [0.0] * _SERVERS, []
    mean_rate = _SERVERS / _SERVICE_S * load.share
    while now_s < baseline_s + _TRIAL_S:
        if now_s >= upcoming_s:
            level, upcoming_s = 0.8 * level + 0.6 * load.burst * float(rng.normal()), now_s + _BURST_S
        swing = 1.0 + load.swing * math.sin(2.0 * math.pi * now_s / _PERIOD_S + begin)
        now_s += float(rng.exponential(1.0 / (mean_rate * swing * math.exp(level - load.burst**2 / 2.0))))
        service_s = _SERVICE_S * math.exp(_SPREAD * float(rng.normal()) - _SPREAD**2 / 2.0)
        start_s = max(now_s, heapq.heappop(free))
        heapq.heappush(free, start_s + service_s * (harm if now_s >= baseline_s else 1.0))
        rows.append((now_s, (start_s - now_s) * 1e3 + 100.0 * math.exp(0.4 * float(rng.normal()))))
    return rows


def _sample(at_s: float, ttft_ms: float, *, tried: bool) -> Sample:
    return Sample(
        id="",
        stamp=Stamp("c1", "incumbent", 0) if tried else None,
        weights_version="",
        dispatched_wall_s=at_s,
        ended_wall_s=at_s,
        endpoint="a",
        session="",
        prompt_tokens=1000,
        ttft_ms=ttft_ms,
        e2e_ms=ttft_ms,
        failed=False,
    )
