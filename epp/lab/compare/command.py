"""`epp replay`: many policies on the same load, in the simulator or over HTTP, compared honestly."""

from __future__ import annotations

import sys
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from rich.console import Console

from epp.errors import EppError
from epp.lab.compare.cells import cells_of, is_sweep, sweep_cells
from epp.lab.compare.comparison import Comparer, Plan
from epp.lab.compare.console import PLAIN_WIDTH, page, progress, tables, tell
from epp.lab.compare.document import encode
from epp.lab.compare.evidence import MIN_UNITS
from epp.lab.compare.files import check_folder, save_report
from epp.lab.compare.fleets import FLEETS, fleet_from_text, fleet_from_yaml, with_lost_hits
from epp.lab.compare.http_runs import compare_gateways
from epp.lab.compare.learned import UNTRIED, Learning
from epp.lab.compare.simulate import PolicyChoice
from epp.lab.sim.oracle import ORACLES
from epp.lab.workloads.registry import WORKLOADS, workload_named
from epp.learn.reward_model.settings import Data
from epp.policies.lodestar import Lodestar
from epp.policies.registry import POLICIES

if TYPE_CHECKING:
    import argparse

    from epp.lab.compare.document import Document
    from epp.lab.sim.scenario import FleetSpec

DEFAULT_SEEDS = 20
DEFAULT_SWEEP_SEEDS = 5
#: Where a policy that learns is judged, whose runs are long: as many as carry an interval.
DEFAULT_LEARNED_SEEDS = MIN_UNITS
#: Who is judged when nobody is named: lodestar where it is named first, or the first of these that runs.
CANDIDATES = ("gorgo-ms", "gorgo")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    load = parser.add_argument_group("load")
    load.add_argument("--workload", metavar="NAME,..", help="generated workloads; `--list` shows them")
    load.add_argument("--trace", metavar="FILE", help="a recorded trace, as `epp trace stats` reads it")
    load.add_argument("--sweep", choices=["load"], help="run at rising loads and print each policy's knee")
    load.add_argument("--loads", metavar="X,..", help="factors on the load's own pace for --sweep")
    load.add_argument("--load", type=float, default=1.0, help="factor on the load's own pace (%(default)s)")
    load.add_argument(
        "--shape", help="GuideLLM's shapes: concurrent:N, poisson:RATE, throughput, or sweep[:STEPS]"
    )
    load.add_argument("--seconds", type=float, default=0.0, help="only so much of the load, in its own time")
    load.add_argument("--scale", type=int, default=0, help="divide a trace's lengths (8 for agent sessions)")
    load.add_argument(
        "--max-prompt-tokens", type=int, default=24_000, help="drop a trace's longer prompts (%(default)s)"
    )
    load.add_argument(
        "--max-in-flight", type=int, help="the client's limit; 0 for none (default: the load's)"
    )
    load.add_argument(
        "--open-loop", action="store_true", help="send follow-ups at their times, answered or not"
    )
    load.add_argument(
        "--warmup", type=float, metavar="S", help="seconds dropped (300, or a sixth if shorter)"
    )
    runs = parser.add_argument_group("runs")
    runs.add_argument("--policy", default="all", metavar="NAME,..", help="policies, or `all` (default)")
    runs.add_argument(
        "--candidate", help="the policy that is judged (lodestar if first, gorgo-ms, gorgo, or the first)"
    )
    runs.add_argument(
        "--fleet", default="paper", help="named, `class@rtt_ms*n,..`, or a YAML file (%(default)s)"
    )
    runs.add_argument("--lost-hits", type=float, help="share of cache hits that replicas lose")
    runs.add_argument(
        "--seeds", type=int, help="loads drawn (20; 8 to judge lodestar; 5 in a sweep; 1 for a trace)"
    )
    runs.add_argument("--first-seed", type=int, default=1, help="the first of them (%(default)s)")
    runs.add_argument(
        "--tune", type=int, default=0, metavar="N", help="try N weights of every policy that has any, first"
    )
    runs.add_argument(
        "--margin", type=float, default=5.0, help="non-inferiority margin, per cent (%(default)s)"
    )
    runs.add_argument("--workers", type=int, default=2, help="processes (%(default)s)")
    runs.add_argument("--out", type=Path, default=Path("report"), help="folder for the output (%(default)s)")
    runs.add_argument("--list", action="store_true", help="list workloads, fleets and policies, and stop")
    learns = parser.add_argument_group("learning", "of lodestar, which starts cold and learns in each run")
    learns.add_argument("--learn-first", type=int, metavar="N", help="samples before the first model (5000)")
    learns.add_argument("--learn-every", type=int, metavar="N", help="samples between further ones (1000)")
    live = parser.add_argument_group("live")
    live.add_argument(
        "--over-http", action="append", metavar="[NAME=]URL", help="drive this gateway; repeat to compare"
    )
    live.add_argument("--model", default="default", help="model name sent to gateways (%(default)s)")
    live.add_argument("--header", action="append", default=[], metavar="NAME:VALUE", help="sent along")


