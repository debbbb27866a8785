"""What `gorgo-ms` would gain by knowing more, and how much of the oracle's advantage is luck foreseen.

    python -m bench.policy_knowledge           # prints the table; some 10 minutes of CPU time
    python -m bench.policy_knowledge --page    # and writes it into docs/gorgo-ms.md

The formula stays as it is; the signals under it are replaced by what is true. Where engines lose hits, the
simulator draws for each request and replica whether it finds nothing, and an oracle that asks each replica
sees the draws before they happen: no picker could. So the oracle of the total runs a second time without
that, with the mean over both ways in which the draw can fall. Development seeds; every arm of a cell and a
seed sees the same load, network and draws.
"""

from __future__ import annotations

import argparse
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec.structs import replace

from bench.policy_entries import cells_of
from bench.policy_figures import written
from epp.keyed_uniform import keyed_uniform
from epp.policies.base import Policy
from epp.policies.gorgo_ms import GorgoMs
from epp.replay.measure import Figures, from_window
from epp.replay.policy_cells import DEVELOPMENT_SEEDS
from epp.replay.simulate import outcome_of, run_all
from epp.sim.fleet import FleetSim
from epp.sim.oracle import GreedyOracleTotal
from epp.sim.scenario import WindowOptions
from epp.view import NUMERIC_COLUMNS, FleetView, Ranking

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from epp.replay.policy_cells import PolicyCell
    from epp.sim.job import Job
    from epp.sim.replica import Replica
    from epp.sim.scenario import FleetSpec
    from epp.sim.truth import Truth
    from epp.view import RequestView

PAGE = Path(__file__).parent.parent / "docs" / "gorgo-ms.md"
METRICS = ("ttft_ms", "e2e_ms")
_CACHED, _UNCACHED, _HIT_RATIO = map(NUMERIC_COLUMNS.index, ("cached_tokens", "uncached_tokens", "hit_ratio"))
#: Arms by label: what `Knowing` is told, or a yardstick.
BASE = "gorgo-ms"
ARMS: Mapping[str, frozenset[str] | str] = {
    BASE: frozenset(),
    "knows which hits are lost": frozenset({"lost"}),
    "knows what caches hold": frozenset({"caches"}),
    "knows how long the answer gets": frozenset({"answer"}),
    "knows both of these": frozenset({"caches", "answer"}),
    "oracle": "oracle",
    "oracle, blind to losses": "blind",
}


@dataclass(frozen=True, slots=True)
class Knowing:
    """`GorgoMs` over true signals; an `epp.sim.oracle.Oracle`.

    Attributes:
        fleet: the replicas, for how often each loses hits.
        what: of ``lost`` (whether this request's hits will be lost, the ratio of hits for the rest),
            ``caches`` (the tokens that it will find) and ``answer`` (its length, which the simulator tells as
            the client's limit).
    """

    fleet: FleetSpec
    what: frozenset[str]

    @property
    def name(self) -> str:
        """That of the formula: weights are asked for by it."""
        return GorgoMs.name

    def shown(self, truth: Truth) -> Policy:
        """The policy over that fleet."""
        return _Told(truth, self.what, _shares(self.fleet))


class _Told(Policy):
    name = GorgoMs.name
    needs = GorgoMs.needs
    ties = GorgoMs.ties
    weight_specs = GorgoMs.weight_specs

    def __init__(self, truth: Truth, what: frozenset[str], shares: Mapping[str, float]) -> None:
        self._truth, self._what, self._shares = truth, what, shares
        self._policy = GorgoMs()

    def rank(
        self, request: RequestView, fleet: FleetView, weights: Mapping[str, float], seed: int
    ) -> Ranking:
        """As `GorgoMs.rank`, over what is true."""
        if "answer" in self._what and request.max_output_tokens is not None:
            request = replace(request, expected_output_tokens=float(request.max_output_tokens))
        block = fleet.block.copy()
        if "caches" in self._what:
            block[_CACHED] = [self._truth.forecast(address).cached_tokens for address in fleet.endpoints]
            block[_HIT_RATIO] = 1.0
        elif "lost" in self._what:
            for row, address in enumerate(fleet.endpoints):
                share = self._shares[address]
                # The draw that `FleetSim.job` makes.
                if share and keyed_uniform(seed, f"{self._truth.index} {address}", "lost hit") < share:
                    block[_HIT_RATIO, row] = 0.0
                elif share:
                    block[_HIT_RATIO, row] = min(block[_HIT_RATIO, row] / (1.0 - share), 1.0)
        block[_UNCACHED] = request.prompt_tokens - block[_CACHED]
        return self._policy.rank(request, replace(fleet, block=block), weights, seed)


class Blind:
    """The oracle of the total without the draws of lost hits: the mean over both, by how often each falls.

    An `epp.sim.oracle.Oracle` of a `SupposingSim`, which is told by it what to suppose.
    """

    name = GreedyOracleTotal.name

    def __init__(self, fleet: FleetSpec) -> None:
        self.supposed_lost: bool | None = None
        self._shares = _shares(fleet)

    def shown(self, truth: Truth) -> Policy:
        """The policy over that fleet."""
        return _Averaging(self, truth)

    def mean_ms(self, truth: Truth, address: str) -> float:
        """What sending there adds to everybody's E2E, as far as it can be known."""
        share = self._shares[address]
        total_ms = 0.0
        for lost, weight in ((False, 1.0 - share), (True, share)):
            if weight:
                self.supposed_lost = lost
                forecast = truth.forecast(address)
                total_ms += weight * (forecast.e2e_ms + forecast.inflicted_ms)
        self.supposed_lost = None
        return total_ms


