"""`epp lab advise`: are so many GPUs better whole, or prefill and decode apart, and how many of each?

Simulates a load on workers that do all of each request, and on every division of them into prefill and decode
workers, whose pairs the picker chooses. The first load chooses the division, and the threshold that llm-d's
decider should have with it; the other loads judge them beside the whole ones.
"""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from epp.errors import EppError
from epp_lab.compare.fleets import fleet_named, pd_fleet
from epp_lab.compare.llmd_stages import prefix_decided
from epp_lab.compare.plan import PlanCell, Source, add_load_arguments, number_from
from epp_lab.compare.simulate import PolicyChoice, completed, run_task
from epp_lab.compare.stats import mean_interval
from epp_lab.experiment import ratio_text
from epp_lab.progress import progress
from epp_lab.sim.engine_class import ENGINE_CLASSES
from epp_lab.workloads.registry import workload_named

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from epp_lab.compare.measure import Figures
    from epp_lab.compare.stats import Floats
    from epp_lab.sim.engine_class import EngineClass
    from epp_lab.sim.scenario import FleetSpec

#: What is judged, by the name that it has on the command line.
METRICS = {"ttft": "ttft_ms", "e2e": "e2e_ms", "itl": "itl_ms"}
#: Uncached tokens from which llm-d's decider would have a prompt prefilled elsewhere.
THRESHOLDS = (128, 512, 2048, 8192)
_OURS = PolicyChoice("gorgo-ms")
_ERROR_PRICE = 10.0


class Way(NamedTuple):
    """A division of the workers, and who chooses among them; without any that prefill all do both."""

    prefill: int
    decode: int
    threshold: int | None = None

    @property
    def name(self) -> str:
        """What it is called in a table."""
        if not self.prefill:
            return f"{self.decode} whole"
        by = "" if self.threshold is None else f", llm-d from {self.threshold} uncached tokens"
        return f"{self.prefill} prefill, {self.decode} decode{by}"

    @property
    def policy(self) -> PolicyChoice:
        """Who chooses."""
        return (
            _OURS
            if self.threshold is None
            else PolicyChoice("llm-d-stages", params=prefix_decided(self.threshold))
        )


#: A load, and its seed.
Load = tuple[PlanCell, int]


class Lab:
    """Runs ways on loads, each once; loads go by their places.

    Args:
        loads: all of them.
        engine: what a worker is.
        gbps: rate of each worker's link.
        metric: field of the latency whose p95 is judged.
        workers: processes.
    """

    def __init__(
        self, loads: Sequence[Load], engine: EngineClass, gbps: float, metric: str, workers: int
    ) -> None:
        self._loads, self._engine, self._gbps = loads, engine, gbps
        self._metric, self._workers = metric, workers
        self._found: dict[tuple[Way, int], Figures] = {}

    def run(self, ways: Sequence[Way], loads: Sequence[int], title: str) -> None:
        """Run what was not run before."""
        missing = [(way, load) for load in loads for way in ways if (way, load) not in self._found]
        tasks: list[tuple[PlanCell, FleetSpec, PolicyChoice, int]] = []
        for way, load in missing:
            (cell, seed), fleet = (
                self._loads[load],
                pd_fleet(self._engine, way.prefill, way.decode, self._gbps),
            )
            tasks.append((cell, fleet, way.policy, seed))
        with progress(sys.stderr) as step:
            step(title, 0, len(tasks))
            for done, (at, outcome) in enumerate(completed(run_task, tasks, workers=self._workers)):
                self._found[missing[at]] = outcome.figures
                step(title, done + 1, len(tasks))

    def costs(self, way: Way, loads: Sequence[int]) -> Floats:
        """Return the logarithm of the judged p95 on each load, dearer by what failed."""
        found = [self._found[way, load] for load in loads]
        return np.array(
            [
                math.log(one.value(self._metric, "p95")) + _ERROR_PRICE * one.errors / one.requests
                for one in found
            ]
        )

    def best(self, ways: Sequence[Way], load: int) -> Way:
        """Return the cheapest on one load."""
        return min(ways, key=lambda way: float(self.costs(way, [load])[0]))

    def row(self, way: Way, whole: Way, loads: Sequence[int]) -> str:
        """Write a row of the table: means of p95, and the ratio to the whole ones."""
        found = [self._found[way, load] for load in loads]
        means = [np.mean([one.value(metric, "p95") for one in found]) for metric in METRICS.values()]
        ratio = "" if way == whole else ratio_text(self.costs(way, loads) - self.costs(whole, loads))
        return f"| {way.name} | {means[0]:,.0f} | {means[1]:,.0f} | {means[2]:,.1f} | {ratio} |"


