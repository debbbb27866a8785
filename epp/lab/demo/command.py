"""`epp demo`: one load, three policies, each on a fresh fleet behind a real Envoy; a change of the pool."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import uvloop
from rich.console import Console

from epp.config.schema import PolicySection
from epp.lab.compare.compare import compare, sentence
from epp.lab.compare.load import LoadOptions, RequestResult, run_load
from epp.lab.compare.resample import Statistic
from epp.lab.compare.table import comparison_table
from epp.lab.demo.example import at_least, end_like_ctrl_c, output
from epp.lab.demo.load import exit_status, load_of
from epp.lab.demo.pool_change import change_pool
from epp.lab.demo.recorded import pair, recorded_table
from epp.lab.demo.stack import MODEL, REGIONS, Sidecar, Stack
from epp.lab.workloads.art_chat import DEMO
from epp.learn.sidecar.paths import WeightsPaths
from epp.learn.tuner.status import evidence
from epp.learn.tuner.tuner import read_memory
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
COMPARED = ("ttft_ms", "e2e_ms")
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
    console.print(f"{policy}: {len(requests)} requests", highlight=False)
    results = await run_load(requests, LoadOptions(base_url=stack.url, model=MODEL))
    (stack.folder / "results.jsonl").write_bytes(msgspec.json.Encoder().encode_lines(results))
    return results


def _compare(runs: dict[str, list[RequestResult]], console: Console) -> None:
    """Print the policies side by side, then what may be said of the differences."""
    console.print(comparison_table(runs))
    console.print(
        "Intervals are 95 %, resampled by conversation and by stretches of time, within this one load:"
    )
    (first, ours), *others = runs.items()
    for policy, results in others:
        for metric in COMPARED:
            for q in (None, 95):
                found = compare(ours, results, metric, Statistic(q))
                console.print(f"  {sentence(first, policy, found)}", highlight=False)


def _tuner_says(folder: Path) -> str:
    """Report what the tuner made of the load: its own status; nothing where the policy has no weights."""
    memory = read_memory(WeightsPaths(folder / "weights.yaml"))
    if memory is None:
        return ""
    state = memory.state
    found = ", ".join(evidence(state)) or state.reason
    return (
        f"\nThe tuner ran beside it, in phase {state.phase}: {found}.\n"
        f"What it knows: epp tune status --config {folder}/epp.yaml\n"
    )
