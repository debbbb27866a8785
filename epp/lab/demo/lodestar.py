"""A picker that learns, end to end: ``python -m epp.lab.demo.lodestar`` (`make demo-lodestar`).

A real Envoy, the picker, `epp learn` beside it and four simulated replicas of two kinds in real time; the
same load under the heuristic alone, and then under `lodestar`, which begins with that heuristic and goes on
with what it learned. Its thresholds are small, so that something is learned within minutes: 250 requests
before the first model, where production has 5,000, and no trial between gate and decision. Two minutes of one
load are no evidence that one is better than the other.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from statistics import fmean
from typing import TYPE_CHECKING

import msgspec
import uvloop
from rich.console import Console
from rich.table import Table

from epp.lab.compare.stats import percentile
from epp.lab.demo.example import example_parser, exit_status, run_example
from epp.lab.demo.stack import Replica, Sidecar, Stack
from epp.lab.workloads.tool_agent import ToolAgent, generate
from epp.learn.reward_model.loop import status_lines
from epp.learn.reward_model.settings import DataKeys, GateKeys, GuardKeys, LearnerKeys, NetworkKeys
from epp.learn.sidecar.process import ModelPaths
from epp.policies.lodestar import FALLBACKS
from epp.records.files import read_records
from epp.records.schema import join

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from pathlib import Path

    from epp.lab.compare.load import RequestResult
    from epp.lab.compare.trace import TraceRequest

#: Some remember prefixes, the slower others do not: the published mixed pool in small.
REPLICAS = tuple(
    Replica(f"{kind}-{number}", engine_class=kind) for kind in ("a30", "v100") for number in (0, 1)
)
SETTINGS = LearnerKeys(
    promotion="screen",
    guard=GuardKeys(on=False),  # a turn of the heuristic would be longer than the demo
    network=NetworkKeys(learning_rate=1e-3, min_class_rows=20),
    data=DataKeys(first=250, every=150, recent=1000, replay=500),
    gate=GateKeys(held_out=80, min_effective=20.0),
)
POLICIES = {
    "prefix-cache-and-load": {},
    "lodestar": {"params": {"min_samples": SETTINGS.data.first}, "model_file": "reward.json"},
}


def main() -> int:
    """Run the demo; 1 where a policy answered nothing."""
    parser = example_parser("lodestar", __doc__)
    parser.add_argument("--seconds", type=float, default=100.0, help="length of the load (%(default)s)")
    return run_example(parser, show)


def show(arguments: argparse.Namespace) -> int:
    """Send the load under each policy and print what came of it."""
    console, out, seconds = Console(), arguments.out, arguments.seconds
    load = ToolAgent(duration_s=seconds, rate_rps=8.0, tools=16, agents=12, divisor=4)
    requests = generate(load, 1)
    console.print(f"{len(requests)} calls of tools in {seconds:.0f} s to two a30 and two v100 (simulated)")
    (out / "learner.yaml").write_bytes(msgspec.yaml.encode(SETTINGS))
    runs = {name: uvloop.run(send(requests, name, out / name)) for name in POLICIES}
    table = Table("policy", "first half", "second half", "failed", title="TTFT ms: mean, p99")
    for name, results in runs.items():
        known = [(r.intended_ms >= seconds * 500.0, r.ttft_ms) for r in results if r.ttft_ms is not None]
        halves = [[ttft_ms for is_late, ttft_ms in known if is_late is late] for late in (False, True)]
        cells = (f"{fmean(half):,.0f}, {percentile(half, 99):,.0f}" if half else "-" for half in halves)
        table.add_row(name, *cells, str(sum(not result.ok for result in results)))
    folder = out / "lodestar"
    console.print(table, who_decided(folder / "records"), "\nThe learner says:")
    log = (folder / "learner.log").read_text(errors="replace").splitlines()
    for line in (line[line.index("round ") :] for line in log if "round " in line):
        console.print(f"  {line}", highlight=False, markup=False)
    for line in status_lines(ModelPaths(folder / "reward.json"), time.time()):
        console.print(f"  {line}", highlight=False)
    console.print(
        f"\nOne load, once: what differs is not shown to be the policy's.\n"
        f"Output in {out}/: configuration, logs, records, models.\n"
        f"Why did a request go where it went?  epp explain --records {folder}/records\n"
        f"Learn from these records again:  epp learn --offline {folder}/records "
        f"--settings {out}/learner.yaml",
        markup=False,
        soft_wrap=True,
    )
    return exit_status(runs)


async def send(requests: Sequence[TraceRequest], policy: str, folder: Path) -> list[RequestResult]:
    """Send the load to a fresh fleet under a policy, with a learner beside the one that learns."""
    settings = str(folder.parent / "learner.yaml")
    learner = Sidecar("learner", ("learn", "--settings", settings), ready="*.status.json")
    sections = {"policy": {"name": policy, **POLICIES[policy]}, "scrape": {"interval_s": 0.1}}
    learns = "model_file" in POLICIES[policy]
    async with Stack(folder, REPLICAS, sections, sidecar=learner if learns else None) as stack:
        return await stack.send(requests)


def who_decided(records: Path) -> Table:
    """Count decisions on record by what made them, and by the kind of replica."""
    counts = Counter[tuple[str, str]]()
    for request in join(read_records(records)):
        terms, chosen = request.decision["terms"], request.decision["chosen"]
        by = FALLBACKS[int(terms["fallback"][chosen])] or "model"
        counts[
            "explored" if terms["explored"][chosen] else by, request.decision["engine_classes"][chosen]
        ] += 1
    kinds = sorted({kind for _, kind in counts})
    table = Table("decided by", *kinds, title="who decided, and for whom")
    for by in sorted({by for by, _ in counts}):
        table.add_row(by, *(str(counts[by, kind]) for kind in kinds))
    return table


if __name__ == "__main__":
    sys.exit(main())
