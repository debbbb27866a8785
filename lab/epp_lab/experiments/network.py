"""Measure what each term of `gorgo` is worth by distance, on round trips that stay and that change.

Three L40Sx2 stand as far apart as the blog's regions (source [G]): 37, 279 and 456 ms there, in proportion
here, so a fleet is known by its farthest round trip. Where they change, the farthest has two peaks of 100 s
at 23/12 of its mean, as the blog's Seoul: 23 local round trips where the mean is 12.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from epp_lab.compare.simulate import PolicyChoice, run_task
from epp_lab.conditions import SEED, WINDOW_S, Load
from epp_lab.experiment import Experiment
from epp_lab.sim.scenario import Event, FleetSpec, Happening, parse_fleet

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Chat that fills the calibrated fleet, chat that does not, and short prompts of strangers.
LOADS = {
    "busy": Load("art-chat", 1.0, calibrated=True),
    "light": Load("art-chat-apr-7", 3.0, calibrated=True),
    "short prompts": Load("wild-chat", 6.0),
}
FARTHEST_MS = (2, 20, 100, 200)
#: Round trips by region as shares of the farthest.
_SHARES = (37 / 456, 279 / 456, 1.0)
_PEAK, _PEAK_S, _PEAKS_AT_S = 23 / 12, 100.0, (0.25 * WINDOW_S, 0.65 * WINDOW_S)
_OFF_PEAK = (WINDOW_S - _PEAK * len(_PEAKS_AT_S) * _PEAK_S) / (WINDOW_S - len(_PEAKS_AT_S) * _PEAK_S)

ENTRIES: Mapping[str, PolicyChoice] = {
    "gorgo": PolicyChoice("gorgo"),
    **{
        f"network weight {weight:g}": PolicyChoice("gorgo", {"rtt_weight": weight})
        for weight in (0.0, 10.7, 30.0)  # 10.7 tokens a ms is GORGO v1's prefill rate
    },
    "no prefill term": PolicyChoice("gorgo", {"prefill_weight": 0.0}),
    "no queue term": PolicyChoice("gorgo", {"queue_weight": 0.0}),
    "gorgo-ms": PolicyChoice("gorgo-ms"),
    "gorgo-ms, no network term": PolicyChoice("gorgo-ms", {"network_weight": 0.0}),
}


def fleet_of(farthest_ms: float, *, changing: bool) -> FleetSpec:
    """Return three replicas in the blog's proportions."""
    fleet = parse_fleet(",".join(f"l40s-x2@{share * farthest_ms:.3f}" for share in _SHARES))
    far = fleet.replicas[-1].address
    factors = {0.0: _OFF_PEAK}
    for at_s in _PEAKS_AT_S:
        factors |= {at_s: _PEAK, at_s + _PEAK_S: _OFF_PEAK}
    events = tuple(Event(at_s, far, Happening.REROUTE, factor) for at_s, factor in factors.items())
    return replace(fleet, events=events) if changing else fleet


def run(cell: str, entry: str, seed: int) -> dict[str, float]:
    """Run one choice of weights on one load and fleet."""
    name, farthest, change = cell.split(" / ")
    load, fleet = LOADS[name], fleet_of(float(farthest.split()[0]), changing=change == "changing")
    sent, fleet = load.on(cell, fleet)
    figures = run_task(sent, fleet, ENTRIES[entry], SEED + seed).figures
    return {
        "TTFT p50 ms": figures.ttft_ms.p50,
        "TTFT p95 ms": figures.ttft_ms.p95,
        "E2E p95 s": figures.e2e_ms.p95 / 1e3,
        "nearest share": figures.share[0],
    }


EXPERIMENT = Experiment(
    question="What is each term of gorgo worth by distance, and which weight fits the network?",
    cells=tuple(
        f"{load} / {farthest_ms} ms / {change}"
        for load in LOADS
        for change, distances in (("steady", FARTHEST_MS[-1:]), ("changing", FARTHEST_MS))
        for farthest_ms in distances
    ),
    entries=ENTRIES,
    run=run,
    seeds=6,
    minutes=10,
)
