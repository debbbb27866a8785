"""Measure what engines' events of their KV caches give beside the estimate, on the simulated engines.

What counts are requests that our picker decides, past the warm-up. Precision is of the tokens that it
expected to be cached, recall of those that were.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from epp_lab import conditions
from epp_lab.compare.measure import figures, from_window
from epp_lab.compare.plan import PlanCell, Source
from epp_lab.conditions import SEED
from epp_lab.experiment import Experiment
from epp_lab.sim.engine_class import L40S_X2
from epp_lab.sim.pickers import comes_past
from epp_lab.sim.run import run_window
from epp_lab.sim.scenario import (
    LOSSY,
    Event,
    EventOptions,
    FleetSpec,
    Happening,
    PickerOptions,
    WindowOptions,
    parse_fleet,
)
from epp_lab.workloads.registry import PUBLISHED_IN_FLIGHT

if TYPE_CHECKING:
    from collections.abc import Mapping

REPLICAS = 4
ESTIMATE, FUSED = "estimate alone", "with events"


@dataclass(frozen=True)
class Condition:
    """A load and four engines.

    Attributes:
        cache_tokens: that each engine's cache holds.
        workload: of 600 s.
        state_slots: of a hybrid model's engines, None of others.
        each_minute: what happens to one engine after the other, each second after the one before it.
        pickers: who else there is.
        events: how they come.
    """

    cache_tokens: int = 100_000
    workload: str = "art-chat"
    state_slots: int | None = None
    each_minute: tuple[Happening, ...] = ()
    pickers: PickerOptions = PickerOptions()  # noqa: RUF009  # frozen
    events: EventOptions = EventOptions()  # noqa: RUF009  # frozen

    @property
    def fleet(self) -> FleetSpec:
        """The engines, and what happens to them."""
        cls = replace(
            L40S_X2,
            kv_capacity_tokens=self.cache_tokens,
            state_slots=self.state_slots,
            states_at_blocks=True,
        )
        fleet = parse_fleet(f"l40s-x2@2*{REPLICAS}")
        happens = tuple(
            Event(60.0 * minute + second, fleet.replicas[minute % REPLICAS].address, what)
            for minute in range(1, int(conditions.WINDOW_S // 60))
            for second, what in enumerate(self.each_minute)
        )
        replicas = (replace(one, engine_class=cls) for one in fleet.replicas)
        return FleetSpec(tuple(replicas), happens)


CELLS: Mapping[str, Condition] = {
    "cache of 100k": Condition(),
    "cache of 50k": Condition(50_000),
    "30 % come past us": Condition(pickers=PickerOptions(past=0.3)),
    "a restart each minute": Condition(each_minute=(Happening.DIE, Happening.REVIVE)),
    "a clear each minute": Condition(each_minute=(Happening.CLEAR,)),
    "mooncake-chat": Condition(200_000, "mooncake-chat"),
    "a tenth lost, no replay": Condition(50_000, events=LOSSY),
    "a tenth lost, replays": Condition(50_000, events=EventOptions(loss=0.1)),
    "hybrid": Condition(state_slots=225),
    "5 s late": Condition(50_000, events=EventOptions(delay_ms=5_000.0)),
    "two pickers that share nothing": Condition(pickers=PickerOptions(2, share="none")),
}
MEASURES = ("TTFT p50 ms", "TTFT p95 ms", "E2E p95 ms", "precision", "recall")


def run(cell: str, entry: str, seed: int) -> dict[str, float]:
    """Run one load with events or without."""
    seed, condition = seed + SEED, CELLS[cell]
    plan = PlanCell(cell, Source(workload=condition.workload, until_s=conditions.WINDOW_S))
    requests = plan.source.requests(seed)
    options = WindowOptions(
        max_in_flight=PUBLISHED_IN_FLIGHT,
        pickers=condition.pickers,
        events=condition.events if entry == FUSED else None,
    )
    result = run_window(requests, condition.fleet, "gorgo-ms", seed=seed, options=options)
    warmup_ms = plan.warmup(requests) * 1e3
    counted = np.array(
        [
            one.at_ms >= warmup_ms and not comes_past(condition.pickers, seed, f"r{index}")
            for index, one in enumerate(requests)
        ]
    )
    found = figures(from_window(result, len(requests)), requests, counted, pace=1.0)
    answered = [one for one in result.requests if not one.error and counted[one.index]]
    tokens = np.array([(one.believed_cached_tokens, one.cached_tokens) for one in answered])
    right, (expected, cached) = tokens.min(axis=1).sum(), tokens.sum(axis=0)
    latencies = found.ttft_ms.p50, found.ttft_ms.p95, found.e2e_ms.p95
    return dict(zip(MEASURES, (*latencies, right / expected, right / cached), strict=True))


EXPERIMENT = Experiment(
    question="What do engines' events of their KV caches give beside the picker's own estimate?",
    cells=CELLS,
    entries=(ESTIMATE, FUSED),
    run=run,
    seeds=20,
    minutes=14,
    ranges=("precision", "recall"),
    on_request=("5 s late", "two pickers that share nothing"),
)
