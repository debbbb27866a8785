"""`epp lab compare`: many policies on the same load, in the simulator or over HTTP, compared honestly."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from rich.console import Console
from rich.text import Text

from epp.errors import EppError
from epp.policies.lodestar import Lodestar
from epp.policies.registry import POLICIES
from epp_lab.compare.fleets import FLEETS, PD_NAMES, fleet_named
from epp_lab.compare.gateways import drive_gateways, parse_gateways
from epp_lab.compare.load import add_api_key, api_key_headers
from epp_lab.compare.plan import (
    PACES,
    PlanCell,
    Source,
    add_load_arguments,
    counts,
    listed,
    number_from,
    paces,
)
from epp_lab.compare.report import PLAIN_WIDTH, conclusion, headline, lesson_sentence, report_page, tables
from epp_lab.compare.results import SCHEMA, compare_policies, encode, load_entry, policy_entry
from epp_lab.compare.simulate import (
    Outcome,
    PolicyChoice,
    Tuned,
    completed,
    run_task,
    tunable,
    tune,
)
from epp_lab.compare.stats import MIN_UNITS
from epp_lab.origin import origin
from epp_lab.progress import progress
from epp_lab.sim.oracle import ORACLES
from epp_lab.sim.scenario import EVENTS, PickerOptions, RegionMode, WindowOptions
from epp_lab.workloads.registry import WORKLOADS, workload_named
from epp_lab.workloads.tenants import Tenancy

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping, Sequence

    from epp_lab.progress import Step
    from epp_lab.sim.scenario import FleetSpec

FIRST_SEED, DEFAULT_SEEDS = 1, 20
#: Where a policy that learns is judged, whose runs are long: as many as carry an interval.
DEFAULT_LEARNED_SEEDS = MIN_UNITS
#: Who is judged when nobody is named: lodestar where it is named first, or the first of these that runs.
CANDIDATES = ("gorgo-ms", "gorgo")
#: What a policy may be worse by and still count as not inferior.
MARGIN = 0.05


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add = parser.add_argument_group("load").add_argument
    add("--workload", metavar="NAME,..", help="generated workloads; `--list` shows them")
    add("--trace", metavar="FILE", help="a recorded trace, as `epp lab trace` reads it")
    add_load_arguments(add, max_prompt_tokens=24_000)
    add(
        "--loads",
        type=paces,
        default=(),
        metavar="LEAST..MOST",
        help=f"{PACES} factors instead of one: finds the knee",
    )
    add("--max-in-flight", type=number_from(0), help="the client's limit; 0 for none (default: the load's)")
    add(
        "--warmup",
        type=number_from(0, float),
        metavar="S",
        help="seconds dropped (300, or a sixth if shorter)",
    )
    add = parser.add_argument_group("runs").add_argument
    add("--policy", default="all", metavar="NAME,..", help="policies, or `all` (default)")
    add("--candidate", help="the policy that is judged (lodestar if first, gorgo-ms, gorgo, or the first)")
    add("--fleet", default="paper", help="named, `class@rtt_ms*n,..`, or a JSON file (%(default)s)")
    add("--seeds", type=number_from(1), help="loads drawn (20; 8 to judge lodestar; 1 for a trace)")
    add(
        "--tune",
        type=number_from(0),
        default=0,
        metavar="N",
        help="try N weights of every policy that has any, first",
    )
    add("--workers", type=number_from(1), default=2, help="processes (%(default)s)")
    add("--out", type=Path, default=Path("report"), help="folder for the output (%(default)s)")
    add("--list", action="store_true", help="list workloads, fleets and policies, and stop")
    _add_pickers_and_tenants(parser)
    add = parser.add_argument_group("live").add_argument
    add("--over-http", action="append", metavar="[NAME=]URL", help="drive this gateway; repeat to compare")
    add("--model", default="default", help="model name sent to gateways (%(default)s)")
    add_api_key(add)


def _add_pickers_and_tenants(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("pickers", "that serve the same fleet").add_argument
    add("--pickers", type=counts, default="1", metavar="N,..", help="how many (%(default)s)")
    add("--share", choices=("none", "index", "all"), default="all", help="what they share (%(default)s)")
    add("--delay-ms", type=number_from(0, float), default=1.0, help="of their messages (%(default)s)")
    add("--loss", type=number_from(0, float), default=0.0, help="share of messages lost (%(default)s)")
    add(
        "--regions",
        type=listed(get_args(RegionMode)),
        default="regions",
        metavar="MODE,..",
        help="of a fleet of regions: `nearest` knows its own engines alone, `regions` forwards, `global` is "
        "one picker that sees all (%(default)s)",
    )
    add(
        "--queue",
        type=listed(("on", "off")),
        default="off",
        metavar="on,off",
        help="let requests wait (%(default)s)",
    )
    add(
        "--events",
        type=listed(EVENTS),
        default="off",
        metavar="on,off,lossy",
        help="hear of engines' KV caches: 50 ms late, or a tenth of the messages never (%(default)s)",
    )
    add = parser.add_argument_group("tenants", "that share the load; their queue is fair").add_argument
    add(
        "--tenants",
        type=number_from(1),
        default=1,
        metavar="N",
        help="each half as large as the one before it",
    )
    add(
        "--high-share",
        type=number_from(0, float),
        default=0.0,
        help="share of sessions of priority 1 (%(default)s)",
    )
    add(
        "--deadline-ms",
        type=lambda text: tuple(map(number_from(0, float), text.split(":"))),
        default="0:0",
        metavar="LEAST:MOST",
        help="times to first token that requests ask for, drawn between these",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run, print, write ``results.json`` and ``report.html``; 1 where a gateway answered nothing."""
    # Tables are wide: what is not a terminal has no width of its own.
    console = Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH)
    if arguments.list:
        _list(console)
        return 0
    if bool(arguments.workload) == bool(arguments.trace):
        raise EppError("give either --workload or --trace (`epp lab compare --list` lists the workloads)")
    _check_folder(arguments.out)
    failed: list[str] = []
    if arguments.over_http:
        document, failed = _driven(arguments)
    else:
        document = _simulated(arguments)
    # Before the tables, whose reader may have closed the pipe.
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "results.json").write_bytes(encode(document))
    (arguments.out / "report.html").write_text(report_page(document), encoding="utf-8")
    console.print(*tables(document), *map(Text, headline(document)), sep="\n")
    console.print(f"\nWritten: {arguments.out}/results.json, {arguments.out}/report.html", markup=False)
    for line in failed:
        print(f"epp: {line}", file=sys.stderr)
    return 1 if failed else 0


