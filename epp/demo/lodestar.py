"""A picker that learns, end to end: ``python -m epp.demo.lodestar`` (`make demo-lodestar`).

A real Envoy, the picker, `epp learn` beside it and four simulated replicas of two kinds in real time; the
same load under the heuristic alone, and then under `lodestar`, which begins with that heuristic and goes on
with what it learned. Its thresholds are small, so that something is learned within minutes: 250 requests
before the first model, where production has 5,000. Models decide when they have passed the gate, without a
trial, which takes hours. Prints what the learner says, who decided, and both halves of the load side by
side. Two minutes of one load are no evidence that one is better than the other, and it does not say so;
`make bench-lodestar` measures.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import uvloop
from rich.console import Console
from rich.table import Table

from epp.decide.record_files import read_records
from epp.decide.record_schema import join
from epp.demo.load import check_load, unanswered
from epp.demo.lodestar_fleet import KINDS, MODEL, MODEL_FILE, LodestarFleet
from epp.demo.output import output
from epp.envoy.process import find_envoy
from epp.errors import EppError
from epp.learn.status import status_lines
from epp.learner.settings import DataKeys, GateKeys, GuardKeys, LearnerKeys, NetworkKeys
from epp.policies.lodestar import FALLBACKS, Lodestar
from epp.replay.console import tell
from epp.replay.load import LoadOptions, run_load
from epp.replay.stats import percentile
from epp.replay.workloads.tool_agent import ToolAgent, generate
from epp.sidecar.files import Files
from epp.sidecar.paths import ModelPaths

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from epp.replay.load import RequestResult
    from epp.replay.trace import TraceRequest

HEURISTIC = "prefix-cache-and-load"
SETTINGS = LearnerKeys(
    promotion="screen",
    guard=GuardKeys(on=False),  # a turn of the heuristic would be longer than the demo
    network=NetworkKeys(learning_rate=1e-3, min_class_rows=20),
    data=DataKeys(first=250, every=150, recent=1000, replay=500),
    gate=GateKeys(held_out=80, min_effective=20.0),
)
SECONDS, RATE_RPS = 100.0, 8.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo; 1 where a policy answered nothing. Ctrl-C stops everything that it started."""
    arguments = _arguments(argv)
    console = Console()
    try:
        find_envoy()
        check_load(arguments)
        with output(arguments.out):
            return _show(arguments, console)
    except asyncio.CancelledError:
        console.print("stopped")
        return 130
    except EppError as error:
        print(f"epp: {error}", file=sys.stderr)
        return 2


def _show(arguments: argparse.Namespace, console: Console) -> int:
    out = arguments.out
    load = ToolAgent(duration_s=arguments.seconds, rate_rps=arguments.rate, tools=16, agents=12, divisor=4)
    requests = generate(load, arguments.seed)
    if not requests:
        raise EppError("the load is empty: more --seconds, or a higher --rate")
    kinds = ", ".join(f"{kind.count} {kind.engine_class}" for kind in KINDS)
    console.print(f"{len(requests)} calls of tools in {arguments.seconds:.0f} s to {kinds} (simulated)")
    runs = uvloop.run(_run_all(requests, out, console))
    console.print(comparison(runs, arguments.seconds))
    console.print(who_decided(out / Lodestar.name / "records"))
    console.print("\nThe learner says:")
    for line in status_lines(ModelPaths(out / Lodestar.name / MODEL_FILE), Files(), time.time()):
        console.print(f"  {line}", highlight=False)
    console.print(
        f"\nOne load, once: what differs is not shown to be the policy's. Output in {out}/: configuration, "
        f"logs, records, models.\nWhy did a request go where it went?  epp explain --records "
        f"{out}/{Lodestar.name}/records\nLearn from these records again:  epp learn --offline "
        f"{out}/{Lodestar.name}/records --settings {out}/{Lodestar.name}/learner.yaml",
        markup=False,
    )
    return tell(unanswered(runs))


async def _run_all(
    requests: Sequence[TraceRequest], out: Path, console: Console
) -> dict[str, list[RequestResult]]:
    task = asyncio.current_task()
    for number in (signal.SIGINT, signal.SIGTERM):
        if task is not None:
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    return {name: await _run_one(requests, name, out / name, console) for name in (HEURISTIC, Lodestar.name)}


async def _run_one(
    requests: Sequence[TraceRequest], policy: str, folder: Path, console: Console
) -> list[RequestResult]:
    async with LodestarFleet(folder, policy, SETTINGS) as fleet:
        console.print(f"{policy}: sending")
        watcher = asyncio.ensure_future(_told(folder, console))
        try:
            results = await run_load(requests, LoadOptions(base_url=fleet.url, model=MODEL))
        finally:
            watcher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watcher
    (folder / "results.jsonl").write_bytes(msgspec.json.Encoder().encode_lines(results))
    return results


async def _told(folder: Path, console: Console) -> None:
    """Print what the learner logs of its rounds, as it comes."""
    log, shown = folder / "learner.log", 0
    while True:
        await asyncio.sleep(0.5)
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        rounds = [line for line in lines if "round " in line]
        for line in rounds[shown:]:
            console.print(f"  {line[line.index('round ') :].rstrip('}').rstrip(chr(34))}", highlight=False)
        shown = len(rounds)


def comparison(runs: Mapping[str, Sequence[RequestResult]], seconds: float) -> Table:
    """TTFT of both halves of the load under each policy."""
    table = Table(title="TTFT ms: mean, p99")
    for heading in ("policy", "first half", "second half", "failed"):
        table.add_column(heading, justify="left" if heading == "policy" else "right")
    for name, results in runs.items():
        halves: list[list[float]] = [[], []]
        for result in results:
            if result.ok and result.ttft_ms is not None:
                halves[result.intended_ms >= seconds * 500.0].append(result.ttft_ms)
        cells = [f"{sum(h) / len(h):,.0f}, {percentile(h, 99):,.0f}" if h else "-" for h in halves]
        table.add_row(name, *cells, str(sum(not result.ok for result in results)))
    return table


def who_decided(records: Path) -> Table:
    """Decisions on record by what made them, and where these went."""
    counts: dict[str, dict[str, int]] = {}
    classes: dict[str, int] = {}
    for request in join(read_records(records)):
        record = request.decision
        terms, chosen = record["terms"], record["chosen"]
        if "fallback" not in terms:
            continue
        word = FALLBACKS[int(terms["fallback"][chosen])] or "model"
        if terms["explored"][chosen]:
            word = "explored"
        engine_class = record["engine_classes"][chosen]
        classes.setdefault(engine_class, 0)
        row = counts.setdefault(word, {})
        row[engine_class] = row.get(engine_class, 0) + 1
    table = Table(title="who decided, and for whom")
    for heading in ("decided by", "requests", *sorted(classes)):
        table.add_column(heading, justify="left" if heading == "decided by" else "right")
    for word, row in sorted(counts.items(), key=lambda item: -sum(item[1].values())):
        total = sum(row.values())
        table.add_row(word, str(total), *(f"{row.get(name, 0) / total:.0%}" for name in sorted(classes)))
    return table


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="epp.demo.lodestar", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=SECONDS, help="length of the load (%(default)s)")
    parser.add_argument("--rate", type=float, default=RATE_RPS, help="requests per second (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the load (%(default)s)")
    parser.add_argument("--out", type=Path, default=Path("demo-out"), help="folder (%(default)s)")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
