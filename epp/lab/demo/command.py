"""`epp demo`: one load, three policies, each on a fresh fleet behind a real Envoy; a change of the pool."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import uvloop
from rich.console import Console
from rich.live import Live

from epp.config.schema import PolicySection
from epp.lab.compare.compare import Metric, compare, interval, sentence
from epp.lab.compare.load import LoadOptions, RequestResult, run_load
from epp.lab.compare.resample import Statistic
from epp.lab.compare.stats import summarise
from epp.lab.compare.table import LiveState, PolicyRun, comparison_table, live_table
from epp.lab.demo.example import at_least, end_like_ctrl_c, output
from epp.lab.demo.load import exit_status, load_of
from epp.lab.demo.pool_change import change_pool
from epp.lab.demo.recorded import pair, recorded_table
from epp.lab.demo.stack import MODEL, REGIONS, Sidecar, Stack
from epp.lab.workloads.art_chat import DEMO
from epp.learn.sidecar.paths import WeightsPaths
from epp.learn.tuner.session import memory_at
from epp.learn.tuner.settings import TunerSettings
from epp.learn.tuner.status_command import evidence
from epp.policies.registry import create

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from rich.table import Table

    from epp.lab.compare.trace import TraceRequest

#: Three loads of this length, three fleets to start and a change of the pool fit into two minutes on two slow
#: cores.
DURATION_S = 16.0
BASELINES = ("least-request", "session-affinity")
COMPARED: tuple[Metric, ...] = ("ttft_ms", "e2e_ms")
TUNER = Sidecar("tuner", ("tune",), ready="weights.yaml")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add = parser.add_argument
    add("--policy", default=PolicySection().name, help="the policy shown first (default: %(default)s)")
    add("--against", default=",".join(BASELINES), help="policies to compare with (default: %(default)s)")
    add("--trace", type=Path, help="replay a Mooncake trace file (.jsonl or .jsonl.gz) instead")
    add("--seconds", type=at_least(0.1), default=DURATION_S, help="length of the load (%(default)s)")
    add("--rate", type=at_least(0.1), default=DEMO.rate_rps, help="requests per second (%(default)s)")
    add("--seed", type=at_least(0), default=1, help="seed of the load (default: %(default)s)")
    add("--out", type=Path, default=Path("demo-out"), help="folder for the output (%(default)s)")


def run(arguments: argparse.Namespace) -> int:
    """Run the demo; 1 where a policy answered nothing. Ctrl-C stops everything that it started."""
    end_like_ctrl_c()
    requests = load_of(arguments)
    # Each once: a fleet has a folder by its policy's name, and nothing is compared with itself.
    policies = list(dict.fromkeys([arguments.policy, *filter(None, arguments.against.split(","))]))
    for place, name in enumerate(policies):  # now, and not when the runs before it are over
        create(name, source="command line", key="--against" if place else "--policy")
    with output(arguments.out):
        return _show(requests, policies, arguments.out)


def fleet(folder: Path, policy: str) -> Stack:
    """Describe three regions under a policy, with a tuner beside it where it has weights."""
    sections = {
        "pool": {"file": "endpoints.yaml", "warmup_s": 2},
        "policy": {"name": policy},
        "weights_file": "weights.yaml",
        "overrides_file": "overrides.yaml",
    }
    return Stack(folder, REGIONS, sections, sidecar=TUNER if create(policy).weight_specs else None)


def _show(requests: Sequence[TraceRequest], policies: Sequence[str], out: Path) -> int:
    console = Console()
    console.print(
        f"{len(requests)} requests of {len({r.session for r in requests})} conversations, "
        f"{sum(r.prompt_tokens for r in requests):,} prompt tokens, to three simulated replicas: "
        + ", ".join(f"{region.name} ({region.rtt_ms:.0f} ms)" for region in REGIONS)
    )
    runs, change = uvloop.run(_run_all(requests, policies, out, console))
    _compare(runs, console)
    console.print(recorded_table(pair(out / "records", runs[policies[0]])))
    console.print(change)
    console.print(
        f"{_tuner_says(out)}\nOutput in {out}/: configuration, logs, records, results.\n"
        f"Why did a request go where it went?  epp explain [ID] --records {out}/records\n"
        f"Would it go there again?  epp records verify {out}/records",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    return exit_status(runs)


async def _run_all(
    requests: Sequence[TraceRequest], policies: Sequence[str], out: Path, console: Console
) -> tuple[dict[str, list[RequestResult]], Table]:
    first, *others = policies
    async with fleet(out, first) as stack:
        runs = {first: await _run_one(requests, first, stack, console)}
        change = await change_pool(stack)
    for policy in others:
        async with fleet(out / policy, policy) as stack:
            runs[policy] = await _run_one(requests, policy, stack, console)
    return runs, change


async def _run_one(
    requests: Sequence[TraceRequest], policy: str, stack: Stack, console: Console
) -> list[RequestResult]:
    state = LiveState(title=policy, total=len(requests), regions={r.name: r.name for r in REGIONS})
    options = LoadOptions(base_url=stack.url, model=MODEL)
    try:
        with Live(console=console, get_renderable=lambda: live_table(state)):
            results = await run_load(requests, options, on_send=state.sent, on_result=state.result)
    finally:
        if not console.is_terminal:  # where nothing is live, the table ends without a line break
            console.print()
    (stack.folder / "results.jsonl").write_bytes(msgspec.json.Encoder().encode_lines(results))
    return results


def _compare(runs: dict[str, list[RequestResult]], console: Console) -> None:
    """Print the policies side by side, then what may be said of the differences."""
    mean, p95 = Statistic(None), Statistic(95)
    rows = [
        PolicyRun(
            policy,
            summarise(results),
            ttft_p95_interval_ms=interval(results, "ttft_ms", p95),
            e2e_p95_interval_ms=interval(results, "e2e_ms", p95),
        )
        for policy, results in runs.items()
    ]
    console.print(comparison_table(rows))
    console.print(
        "Intervals are 95 %, resampled by conversation and by stretches of time, within this one load:"
    )
    (first, ours), *others = runs.items()
    for policy, results in others:
        for metric in COMPARED:
            for statistic in (mean, p95):
                found = compare(ours, results, metric, statistic)
                console.print(f"  {sentence(first, policy, found)}", highlight=False)


def _tuner_says(folder: Path) -> str:
    """Report what the tuner made of the load: its own status; nothing where the policy has no weights."""
    state = memory_at(WeightsPaths(folder / "weights.yaml")).load()
    if state is None:
        return ""
    found = ", ".join(evidence(state, TunerSettings())) or state.reason
    return (
        f"\nThe tuner ran beside it, in phase {state.phase}: {found}.\n"
        f"What it knows: epp tune status --config {folder}/epp.yaml\n"
    )