def _check_folder(folder: Path) -> None:
    """Refuse a folder that cannot be written to, before the runs whose report it is to hold."""
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise EppError(f"--out {folder}: {there} is no folder that can be written to")


def cells_of(arguments: argparse.Namespace) -> list[PlanCell]:
    """Return the cells that the flags ask for.

    Raises:
        EppError: unknown workload.
    """
    cells = []
    tenancy = Tenancy(arguments.tenants, arguments.high_share, arguments.deadline_ms)
    stretch = {"from_s": arguments.from_s, "until_s": arguments.seconds, "tenancy": tenancy}
    names = [name.strip() for name in (arguments.workload or "").split(",") if name.strip()]
    for name in names:
        workload = workload_named(name)
        cell = PlanCell(
            name=name,
            source=Source(workload=name, **stretch),
            time_scale=workload.time_scale,
            max_in_flight=workload.max_in_flight,
            tuning=Source(workload=workload.tuning or name, **stretch),
        )
        cells.append(cell)
    if not names:
        source = Source(
            trace=str(arguments.trace),
            max_prompt_tokens=arguments.max_prompt_tokens,
            tick_ms=arguments.tick_ms,
            **stretch,
            part="judge" if arguments.tune else "all",
        )
        name = Path(arguments.trace).name.split(".")[0]
        cells = [PlanCell(name=name, source=source, tuning=replace(source, part="tune"))]
    if arguments.max_in_flight is not None:
        cells = [replace(cell, max_in_flight=arguments.max_in_flight or None) for cell in cells]
    pickers = PickerOptions(share=arguments.share, delay_ms=arguments.delay_ms, loss=arguments.loss)
    reports = WindowOptions(pickers=pickers)
    cells = [replace(cell, load=arguments.load, warmup_s=arguments.warmup, reports=reports) for cell in cells]
    loads: Sequence[float] = arguments.loads
    return [
        replace(cell, name=f"{cell.name} x {load:g}", load=load) for cell in cells for load in loads
    ] or cells