def verdict(way: Way, whole: Way, logs: Floats, name: str) -> str:
    """Say what is better, from the logarithms of the ratios of a way's p95 to the whole ones'.

    Args:
        way: the best division.
        whole: the same workers undivided.
        logs: one for each judging load.
        name: of the metric.
    """
    _, low, high = mean_interval(logs)
    text = f"{name} p95 is {ratio_text(logs)} of that of {whole.name}"
    if high < 0.0:
        return f"Apart: {way.name}. {text}."
    if low > 0.0:
        return f"Whole: {whole.name}. With the best division, {way.name}, {text}."
    return f"Whole: {whole.name}. No difference is shown: with the best division, {way.name}, {text}."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add = parser.add_argument_group("load").add_argument
    add("--workload", metavar="NAME", help="a generated workload; `epp lab compare --list` shows them")
    add("--trace", metavar="FILE", help="a recorded trace or your own records, as `epp lab trace` reads them")
    add_load_arguments(add, max_prompt_tokens=0)
    add = parser.add_argument_group("engines").add_argument
    add("--gpus", type=number_from(2), required=True, metavar="N", help="how many GPUs")
    add("--gpus-per-worker", type=number_from(1), default=1, metavar="N", help="each worker's (%(default)s)")
    add(
        "--engine",
        default="h100-8b",
        metavar="NAME",
        help="a class of engine, or a JSON file of `epp lab calibrate`: its first (%(default)s)",
    )
    add("--link-gbps", type=number_from(1e-3, float), default=100.0, help="of each worker (%(default)s)")
    add("--kv-bytes-per-token", type=number_from(1), help="of the model (default: the engine's)")
    add = parser.add_argument_group("runs").add_argument
    add("--judge", choices=METRICS, default="e2e", help="whose p95 decides (%(default)s)")
    add("--seeds", type=number_from(6), default=9, help="loads: seeds, or stretches of a trace (%(default)s)")
    add("--workers", type=number_from(1), default=2, help="processes (%(default)s)")


def run(arguments: argparse.Namespace) -> int:
    """Print a table and one sentence of advice."""
    count = arguments.gpus // arguments.gpus_per_worker
    if count < 2:
        raise EppError(f"--gpus {arguments.gpus}: two workers of {arguments.gpus_per_worker} need more")
    loads, metric = loads_of(arguments), METRICS[arguments.judge]
    lab = Lab(loads, engine_of(arguments), arguments.link_gbps, metric, arguments.workers)
    (first, *judges), whole = range(len(loads)), Way(0, count)
    divisions = [Way(prefill, count - prefill) for prefill in range(1, count)]
    lab.run([whole, *divisions], [first], "divisions")
    apart = lab.best(divisions, first)
    deciders = [apart._replace(threshold=tokens) for tokens in THRESHOLDS]
    lab.run(deciders, [first], "thresholds")
    decided = lab.best(deciders, first)
    lab.run([whole, apart, decided], judges, "judging")
    name = arguments.judge.upper()
    print(
        "| workers | TTFT p95 ms | E2E p95 ms | ITL p95 ms | " + f"{name} p95 / whole |\n" + "|---" * 5 + "|"
    )
    print(*(lab.row(way, whole, judges) for way in (whole, apart, decided)), sep="\n")
    print("\n" + verdict(apart, whole, lab.costs(apart, judges) - lab.costs(whole, judges), name))
    print(f"For llm-d's prefix-based-pd-decider the best found is nonCachedTokens {decided.threshold}.")
    return 0


def engine_of(arguments: argparse.Namespace) -> EngineClass:
    """Return what a worker is.

    Raises:
        EppError: the engine is unknown, or the size of its KV cache's tokens.
    """
    name: str = arguments.engine
    if name.endswith(".json"):
        engine = fleet_named(name).replicas[0].engine_class
    elif name in ENGINE_CLASSES:
        engine = ENGINE_CLASSES[name]
    else:
        raise EppError(f"--engine {name!r}: not one of {', '.join(ENGINE_CLASSES)}, and no JSON file")
    kv_bytes = arguments.kv_bytes_per_token or engine.kv_bytes_per_token
    if not kv_bytes:
        raise EppError(f"--engine {name}: say how large a token's KV cache is, with --kv-bytes-per-token")
    return replace(engine, kv_bytes_per_token=kv_bytes)


def loads_of(arguments: argparse.Namespace) -> list[Load]:
    """Make the loads: a seed each of a workload, an equal stretch each of a trace.

    Raises:
        EppError: neither or both are named, or there is nothing in them.
    """
    if bool(arguments.workload) == bool(arguments.trace):
        raise EppError("give either --workload or --trace")
    window = {"from_s": arguments.from_s, "until_s": arguments.seconds}
    if arguments.workload:
        known = workload_named(arguments.workload)
        source = Source(workload=known.name, **window)
        cell = PlanCell(known.name, source, load=arguments.load, time_scale=known.time_scale)
        return [(cell, seed) for seed in range(1, arguments.seeds + 1)]
    source = Source(trace=arguments.trace, max_prompt_tokens=arguments.max_prompt_tokens, **window)
    source = replace(source, tick_ms=arguments.tick_ms)
    length_s = source.requests(1)[-1].at_ms / 1e3 / arguments.seeds
    parts = [
        replace(source, from_s=arguments.from_s + at * length_s, until_s=length_s)
        for at in range(arguments.seeds)
    ]
    return [(PlanCell(f"part {at + 1}", part, load=arguments.load), 1) for at, part in enumerate(parts)]
