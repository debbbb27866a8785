"""What pricing cold connections is worth: `gorgo-ms` with and without it, over paths of several kinds.

    python -m bench.paths                     # prints the table; some 20 minutes on 2 cores
    python -m bench.paths --page              # and writes it into docs/gorgo-ms.md

A kind of path is when engines or proxies close idle connections, and whether windows stay open. The picker
hears of connections as an access log tells them; once from engines whose response headers come when the
request is there, once from such whose headers wait for the first token, which hides what bodies cost. All
arms of a cell and a seed see the same load, the same network and the same draws.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from bench.policy_entries import cells_of
from bench.policy_figures import written
from epp.replay.policy_cells import DEVELOPMENT_SEEDS
from epp.replay.simulate import Outcome, PolicyChoice, Task, run_all, run_task
from epp.sim.network import NetworkPath, SlowStart
from epp.sim.scenario import ConnectionReports, FleetSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from epp.replay.policy_cells import PolicyCell

PAGE = Path(__file__).parent.parent / "docs" / "gorgo-ms.md"
CELLS = (
    "art-chat ts 1 / three regions / steady,mooncake / three regions / steady,"
    "agent sessions / three regions / steady"
)


@dataclass(frozen=True, slots=True)
class Arm:
    """A policy and what it hears."""

    label: str
    policy: PolicyChoice
    told: ConnectionReports


def _closing(seconds: float) -> Callable[[NetworkPath], NetworkPath]:
    return lambda path: replace(path, keep_alive_s=seconds)


def _kept(path: NetworkPath) -> NetworkPath:
    return replace(path, slow_start=SlowStart.NEVER)


def _relayed(path: NetworkPath) -> NetworkPath:
    return replace(path, slow_start=SlowStart.NEVER, handshake_round_trips=0)


KINDS: dict[str, Callable[[NetworkPath], NetworkPath]] = {
    "closed after 4 s": _closing(4.0),
    "closed after 60 s": _closing(60.0),
    "closed after 60 s, windows kept": _kept,
    "always open, windows kept": _relayed,
}
METRICS = ("ttft_ms", "e2e_ms")
_GORGO_MS = PolicyChoice("gorgo-ms")
ARMS = (
    Arm("nothing told", _GORGO_MS, ConnectionReports.NONE),
    Arm("told", _GORGO_MS, ConnectionReports.EARLY),
    Arm("told, headers late", _GORGO_MS, ConnectionReports.LATE),
    Arm(
        "told, not priced",
        PolicyChoice("gorgo-ms", params={"price_cold": False}),
        ConnectionReports.EARLY,
    ),
)


def over(fleet: FleetSpec, change: Callable[[NetworkPath], NetworkPath]) -> FleetSpec:
    """The same replicas behind other paths."""
    replicas = (replace(spec, network=change(spec.network)) for spec in fleet.replicas)
    return replace(fleet, replicas=tuple(replicas))


def main() -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cells", default=CELLS, help="parts of names of cells, by commas")
    parser.add_argument("--seeds", type=int, default=3, help="how many of the development seeds")
    parser.add_argument("--seconds", type=float, default=600.0, help="of each window")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--page", action="store_true", help=f"write the table into {PAGE.name}")
    arguments = parser.parse_args()
    seeds = DEVELOPMENT_SEEDS[: arguments.seeds]
    cells = cells_of(arguments.cells, core=False, seconds=arguments.seconds)
    plan = [(cell, kind, arm) for cell in cells for kind in KINDS for arm in ARMS]
    outcomes = run_all(
        run_task,
        [_task(cell, kind, arm, seed) for cell, kind, arm in plan for seed in seeds],
        workers=arguments.workers,
        on_done=_Progress(len(plan) * len(seeds)),
    )
    runs = [outcomes[at * len(seeds) : (at + 1) * len(seeds)] for at in range(len(plan))]
    lines = [
        f"Development seeds {seeds[0]:,} to {seeds[-1]:,}, the first {arguments.seconds:.0f} s of windows.",
        "",
        *table([cell.name for cell in cells], runs),
    ]
    print("\n".join(lines))
    if arguments.page:
        PAGE.write_text(written(PAGE.read_text(), "paths", lines))
    return 0


def _task(cell: PolicyCell, kind: str, arm: Arm, seed: int) -> Task:
    reports = replace(cell.cell.reports, connections=arm.told)
    return Task(replace(cell.cell, reports=reports), over(cell.fleet, KINDS[kind]), arm.policy, seed)


def table(cells: Sequence[str], runs: Sequence[Sequence[Outcome]]) -> list[str]:
    """Markdown: a row a cell and kind of path, then means over cells with two standard errors.

    Args:
        cells: names.
        runs: by cell, kind and arm, in this order, one for each seed.
    """
    first, *others = (arm.label for arm in ARMS)
    heads = ["cell", "idle connections", f"{first}: TTFT p95 ms, E2E p95 s", *others]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    pooled: dict[str, list[tuple[list[float], list[float]]]] = {
        kind: [([], []) for _ in others] for kind in KINDS
    }
    rows = iter(runs)
    for cell in cells:
        for kind in KINDS:
            base, *told = (next(rows) for _ in ARMS)
            changes = []
            for number, arm in enumerate(told):
                found = [_changes(base, arm, metric) for metric in METRICS]
                changes.append(" / ".join(_percent(_mean(logs)) for logs in found))
                for every, logs in zip(pooled[kind][number], found, strict=True):
                    every.extend(logs)
            ttft_ms, e2e_ms = (
                math.exp(_mean([math.log(_p95(run, metric)) for run in base])) for metric in METRICS
            )
            lines.append(_row([cell, kind, f"{ttft_ms:,.0f}, {e2e_ms / 1e3:.2f}", *changes]))
    for kind, arms in pooled.items():
        lines.append(_row(["**mean**", kind, "", *(" / ".join(map(_with_error, arm)) for arm in arms)]))
    return lines


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _changes(base: Sequence[Outcome], arm: Sequence[Outcome], metric: str) -> list[float]:
    """Logarithms of the ratios of p95s, seed by seed."""
    return [math.log(_p95(run, metric) / _p95(other, metric)) for run, other in zip(arm, base, strict=True)]


def _with_error(logs: Sequence[float]) -> str:
    mean = _mean(logs)
    spread = math.fsum((value - mean) ** 2 for value in logs) / max(len(logs) - 1, 1)
    return f"{_percent(mean)} ±{200 * math.sqrt(spread / len(logs)):.1f}"


def _percent(log: float) -> str:
    return f"{math.expm1(log) * 100:+.1f} %"


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _p95(run: Outcome, metric: str) -> float:
    return run.figures.value(metric, "p95")


class _Progress:
    """A line now and then on standard error."""

    def __init__(self, total: int) -> None:
        self._total, self._began_s = total, time.monotonic()
        self._said_s = self._began_s

    def __call__(self, done: int) -> None:
        now_s = time.monotonic()
        if now_s - self._said_s > 15.0 or done == self._total:
            self._said_s = now_s
            print(f"{done} of {self._total}, {now_s - self._began_s:.0f} s", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
