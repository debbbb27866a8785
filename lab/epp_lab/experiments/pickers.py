"""Count what several pickers do to one load: a burst of one prefix, and a pool of a thousand endpoints.

Requests of a burst are decided at one moment of virtual time, before any message of another picker can come;
spread, they take as long as four pickers need to decide them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from epp_lab.bench.peers import burst
from epp_lab.compare.fleets import fleet_named
from epp_lab.compare.measure import figures, from_window
from epp_lab.compare.plan import Source
from epp_lab.experiment import Experiment
from epp_lab.sim.run import run_window
from epp_lab.sim.scenario import PickerOptions, WindowOptions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from epp_lab.compare.trace import TraceRequest

#: Policy, endpoints, and milliseconds over which a burst is spread; None for agents' calls instead.
CELLS: Mapping[str, tuple[str, int, float | None]] = {
    "256 at once / gorgo-ms": ("gorgo-ms", 8, 0.0),
    "256 at once / gorgo": ("gorgo", 8, 0.0),
    "256 in 20 ms / gorgo-ms": ("gorgo-ms", 8, 20.0),
    "256 in 20 ms / gorgo": ("gorgo", 8, 20.0),
    "1000 endpoints": ("gorgo-ms", 1000, None),
}
ENTRIES: Mapping[str, PickerOptions] = {
    "1 picker": PickerOptions(),
    "4": PickerOptions(4),
    "4 late": PickerOptions(4, delay_ms=5.0),
    "4 alone": PickerOptions(4, share="none"),
    "64": PickerOptions(64),
}
MEASURES = (
    *("hottest / mean", "TTFT p95 ms", "E2E p95 ms", "hit share"),
    *("messages / request", "bytes / request"),
)
#: Nine minutes of calls for seven replicas come in four seconds.
_CALLS, _TIMES = Source(workload="toolagent-like", until_s=560.0), 140.0


def load(seed: int, spread_ms: float | None) -> Sequence[TraceRequest]:
    """Make a cell's requests."""
    if spread_ms is None:
        return [replace(one, at_ms=one.at_ms / _TIMES) for one in _CALLS.requests(seed)]
    return [replace(one, at_ms=one.at_ms + spread_ms * at / 256) for at, one in enumerate(burst(seed))]


def run(cell: str, entry: str, seed: int) -> dict[str, float]:
    """Run one load; its first sixth, which is the first request of a burst, does not count."""
    policy, endpoints, spread_ms = CELLS[cell]
    requests, options = load(seed, spread_ms), WindowOptions(pickers=ENTRIES[entry])
    result = run_window(requests, fleet_named(f"l40s-x2@2*{endpoints}"), policy, seed=seed, options=options)
    counted = np.array([one.at_ms >= requests[-1].at_ms / 6 for one in requests])
    found = figures(from_window(result, len(requests)), requests, counted, pace=1.0)
    values = found.hottest_share * endpoints, found.ttft_ms.p95, found.e2e_ms.p95, found.true_hit_share
    return dict(zip(MEASURES, (*values, *(np.array(result.messages) / len(requests))), strict=True))


EXPERIMENT = Experiment(
    question="Do several pickers herd where one does not, and what do they send each other?",
    cells=CELLS,
    entries=ENTRIES,
    run=run,
    seeds=8,
    on_request=("1000 endpoints",),
    minutes=2,
)
