"""`epp demo`: one load, three policies, each on a fresh fleet behind a real Envoy; a change of the pool."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import uvloop
from rich.console import Console
from rich.table import Table

from epp.config.schema import PolicySection
from epp.ops.explain import explain
from epp.policies.registry import create
from epp.records.files import read_records
from epp.records.schema import join
from epp.records.weight_files import WeightsPaths
from epp_lab.compare.compare import compare, comparison_table, sentence
from epp_lab.compare.load import RequestResult, run_load
from epp_lab.compare.measure import figures, from_live
from epp_lab.compare.report import panels
from epp_lab.compare.stats import Statistic, percentile
from epp_lab.compare.trace import TraceRequest
from epp_lab.demo.example import exit_status, output
from epp_lab.demo.stack import REGIONS, Sidecar, Stack
from epp_lab.origin import origin
from epp_lab.page import html, page
from epp_lab.plot import figure
from epp_lab.tuner.status import evidence
from epp_lab.tuner.tuner import read_state
from epp_lab.workloads.art_chat import DEMO, generate

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from rich.console import RenderableType

    from epp_lab.compare.measure import Figures

    Pair = tuple[RequestResult, Mapping[str, Any]]

#: Three loads of this length, three fleets to start and a change of the pool fit into two minutes on two slow
#: cores.
DURATION_S = 16.0
BASELINES = "least-request,session-affinity"
#: Parameters of policies as the paper compares with them.
PARAMS = {"least-request": {"counts": "live"}}
COMPARED = ("ttft_ms", "e2e_ms")
TUNER = Sidecar("tuner", ("tune",), ready="weights.yaml")
#: Facts on record that are shown beside the client's: name, title.
FACTS = (("ttft_ms", "TTFT ms"), ("e2e_ms", "E2E ms"), ("cached_tokens", "cached tokens"))
#: The load while the pool changes, and the length of each of three phases; between them the picker finds the
#: file, and a new replica waits for Envoy to know it and warms up.
RATE_RPS, PHASE_S, TAKEN_S, PUT_IN_S = 10.0, 2.5, 1.0, 3.0
STARTS_S = {"before": 0.0, "without": PHASE_S + TAKEN_S, "again": 2 * PHASE_S + TAKEN_S + PUT_IN_S}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add = parser.add_argument
    add("--policy", default=PolicySection().name, help="the policy shown first (default: %(default)s)")
    add("--against", default=BASELINES, help="policies to compare with (default: %(default)s)")
    add("--seconds", type=float, default=DURATION_S, help="length of the load (%(default)s)")
    add("--seed", type=int, default=1, help="seed of the load (default: %(default)s)")
    add("--out", type=Path, default=Path("demo-out"), help="folder for the output (%(default)s)")


def run(arguments: argparse.Namespace) -> int:
    """Run the demo; 1 where a policy answered nothing. Ctrl-C stops everything that it started."""
    load = replace(DEMO, duration_s=arguments.seconds)
    requests = generate(load, arguments.seed)
    # Each once: a fleet has a folder by its policy's name, and nothing is compared with itself.
    policies = list(dict.fromkeys([arguments.policy, *filter(None, arguments.against.split(","))]))
    for name in policies:  # now, and not when the runs before it are over
        create(name, source="command line", key="--policy or --against")
    with output(arguments.out):
        return uvloop.run(show(requests, policies, arguments.out))


async def show(requests: Sequence[TraceRequest], policies: Sequence[str], out: Path) -> int:
    """Run the load under each policy and print what came of it."""
    console = Console()
    regions = ", ".join(f"{region.name} ({region.rtt_ms:.0f} ms)" for region in REGIONS)
    text = (
        f"{len(requests)} requests of {len({r.session for r in requests})} conversations, "
        f"{sum(r.prompt_tokens for r in requests):,} prompt tokens, to three simulated replicas: {regions}"
    )
    console.print(text)
    runs: dict[str, list[RequestResult]] = {}
    first, *others = policies
    async with fleet(out, first) as stack:
        runs[first] = await stack.send(requests)
        change = await change_pool(stack)
    for policy in others:
        console.print(f"{policy} ...")
        async with fleet(out / policy, policy) as stack:
            runs[policy] = await stack.send(requests)
    counted = np.ones(len(requests), dtype=bool)
    found = {
        policy: figures(from_live(results, len(requests)), requests, counted, pace=1.0)
        for policy, results in runs.items()
    }
    compared = comparison_table(runs, found)
    console.print(compared)
    console.print("Intervals are 95 %, resampled by conversation and by time, within this one load:")
    said = [
        sentence(first, policy, compare(runs[first], runs[policy], metric, statistic))
        for policy in others
        for metric in COMPARED
        for statistic in (Statistic(None), Statistic(95))
    ]
    for each in said:
        console.print(f"  {each}", highlight=False, markup=False)
    recorded, tuner = recorded_table(pair(out / "records", runs[first])), tuner_status(out)
    console.print(recorded, change)
    file = out / "report.html"
    parts: list[RenderableType] = ["\n".join([text, *said]), compared, change, recorded, tuner]
    file.write_text(demo_page(found, parts, out), encoding="utf-8")
    console.print(
        f"{tuner}\nOutput in {out}/: configuration, logs, records, results.\n"
        f"Why did a request go where it went?  epp explain [ID] --records {out}/records\n"
        f"Would it go there again?  epp records verify {out}/records\n"
        f"All of it on one page: {file.absolute().as_uri()}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    return exit_status(runs)


def demo_page(runs: Mapping[str, Figures], parts: Sequence[RenderableType], out: Path) -> str:
    """Write the page that shows the demo: a chart, what was printed, and one decision explained.

    Args:
        runs: what the client saw, by policy; the first is the one that is shown.
        parts: what was printed.
        out: the demo's folder.
    """
    # Among long prompts there is something to choose: what is cached where.
    records = join(read_records(out / "records"))
    asked = [(dict(each.decision), dict(each.outcome)) for each in records if each.outcome is not None]
    longest = max(asked, key=lambda both: int(both[0]["request"]["prompt_tokens"]), default=None)
    why = ("Why the longest prompt went where it went:", *(explain(*longest) if longest else ()))
    charts = panels({policy: asdict(found) for policy, found in runs.items()}, [])
    chart = figure("The same load under each policy, on fresh fleets", charts)
    title = "One load, three regions, several policies"
    return page(title, origin(), chart, *map(html, (*parts, *why)))


def fleet(folder: Path, policy: str) -> Stack:
    """Describe three regions under a policy, with a tuner beside it where it has weights."""
    sections = {
        "pool": {"file": "endpoints.yaml", "warmup_s": 2},
        "policy": {"name": policy, "params": PARAMS.get(policy, {})},
        "weights_file": "weights.yaml",
        "overrides_file": "overrides.yaml",
    }
    return Stack(folder, REGIONS, sections, sidecar=TUNER if create(policy).weight_specs else None)


async def change_pool(stack: Stack) -> Table:
    """Send a steady load and meanwhile take out the replica that serves most, then put it in again.

    Returns:
        Who served before, without it, and with it again.
    """
    served = Counter[str]()
    # Short prompts that share nothing, so that nothing but the pool decides where they go.
    load = [
        TraceRequest(
            at_ms=number / RATE_RPS * 1e3,
            session=f"pool-{number}",
            user=f"pool-{number}",
            prompt_tokens=200,
            output_tokens=16,
            block_ids=(),
            block_tokens=16,
        )
        for number in range(round((STARTS_S["again"] + PHASE_S) * RATE_RPS))
    ]
    async with asyncio.TaskGroup() as group:
        sending = group.create_task(
            run_load(load, stack.load_options(), on_result=lambda result: served.update([result.served_by]))
        )
        await asyncio.sleep(PHASE_S)
        replica = max(stack.endpoints, key=lambda name: served[name])
        stack.write_pool(name for name in stack.endpoints if name != replica)
        await asyncio.sleep(TAKEN_S + PHASE_S)
        stack.write_pool(stack.endpoints)
    results = sending.result()
    failed = sum(not result.ok for result in results)
    table = Table("requests served by", *STARTS_S)
    table.title = (
        f"{replica} taken from the pool file under load, and put in again: "
        f"{f'{failed} requests failed' if failed else 'no request failed'}"
    )
    for name in stack.endpoints:
        begun_s = [r.intended_ms / 1e3 for r in results if r.ok and r.served_by == name]
        counts = (sum(0 <= at_s - start_s < PHASE_S for at_s in begun_s) for start_s in STARTS_S.values())
        table.add_row(name, *map(str, counts))
    return table


def pair(folder: Path, results: Sequence[RequestResult]) -> list[Pair]:
    """Pair results that ended well with the outcome on record, by decision id."""
    outcomes = {request.decision["id"]: request.outcome for request in join(read_records(folder))}
    pairs = ((seen, outcomes.get(seen.decision_id)) for seen in results if seen.ok)
    return [(seen, outcome) for seen, outcome in pairs if outcome is not None]


def both(pairs: Sequence[Pair], fact: str) -> list[tuple[float, float]]:
    """List the client's and the record's values of a fact, where both have one.

    The client counts latencies from the moment at which it should have sent; what it was late with no
    picker can know.
    """
    late = fact in ("ttft_ms", "e2e_ms")
    values = [(getattr(seen, fact), seen.slip_ms, outcome.get(fact)) for seen, outcome in pairs]
    known = [value for value in values if value[0] is not None and value[2] is not None]
    return [(client - slip_ms * late, float(record or 0.0)) for client, slip_ms, record in known]


def recorded_table(pairs: Sequence[Pair]) -> Table:
    """Lay out a row a fact: what is on record, the client's median, and how far they are apart."""
    table = Table("", "p50", "p95", "client p50", "apart p50", "apart p99")
    table.title = f"on record of {len(pairs)} requests, beside the client's own clock"
    for fact, title in FACTS:
        values = both(pairs, fact)
        client, record = [ours for ours, _ in values], [theirs for _, theirs in values]
        apart = [abs(ours - theirs) for ours, theirs in values]
        columns = ((record, 50), (record, 95), (client, 50), (apart, 50), (apart, 99))
        table.add_row(title, *(f"{percentile(of, p):,.1f}" if values else "-" for of, p in columns))
    return table


def tuner_status(folder: Path) -> str:
    """Report what the tuner made of the load: its own status; nothing where the policy has no weights."""
    state = read_state(WeightsPaths(folder / "weights.yaml"))
    if state is None:
        return ""
    found = ", ".join(evidence(state)) or state.reason
    return (
        f"\nThe tuner ran beside it, in phase {state.phase}: {found}.\n"
        f"What it knows: epp tune status --config {folder}/epp.yaml\n"
    )