def run(arguments: argparse.Namespace) -> int:
    """Run, print, write ``results.json`` and ``report.html``; 1 where a gateway answered nothing."""
    # Tables are wide: what is not a terminal has no width of its own.
    console = Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH)
    if arguments.list:
        _list(console)
        return 0
    _check(arguments)
    check_folder(arguments.out)
    failed: list[str] = []
    if arguments.over_http:
        document, failed = compare_gateways(arguments, console)
    else:
        document = _simulated(arguments)
    # Before the tables, whose reader may have closed the pipe.
    written = save_report(arguments.out, encode(document), page(document))
    console.print(*tables(document), sep="\n")
    console.print(f"\n{written}", markup=False)
    return tell(failed)


def _simulated(arguments: argparse.Namespace) -> Document:
    policies = _learning(policies_of(arguments.policy, yardsticks=not arguments.sweep), arguments)
    candidate = candidate_of(arguments.candidate, policies)
    seeds = seeds_of(arguments, candidate)
    plan = Plan(
        fleet=fleet_of(arguments),
        policies=policies,
        candidate=candidate,
        seeds=tuple(range(arguments.first_seed, arguments.first_seed + seeds)),
        margin=arguments.margin / 100.0,
        tune_budget=arguments.tune,
        workers=arguments.workers,
        by_request=bool(arguments.trace),
    )
    cells = cells_of(arguments)
    with progress(sys.stderr) as step:
        comparer = Comparer(plan, step)
        if arguments.sweep:
            cells = sweep_cells(cells, arguments.loads)
        elif is_sweep(arguments.shape):
            cells = comparer.guidellm_sweep(cells[0], arguments.shape)
        return comparer.document(cells, sweep=len(cells) > 1 and bool(arguments.sweep or arguments.shape))


def seeds_of(arguments: argparse.Namespace, candidate: str) -> int:
    """How many loads are drawn."""
    if arguments.seeds is not None:
        return int(arguments.seeds)
    if arguments.trace:
        return 1
    if arguments.sweep:
        return DEFAULT_SWEEP_SEEDS
    return DEFAULT_LEARNED_SEEDS if candidate == Lodestar.name else DEFAULT_SEEDS


def policies_of(text: str, *, yardsticks: bool) -> tuple[PolicyChoice, ...]:
    """The policies asked for, in that order, each once.

    Raises:
        EppError: nothing has that name.
    """
    names: list[str] = []
    for part in (piece.strip() for piece in text.split(",") if piece.strip()):
        if part == "all":
            names += [*POLICIES, *(ORACLES if yardsticks else ())]
        elif part in POLICIES or part in ORACLES:
            names.append(part)
        else:
            raise EppError(f"unknown policy {part!r}; one of: {', '.join((*POLICIES, *ORACLES))}")
    if not names:
        raise EppError("--policy names no policy")
    return tuple(PolicyChoice(name) for name in dict.fromkeys(names))


