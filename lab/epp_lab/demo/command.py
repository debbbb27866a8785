"""`epp demo`: one load on faltering replicas, before the picker and before plain Envoy; the verdict."""

from __future__ import annotations

import asyncio
import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
import numpy as np
import uvloop
from rich.console import Console
from rich.table import Table

from epp.config.schema import PolicySection
from epp.policies.registry import create
from epp_lab.compare.compare import compare, comparison_table
from epp_lab.compare.measure import figures, from_live
from epp_lab.compare.report import change, panels
from epp_lab.compare.stats import Statistic
from epp_lab.demo import agents, load, overload
from epp_lab.demo.example import exit_status, output, write_report
from epp_lab.demo.plain import BALANCERS, Plain
from epp_lab.demo.stack import Replica, Stack
from epp_lab.page import html
from epp_lab.plot import Panel, figure

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from epp_lab.compare.compare import Comparison
    from epp_lab.compare.load import RequestResult
    from epp_lab.compare.trace import TraceRequest

    #: Results by phase, and by who served: the picker, then plain Envoy.
    Phases = Mapping[load.Phase, Mapping[str, Sequence[RequestResult]]]

REPLICAS = tuple(Replica(name, rtt_ms=1.0) for name in load.REPLICAS)
#: Of TTFT, in each phase; and what is said of it.
COMPARED = (Statistic(None), Statistic(95))
WORDS = ("lower", "level", "higher", "unknown")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add = parser.add_argument
    add("--policy", default=PolicySection().name, help="the picker's policy (default: %(default)s)")
    add("--against", choices=BALANCERS, default="least-request", help="of the plain Envoy (%(default)s)")
    add("--seed", type=int, default=load.SEED, help="seed of the load (default: %(default)s)")
    shows = parser.add_mutually_exclusive_group()
    shows.add_argument(
        "--overload", action="store_true", help="more than replicas can serve, with a queue and without"
    )
    shows.add_argument(
        "--agents", action="store_true", help="agents whose contexts outgrow KV caches, turns held or not"
    )
    add("--out", type=Path, default=Path("demo-out"), help="folder for the output (%(default)s)")


def run(arguments: argparse.Namespace) -> int:
    """Run the demo; 1 where nothing was answered. Ctrl-C stops everything that it started."""
    create(arguments.policy, source="command line", key="--policy")  # now, and not when replicas run
    with output(arguments.out):
        shown = overload.show if arguments.overload else agents.show if arguments.agents else show
        return uvloop.run(shown(arguments))


def fleet(folder: Path, policy: str) -> Stack:
    """Describe the demo's replicas behind the picker under a policy."""
    sections = {
        "policy": {"name": policy},
        "weights_file": "weights.yaml",
        "overrides_file": "overrides.yaml",
    }
    return Stack(folder, REPLICAS, sections)


async def show(arguments: argparse.Namespace) -> int:
    """Run the load behind both, and print what came of it."""
    console, out = Console(), arguments.out
    requests = load.generate(arguments.seed)
    text = (
        f"{len(requests)} requests of seed {arguments.seed} to {len(REPLICAS)} simulated replicas, through a "
        f"real Envoy: with the picker ({arguments.policy}), then without ({arguments.against}), in phases:\n"
        + "\n".join(f"- {phase.name}: {phase.text}" for phase in load.PHASES)
    )
    console.print(text, highlight=False)
    plain = f"plain {arguments.against}"
    stacks = {
        arguments.policy: fleet(out, arguments.policy),
        plain: Plain(out / "plain", REPLICAS, arguments.against),
    }
    runs: dict[str, list[RequestResult]] = {}
    for name, stack in stacks.items():
        async with stack, asyncio.TaskGroup() as group:
            sending = group.create_task(stack.send(requests))
            await befall(stack, console, name)
        runs[name] = sending.result()
    counted = np.ones(len(requests), dtype=bool)
    found = {
        name: figures(from_live(results, len(requests)), requests, counted, pace=1.0)
        for name, results in runs.items()
    }
    phases = by_phase(runs, requests)
    said, table, compared = verdict(phases), phase_table(phases), comparison_table(runs, found)
    console.print(table, compared, *said, sep="\n", highlight=False)
    starts = {phase.start_s: phase.name for phase in load.PHASES}
    charts = panels({name: asdict(each) for name, each in found.items()}, load.REPLICAS, starts)
    failed = {name: [(at, failures(each[name])) for at, each in enumerate(phases.values())] for name in runs}
    names = dict[float, str](enumerate(starts.values()))
    charts.append(
        Panel("Failed requests by phase", "phase", "requests", failed, names, [*names], drawn="bars")
    )
    title = f"{arguments.policy} beside Envoy's {arguments.against}"
    parts = (html(text), figure("The same load behind both", charts), html(table), html(compared))
    write_report(console, out, title, parts, said)
    return exit_status(runs)