def policies_of(text: str) -> tuple[PolicyChoice, ...]:
    """Return the policies asked for, in that order, each once.

    Raises:
        EppError: nothing has that name.
    """
    known = (*POLICIES, *ORACLES)
    names: list[str] = []
    for part in (piece.strip() for piece in text.split(",") if piece.strip()):
        if part != "all" and part not in known:
            raise EppError(f"unknown policy {part!r}; one of: {', '.join(known)}")
        names += known if part == "all" else [part]
    return tuple(PolicyChoice(name) for name in dict.fromkeys(names))


def candidate_of(asked: str | None, names: Sequence[str]) -> str:
    """Return the policy that is judged.

    Raises:
        EppError: the one asked for does not run, or is a yardstick.
    """
    if asked is None:
        real = [name for name in names if name not in ORACLES] or list(names)
        usual = () if names[0] == Lodestar.name else CANDIDATES
        return next((name for name in usual if name in real), real[0])
    if asked not in names or asked in ORACLES:
        raise EppError(f"--candidate {asked} is not among what runs: {', '.join(names)}")
    return asked


def _simulated(arguments: argparse.Namespace) -> dict[str, Any]:
    policies = policies_of(arguments.policy)
    candidate = candidate_of(arguments.candidate, [policy.name for policy in policies])
    count = DEFAULT_LEARNED_SEEDS if candidate == Lodestar.name else DEFAULT_SEEDS
    count = arguments.seeds or (1 if arguments.trace else count)
    seeds = range(FIRST_SEED, FIRST_SEED + count)
    fleet, cells = fleet_named(arguments.fleet), cells_of(arguments)
    with progress(sys.stderr) as step:
        tuned = _tuned(cells, policies, fleet, arguments, step)
        chosen = [
            [
                replace(
                    p,
                    pickers=pickers,
                    regions=regions,
                    queue=queue == "on",
                    events=events,
                    weights=found[p.name].weights if p.name in found else p.weights,
                )
                for p in policies
                for pickers in arguments.pickers
                for regions in arguments.regions
                for queue in arguments.queue
                for events in arguments.events
            ]
            for found in tuned
        ]
        # The first seed of all comes first, so that there soon is something to see.
        tasks = [
            (cell, fleet, policy, seed)
            for seed in seeds
            for cell, choices in zip(cells, chosen, strict=True)
            for policy in choices
        ]
        title = f"{len(policies)} policies x {count} seeds x {len(cells)} loads"
        results = _run_all(run_task, tasks, title, arguments.workers, step, say=_first_figures)
    outcomes = {
        (cell.name, policy.label, seed): result
        for (cell, _, policy, seed), result in zip(tasks, results, strict=True)
    }
    judged = next(policy.label for policy in chosen[0] if policy.name == candidate)
    entries = []
    for cell, choices, found in zip(cells, chosen, tuned, strict=True):
        runs = {
            policy.label: [outcomes[cell.name, policy.label, seed] for seed in seeds] for policy in choices
        }
        weights = {policy.label: policy.weights for policy in choices}
        tuning = [asdict(one) for one in found.values()]
        entries.append(
            _entry(cell, runs, weights, seeds[0], judged, by_request=bool(arguments.trace), tuning=tuning)
        )
    return _document(fleet, seeds, judged, entries)


def _run_all(
    work: Callable[..., Any],
    tasks: Sequence[tuple[Any, ...]],
    title: str,
    workers: int,
    step: Step,
    *,
    say: Callable[..., str] = lambda *_: "",
) -> list[Any]:
    """Return results in the order of the tasks; ``say`` is given each result and its task."""
    step(title, 0, len(tasks))
    found: dict[int, Any] = {}
    for at, result in completed(work, tasks, workers=workers):
        found[at] = result
        step(title, len(found), len(tasks), say(result, *tasks[at]))
    return [found[at] for at in range(len(tasks))]


def _first_figures(result: Outcome, cell: PlanCell, _: FleetSpec, policy: PolicyChoice, seed: int) -> str:
    if seed != FIRST_SEED:
        return ""
    ttft_ms, e2e_ms = result.figures.ttft_ms.p95, result.figures.e2e_ms.p95
    return f"{cell.name}, seed {seed}: {policy.label}: TTFT p95 {ttft_ms:,.0f} ms, E2E p95 {e2e_ms:,.0f} ms"