class _Averaging(Policy):
    name = GreedyOracleTotal.name

    def __init__(self, blind: Blind, truth: Truth) -> None:
        self._blind, self._truth = blind, truth

    def rank(
        self,
        request: RequestView,  # noqa: ARG002 - the truth knows it better
        fleet: FleetView,
        weights: Mapping[str, float],  # noqa: ARG002 - no weights
        seed: int,  # noqa: ARG002 - nothing is drawn
    ) -> Ranking:
        """The mean costs."""
        costs = np.array([self._blind.mean_ms(self._truth, address) for address in fleet.endpoints])
        # The truth keeps its last what-if of an endpoint; that of the chosen one has to be what comes.
        self._truth.forecast(fleet.endpoints[int(np.argmin(costs))])
        return Ranking(costs, {})


class SupposingSim(FleetSim):
    """A fleet whose forecasts may suppose that a request's hits are lost, or that they are not."""

    def __init__(self, requests: Any, spec: FleetSpec, policy: Blind, **options: Any) -> None:
        self._blind = policy
        super().__init__(requests, spec, policy, **options)

    def job(self, replica: Replica, index: int) -> Job:
        """As drawn, or as supposed."""
        lost = self._blind.supposed_lost
        if lost is None or not replica.spec.lost_hit_share:
            return super().job(replica, index)
        return self.prompts.job(index, miss=lost)


def _shares(fleet: FleetSpec) -> dict[str, float]:
    return {spec.address: spec.lost_hit_share for spec in fleet.replicas}


@dataclass(frozen=True, slots=True)
class Run:
    """One arm on one cell under one seed."""

    cell: PolicyCell
    arm: str
    seed: int


def run(task: Run) -> Figures:
    """Run it here."""
    cell, what = task.cell.cell, ARMS[task.arm]
    requests = cell.source.requests(task.seed)
    options = WindowOptions(
        time_scale=cell.pace, max_in_flight=cell.max_in_flight, closed_loop=cell.closed_loop
    )
    given: dict[str, Any] = {"weights": {}, "seed": task.seed, "options": options}
    fleet = task.cell.fleet
    if what == "blind":
        result = SupposingSim(requests, fleet, Blind(fleet), **given).run()
    elif isinstance(what, frozenset):
        policy = Knowing(fleet, what) if what else GorgoMs()
        result = FleetSim(requests, fleet, policy, **given).run()
    else:
        result = FleetSim(requests, fleet, GreedyOracleTotal(), **given).run()
    return outcome_of(cell, task.seed, from_window(result, len(requests)), columns=False).figures


def table(cells: Sequence[str], figures: Mapping[tuple[str, str], Sequence[Figures]]) -> list[str]:
    """Markdown: a row a cell, and the mean over cells.

    Args:
        cells: names.
        figures: by cell and arm, one for each seed.
    """
    heads = ["cell", f"`{BASE}`: TTFT p95 ms, E2E p95 s", *(arm for arm in ARMS if arm != BASE)]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    changes: dict[str, list[Any]] = {arm: [] for arm in ARMS}
    for cell in cells:
        base = _logs(figures[cell, BASE])
        row = [f"{math.exp(base[0].mean()):,.0f}, {math.exp(base[1].mean()) / 1e3:.2f}"]
        for arm in ARMS:
            if arm != BASE:
                changes[arm].append(_logs(figures[cell, arm]) - base)
                row.append(" / ".join(_percent(float(logs.mean())) for logs in changes[arm][-1]))
        lines.append("| " + " | ".join([cell, *row]) + " |")
    means = [
        " / ".join(_percent(float(change)) for change in np.mean(changes[arm], axis=(0, 2)))
        for arm in ARMS
        if arm != BASE
    ]
    lines.append("| " + " | ".join(["**mean**", "", *means]) + " |")
    return lines


def _logs(runs: Sequence[Figures]) -> Any:
    return np.log([[one.value(metric, "p95") for one in runs] for metric in METRICS])


def _percent(log: float) -> str:
    return f"{math.expm1(log) * 100:+.1f} %"


def main() -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cells", default="", help="of the short run, parts of names, by commas")
    parser.add_argument("--seeds", type=int, default=4, help="how many of the development seeds")
    parser.add_argument("--seconds", type=float, default=300.0, help="of each window")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--page", action="store_true", help=f"write the table into {PAGE.name}")
    arguments = parser.parse_args()
    seeds = DEVELOPMENT_SEEDS[: arguments.seeds]
    cells = cells_of(arguments.cells, core=True, seconds=arguments.seconds)
    runs = [Run(cell, arm, seed) for cell in cells for arm in ARMS for seed in seeds]

    def on_done(done: int) -> None:
        print(f"{done} of {len(runs)}", file=sys.stderr, flush=True)

    found = run_all(run, runs, workers=arguments.workers, on_done=on_done)
    figures: dict[tuple[str, str], list[Figures]] = {}
    for one, result in zip(runs, found, strict=True):
        figures.setdefault((one.cell.name, one.arm), []).append(result)
    told = f"Development seeds {seeds[0]:,} to {seeds[-1]:,}, the first {arguments.seconds:.0f} s of windows."
    lines = [told, "", *table([cell.name for cell in cells], figures)]
    print("\n".join(lines))
    if arguments.page:
        PAGE.write_text(written(PAGE.read_text(), "knowledge", lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
