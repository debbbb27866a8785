"""Compare regions that forward to each other with regions that do not, and with one picker that sees all.

Three regions of three L40Sx2, 70, 140 and 211 ms apart; users are 2 ms from their region. A region's capacity
is what it completes where more is offered: 14.1 requests a second, `CAPACITY` times the chat's own rate, as
the cells `alone` show. The one picker hears of everything at once; its requests cross links as forwards do.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from epp_lab.compare.fleets import LINKS, THREE_REGIONS
from epp_lab.compare.measure import figures, from_window
from epp_lab.compare.plan import Source
from epp_lab.compare.simulate import PolicyChoice
from epp_lab.compare.stats import mean_interval
from epp_lab.experiment import Experiment
from epp_lab.sim.run import policy_named, run_window
from epp_lab.sim.scenario import PickerOptions, WindowOptions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from epp_lab.experiment import CellRun

#: As many times art-chat as one region completes.
CAPACITY = 3.4
#: Seconds of load, and of its beginning that do not count.
_WINDOW_S, _WARMUP_S = 300.0, 120.0
#: Of data that leaves a region, per GB.
_EGRESS_USD = 0.05

_HOT, _MILD, _COOL = 1.25, 0.6, 0.4
#: By cell: each region's load as a multiple of its capacity, in equal stretches of the window.
CELLS: Mapping[str, tuple[tuple[float, float, float], ...]] = {
    "one at 1.5, two at 0.5": ((1.5, 0.5, 0.5),),
    "all at 0.5": ((0.5, 0.5, 0.5),),
    "day and night": ((_HOT, _MILD, _COOL), (_COOL, _HOT, _MILD), (_MILD, _COOL, _HOT)),
    "alone at 0.9": ((0.9, 0.0, 0.0),),
    "alone at 1.1": ((1.1, 0.0, 0.0),),
    "alone at 1.5": ((1.5, 0.0, 0.0),),
}
ENTRIES: Mapping[str, PolicyChoice] = {
    "nearest": PolicyChoice("gorgo-ms", regions="nearest"),
    "local-first": PolicyChoice("local-first", regions="regions"),
    "gorgo-v1": PolicyChoice("gorgo-v1", regions="regions"),
    "global": PolicyChoice("gorgo-ms", regions="global"),
}
_RANGES = (
    *("forwarded", "refused", "egress MB/s", "egress USD / 1000", "summaries KB/s a pair"),
    *("offered 1/s", "completed 1/s"),
)
_LATENCIES = ("TTFT p50 ms", "TTFT p95 ms", "TTFT p99 ms", "E2E p95 s")


def run(cell: str, entry: str, seed: int) -> dict[str, float]:
    """Run one load; its first `_WARMUP_S` do not count."""
    rows, choice = CELLS[cell], ENTRIES[entry]
    rate = CAPACITY * float(np.mean([sum(row) for row in rows]))
    names = LINKS.names
    shares = tuple(dict(zip(names, row, strict=True)) for row in rows)
    fleet = replace(THREE_REGIONS, regions=replace(LINKS, shares=shares))
    requests = Source(workload="art-chat", rate=rate, until_s=_WINDOW_S).requests(seed)
    options = WindowOptions(pickers=PickerOptions(regions=choice.regions))
    result = run_window(requests, fleet, policy_named(choice.name), seed=seed, options=options)
    counted = np.array([one.at_ms >= _WARMUP_S * 1e3 for one in requests])
    found = figures(from_window(result, len(requests)), requests, counted, pace=1.0)
    shown = [one for one in result.requests if counted[one.index]]
    ends_ms = np.array([one.intended_ms + one.e2e_ms for one in result.requests])
    in_window = (ends_ms >= _WARMUP_S * 1e3) & (ends_ms < _WINDOW_S * 1e3)
    homes = {replica.address: replica.region for replica in fleet.replicas}
    egress, pairs = sum(result.egress.values()), len(names) * (len(names) - 1)
    return {
        "TTFT p50 ms": found.ttft_ms.p50,
        "TTFT p95 ms": found.ttft_ms.p95,
        "TTFT p99 ms": found.ttft_ms.p99,
        "E2E p95 s": found.e2e_ms.p95 / 1e3,
        "forwarded": float(np.mean([homes.get(one.endpoint) != one.region for one in shown])),
        "refused": sum(one.refused for one in shown) / len(shown),
        "egress MB/s": egress / 1e6 / _WINDOW_S,
        "egress USD / 1000": egress / 1e9 * _EGRESS_USD / len(requests) * 1e3,
        "summaries KB/s a pair": result.messages[1] / 1e3 / (result.duration_ms / 1e3) / pairs,
        "offered 1/s": counted.sum() / (_WINDOW_S - _WARMUP_S),
        "completed 1/s": in_window.sum() / (_WINDOW_S - _WARMUP_S),
    }


def beside_global(runs: Sequence[CellRun]) -> str:
    """Write the ratios to the one picker, which the table has to the regions that do not forward."""
    found = {run.key: run for run in runs}
    lines = []
    for cell, entry in dict.fromkeys(run.key[:2] for run in runs if run.entry != "global"):
        pairs = [(run, found.get((cell, "global", run.seed))) for run in runs if run.key[:2] == (cell, entry)]
        for measure in ("TTFT p95 ms", "E2E p95 s"):
            logs = [np.log(one.value(measure) / other.value(measure)) for one, other in pairs if other]
            if len(logs) > 2:  # no interval of fewer
                mean, low, high = np.exp(mean_interval(np.array(logs)))
                lines.append(f"* {cell}: {entry} / global, {measure}: {mean:.3f} [{low:.3f}, {high:.3f}]")
    return "\n".join(lines)


EXPERIMENT = Experiment(
    question="What do regions gain that forward to each other, and how near do they come to one picker?",
    cells=tuple(CELLS),
    entries=tuple(ENTRIES),
    measures=(*_LATENCIES, *_RANGES),
    run=run,
    seeds=20,
    ranges=_RANGES,
    on_request=tuple(cell for cell in CELLS if cell.startswith("alone")),
    summary=beside_global,
    minutes=33,
)