def _tuned(
    cells: Sequence[PlanCell],
    policies: Sequence[PolicyChoice],
    fleet: FleetSpec,
    arguments: argparse.Namespace,
    step: Step,
) -> list[dict[str, Tuned]]:
    """Return what tuning found for each cell, by policy."""
    policies = [policy for policy in policies if arguments.tune and tunable(policy.name)]
    tasks = [(cell, fleet, policy, arguments.tune) for cell in cells for policy in policies]
    title = f"tuning {len(policies)} policies, {arguments.tune} weights each"
    found = iter(_run_all(tune, tasks, title, arguments.workers, step) if tasks else ())
    return [{policy.name: next(found) for policy in policies} for _ in cells]


def _driven(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """Drive gateways; what they did, and a sentence for each that answered nothing."""
    if arguments.tune:
        raise EppError("--tune is for simulated fleets")
    seed, cells, urls = FIRST_SEED, cells_of(arguments), parse_gateways(arguments.over_http)
    candidate = candidate_of(arguments.candidate or next(iter(urls)), [*urls])
    with progress(sys.stderr) as step:
        headers = api_key_headers(arguments.bearer_token_file)
        driven, failed = drive_gateways(cells, urls, seed, model=arguments.model, headers=headers, step=step)
    candidate = candidate if candidate in driven else next(iter(driven))
    entries = [
        _entry(
            cell, {name: [found[at]] for name, found in driven.items()}, {}, seed, candidate, by_request=True
        )
        for at, cell in enumerate(cells)
    ]
    return _document(None, [seed], candidate, entries), failed


def _entry(
    cell: PlanCell,
    outcomes: Mapping[str, Sequence[Outcome]],
    weights: Mapping[str, Mapping[str, float]],
    seed: int,
    candidate: str,
    *,
    by_request: bool,
    tuning: Sequence[dict[str, Any]] = (),
) -> dict[str, Any]:
    """Return the section of one load."""
    roles = {name: "yardstick" if name in ORACLES else "baseline" for name in outcomes} | {
        candidate: "candidate"
    }
    comparisons = compare_policies(outcomes, roles, by_request=by_request)
    lessons = {name: [run.lesson for run in runs if run.lesson] for name, runs in outcomes.items()}
    return {
        "name": cell.name,
        "load": load_entry(cell, seed, outcomes),
        "warmup_s": cell.warmup(cell.source.requests(seed)),
        "policies": [
            policy_entry(name, roles[name], weights.get(name, {}), [run.figures for run in runs])
            for name, runs in outcomes.items()
        ],
        "comparisons": comparisons,
        "tuning": list(tuning),
        "conclusion": [
            *conclusion(comparisons, candidate, MARGIN),
            *(lesson_sentence(name, found) for name, found in lessons.items() if found),
        ],
    }


def _document(
    fleet: FleetSpec | None, seeds: Sequence[int], candidate: str, cells: list[dict[str, Any]]
) -> dict[str, Any]:
    replicas = [
        {
            "address": replica.address,
            "engine_class": replica.engine_class.name,
            "rtt_ms": replica.network.rtt_ms,
            "region": replica.region,
            "lost_hit_share": replica.lost_hit_share,
        }
        for replica in (fleet.replicas if fleet else ())
    ]
    whole = {
        "schema": SCHEMA,
        "made": origin(),
        "fleet": replicas,
        "seeds": list(seeds),
        "candidate": candidate,
    }
    return whole | {"margin": MARGIN, "cells": cells}


def _list(console: Console) -> None:
    listed = {
        "workloads": {workload.name: workload.help for workload in WORKLOADS.values()},
        "fleets": {name: text for name, (text, _) in FLEETS.items()} | {PD_NAMES: ""},
        "policies": dict.fromkeys(POLICIES, ""),
        "yardsticks (see what no picker can)": dict.fromkeys(ORACLES, ""),
    }
    for title, names in listed.items():
        console.print(f"[bold]{title}[/bold]")
        for name, text in names.items():
            console.print(f"  {name:<24}{text}", highlight=False)