async def befall(stack: Stack, console: Console, title: str) -> None:
    """Let each phase's fault begin with the phase, and end with it; say which phase it is."""
    clock = asyncio.get_running_loop().time
    begun_s = clock()
    async with aiohttp.ClientSession() as http:
        for phase in load.PHASES:
            await asyncio.sleep(begun_s + phase.start_s - clock())
            console.print(f"{title}: {phase.name}", highlight=False)
            slowdown = load.SLOWDOWN if phase is load.SLOWED else 1.0
            for fault in (
                f"{stack.endpoints[load.SLOW].address}/fault?slowdown={slowdown}",
                f"{stack.endpoints[load.FAILING].address}/fault?failing={int(phase is load.FAILED)}",
            ):
                await http.post(f"http://{fault}")
            if phase is load.LEFT:
                stack.write_pool(name for name in stack.endpoints if name != load.LEAVING)


def by_phase(runs: Mapping[str, Sequence[RequestResult]], requests: Sequence[TraceRequest]) -> Phases:
    """Sort results by the phase of their request."""

    def within(phase: load.Phase, result: RequestResult) -> bool:
        since_s = requests[result.index].at_ms / 1e3 - phase.start_s
        return 0.0 <= since_s < load.PHASE_S + load.PAUSE_S

    return {
        phase: {name: [each for each in results if within(phase, each)] for name, results in runs.items()}
        for phase in load.PHASES
    }


def failures(results: Sequence[RequestResult]) -> int:
    """Count failed requests."""
    return sum(not result.ok for result in results)


def standing(comparison: Comparison) -> str:
    """Say in a word what the interval allows."""
    if math.isnan(comparison.low):
        return "unknown"
    return "lower" if comparison.high < 1.0 else "higher" if comparison.low > 1.0 else "level"


def compared_ttft(served: Mapping[str, Sequence[RequestResult]], statistic: Statistic) -> Comparison:
    """Compare the picker's TTFT with plain Envoy's."""
    ours, theirs = served.values()
    return compare(ours, theirs, "ttft_ms", statistic)


def verdict(phases: Phases) -> list[str]:
    """Say in how many phases TTFT is lower, level or higher, and how many requests failed."""
    ours, theirs = next(iter(phases.values()))
    said = []
    for statistic in COMPARED:
        groups: dict[str, list[str]] = {word: [] for word in WORDS}
        for phase, served in phases.items():
            groups[standing(compared_ttft(served, statistic))].append(phase.name)
        counted = (f"{word} in {len(group)} ({', '.join(group)})" for word, group in groups.items() if group)
        said.append(f"Of {len(phases)} phases, TTFT {statistic.label} is {', '.join(counted)}.")
    lost = [sum(failures(served[name]) for served in phases.values()) for name in (ours, theirs)]
    return [
        f"{ours} beside {theirs}: {lost[0]} requests failed instead of {lost[1]}.",
        *said,
        "Intervals are 95 %, by burst and by time, within this one run; level: they show no difference.",
    ]


def phase_table(phases: Phases) -> Table:
    """Lay out a row a phase."""
    ours, theirs = next(iter(phases.values()))
    table = Table(title=f"{ours} / {theirs}", title_justify="left")
    table.add_column("phase")
    for head in ("failed", *(f"TTFT {statistic.label} ms" for statistic in COMPARED)):
        table.add_column(head, justify="right")
    for phase, served in phases.items():
        lost = " / ".join(str(failures(each)) for each in served.values())
        row = [phase.name, f"{lost}\nof {len(served[ours])}"]
        for statistic in COMPARED:
            found = compared_ttft(served, statistic)
            both = (_ttft_ms(each, statistic) for each in served.values())
            row.append(f"{' / '.join(both)}\n{_difference(found)}")
        table.add_row(*row)
    return table


def _difference(found: Comparison) -> str:
    if math.isnan(found.low):
        return "too few to compare"
    low, high = (change(end).removesuffix(" %") for end in (found.low, found.high))
    return f"{standing(found)} {change(found.ratio)} [{low}, {high}]"


def _ttft_ms(results: Sequence[RequestResult], statistic: Statistic) -> str:
    known = [result.ttft_ms for result in results if result.ok and result.ttft_ms is not None] or [math.nan]
    once = np.ones((1, len(known)), dtype=np.int64)
    return f"{statistic.weighted(np.array(known), once)[0]:,.0f}"