def _learning(policies: tuple[PolicyChoice, ...], arguments: argparse.Namespace) -> tuple[PolicyChoice, ...]:
    """The policies with what the flags say of learning."""
    asked = {"first": arguments.learn_first, "every": arguments.learn_every}
    data = {name: value for name, value in asked.items() if value is not None}
    if not data:
        return policies
    settings = msgspec.structs.replace(UNTRIED, data=Data(**data))
    return tuple(
        replace(policy, learning=Learning(settings)) if policy.name == Lodestar.name else policy
        for policy in policies
    )


def candidate_of(asked: str | None, policies: tuple[PolicyChoice, ...]) -> str:
    """The policy that is judged.

    Raises:
        EppError: the one asked for does not run, or is a yardstick.
    """
    names = [p.name for p in policies if p.name not in ORACLES]
    if asked is None and policies[0].name == Lodestar.name:
        return Lodestar.name
    if asked is None:
        return next((name for name in CANDIDATES if name in names), (names or [policies[0].name])[0])
    if asked not in names:
        raise EppError(f"--candidate {asked} is not among the policies that run: {', '.join(names)}")
    return asked


def fleet_of(arguments: argparse.Namespace) -> FleetSpec:
    """The fleet asked for: a file when there is one of that name.

    Raises:
        EppError: no such fleet, or a file that is none.
    """
    path = Path(arguments.fleet)
    if arguments.fleet not in FLEETS and (path.suffix in {".yaml", ".yml"} or path.is_file()):
        try:
            fleet = fleet_from_yaml(path.read_text(encoding="utf-8"), str(path))
        except OSError as error:
            raise EppError(f"{path}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise EppError(f"{path}: not a YAML file: {error}") from error
    else:
        fleet = fleet_from_text(arguments.fleet)
    if arguments.lost_hits is not None:
        if not 0.0 <= arguments.lost_hits <= 1.0:
            raise EppError(f"--lost-hits is a share between 0 and 1, not {arguments.lost_hits:g}")
        fleet = with_lost_hits(fleet, arguments.lost_hits)
    return fleet


def _check(arguments: argparse.Namespace) -> None:
    if bool(arguments.workload) == bool(arguments.trace):
        raise EppError("give either --workload or --trace (`epp replay --list` lists the workloads)")
    names = {name.strip() for name in (arguments.workload or "").split(",")}
    if not arguments.trace and names == {""}:
        raise EppError("--workload names no workload (`epp replay --list` lists them)")
    for name in sorted(names - {""}):
        workload_named(name)
    if arguments.sweep and arguments.shape:
        raise EppError("--sweep and --shape exclude each other; `--shape sweep` is GuideLLM's sweep")
    least = {
        "seeds": 1,
        "first_seed": 0,
        "workers": 1,
        "tune": 0,
        "margin": 0,
        "load": 1e-9,
        "learn_first": 1,
        "learn_every": 1,
        "warmup": 0,
        "seconds": 0,
        "scale": 0,
        "max_prompt_tokens": 0,
        "max_in_flight": 0,
    }
    for name, low in least.items():
        value = getattr(arguments, name)
        if value is not None and not low <= value < inf:
            raise EppError(f"--{name.replace('_', '-')} must be at least {low:g}, not {value:g}")


def _list(console: Console) -> None:
    console.print("[bold]workloads[/bold]")
    for workload in WORKLOADS.values():
        console.print(f"  {workload.name:<24}{workload.help}", highlight=False)
    console.print("[bold]fleets[/bold]")
    for name, (text, _) in FLEETS.items():
        console.print(f"  {name:<24}{text}", highlight=False)
    console.print("[bold]policies[/bold]")
    console.print("  " + ", ".join(POLICIES), highlight=False)
    console.print("[bold]yardsticks[/bold] (see what no picker can)")
    console.print("  " + ", ".join(ORACLES), highlight=False)
