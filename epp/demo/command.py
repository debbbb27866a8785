"""`epp demo`: one load, three policies, each on a fresh fleet behind a real Envoy; a change of the pool."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
import msgspec
import uvloop
from rich.console import Console
from rich.live import Live

from epp.config.schema import PolicySection
from epp.demo.load import load_of, unanswered
from epp.demo.output import output
from epp.demo.pool_change import PoolChange, change_pool, pool_table
from epp.demo.recorded import pair, recorded_table
from epp.demo.stack import REGIONS, Stack
from epp.envoy.process import find_envoy
from epp.policies.registry import create
from epp.replay.compare import Metric, compare, interval, sentence
from epp.replay.console import tell
from epp.replay.load import LoadOptions, RequestResult, run_load
from epp.replay.resample import Statistic
from epp.replay.stats import summarise
from epp.replay.table import LiveState, PolicyRun, comparison_table, live_table
from epp.replay.workloads.art_chat import DEMO
from epp.sidecar.paths import WeightsPaths
from epp.tune.session import memory_at
from epp.tune.status import evidence
from epp.tuner.settings import TunerSettings

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from epp.replay.trace import TraceRequest

MODEL = "demo-model"
#: Three loads of this length, three fleets to start and a change of the pool fit into two minutes on two slow
#: cores.
DURATION_S = 16.0
BASELINES = ("least-request", "session-affinity")
#: What the comparison says in words; the table has more.
SAID: tuple[Metric, ...] = ("ttft_ms", "e2e_ms")
_REFRESH_S = 0.25


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    parser.add_argument(
        "--policy", default=PolicySection().name, help="the policy shown live (default: %(default)s)"
    )
    parser.add_argument(
        "--against", default=",".join(BASELINES), help="policies to compare with (default: %(default)s)"
    )
    parser.add_argument(
        "--trace", type=Path, help="replay a Mooncake trace file (.jsonl or .jsonl.gz) instead"
    )
    parser.add_argument("--seconds", type=float, default=DURATION_S, help="length of the load (%(default)s)")
    parser.add_argument("--rate", type=float, default=DEMO.rate_rps, help="requests per second (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the load (default: %(default)s)")
    parser.add_argument(
        "--out", type=Path, default=Path("demo-out"), help="folder for the output (%(default)s)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the demo; 1 where a policy answered nothing. Ctrl-C stops everything that it started."""
    find_envoy()
    requests = load_of(arguments)
    # Each once: a fleet has a folder by its policy's name, and nothing is compared with itself.
    policies = list(dict.fromkeys([arguments.policy, *filter(None, arguments.against.split(","))]))
    for place, name in enumerate(policies):  # now, and not when the runs before it are over
        create(name, source="command line", key="--against" if place else "--policy")
    with output(arguments.out):
        return _show(requests, policies, arguments.out)


def _show(requests: Sequence[TraceRequest], policies: Sequence[str], out: Path) -> int:
    console = Console()
    console.print(
        f"{len(requests)} requests of {len({r.session for r in requests})} conversations, "
        f"{sum(r.prompt_tokens for r in requests):,} prompt tokens, to three simulated replicas: "
        + ", ".join(f"{region.name} ({region.rtt_ms:.0f} ms)" for region in REGIONS)
    )
    try:
        runs, change = uvloop.run(_run_all(requests, policies, out, console))
    except asyncio.CancelledError:
        console.print("stopped")
        return 130
    report(runs, console)
    console.print(recorded_table(pair(out / "records", runs[policies[0]])))
    console.print(pool_table(change))
    for line in tuner_lines(out):
        console.print(line, highlight=False, markup=False)
    console.print(
        f"\nOutput in {out}/: configuration, logs, records, results.\n"
        f"Why did a request go where it went?  epp explain [ID] --records {out}/records\n"
        f"Would it go there again?  epp records verify {out}/records",
        markup=False,
    )
    return tell(unanswered(runs))


def tuner_lines(folder: Path) -> list[str]:
    """What the tuner made of the load: its own status; nothing where the policy has no weights."""
    state = memory_at(WeightsPaths(folder / "weights.yaml")).load()
    if state is None:
        return []
    found = ", ".join(evidence(state, TunerSettings())) or state.reason
    return [
        f"\nThe tuner ran beside it, in phase {state.phase}: {found}.",
        f"What it knows: epp tune status --config {folder}/epp.yaml",
    ]


async def _run_all(
    requests: Sequence[TraceRequest], policies: Sequence[str], folder: Path, console: Console
) -> tuple[dict[str, list[RequestResult]], PoolChange]:
    task = asyncio.current_task()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        if task is not None:
            loop.add_signal_handler(number, task.cancel)
    first, *others = policies
    async with Stack(folder, first, MODEL) as stack:
        runs = {first: await _run_one(requests, first, stack, console)}
        change = await change_pool(stack, MODEL)
    for policy in others:
        async with Stack(folder / policy, policy, MODEL) as stack:
            runs[policy] = await _run_one(requests, policy, stack, console)
    return runs, change


async def _run_one(
    requests: Sequence[TraceRequest], policy: str, stack: Stack, console: Console
) -> list[RequestResult]:
    state = LiveState(title=policy, total=len(requests), regions={r.name: r.name for r in REGIONS})
    with _live(state, console) as live:
        watcher = asyncio.ensure_future(_refresh(stack, state, live))
        try:
            results = await run_load(
                requests,
                LoadOptions(base_url=stack.url, model=MODEL),
                on_send=state.sent,
                on_result=state.result,
            )
        finally:
            watcher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watcher
        live.update(live_table(state))
    (stack.folder / "results.jsonl").write_bytes(msgspec.json.Encoder().encode_lines(results))
    return results


@contextlib.contextmanager
def _live(state: LiveState, console: Console) -> Iterator[Live]:
    """The live table; where it is not live it ends without a line break, whatever ends it."""
    try:
        with Live(live_table(state), console=console, refresh_per_second=4, transient=False) as live:
            yield live
    finally:
        if not console.is_terminal:
            console.print()


async def _refresh(stack: Stack, state: LiveState, live: Live) -> None:
    count, seconds = 0, 0.0
    while True:
        await asyncio.sleep(_REFRESH_S)
        # A picker that somebody kills to see what happens has no figures; its Envoy serves on.
        with contextlib.suppress(aiohttp.ClientError):
            new_count, new_seconds = await stack.decisions()
            if new_count > count:
                state.decision((new_seconds - seconds) / (new_count - count) * 1e6)
            count, seconds = new_count, new_seconds
        live.update(live_table(state))


def report(runs: dict[str, list[RequestResult]], console: Console) -> None:
    """Print the policies side by side, then what may be said of the differences."""
    mean, p95 = Statistic(None), Statistic(95)
    (first, ours), *others = runs.items()
    rows = []
    sentences = []
    for policy, results in runs.items():
        comparisons = [] if policy == first else [compare(ours, results, metric, p95) for metric in SAID]
        rows.append(
            PolicyRun(
                policy,
                summarise(results),
                ttft_p95_interval_ms=interval(results, "ttft_ms", p95),
                e2e_p95_interval_ms=interval(results, "e2e_ms", p95),
                comparisons=comparisons,
            )
        )
    for policy, results in others:
        for metric in SAID:
            sentences += [sentence(first, policy, compare(ours, results, metric, s)) for s in (mean, p95)]
    console.print(comparison_table(rows))
    console.print(
        "Intervals are 95 %, resampled by conversation and by stretches of time, within this one load:"
    )
    for line in sentences:
        console.print(f"  {line}", highlight=False)
