"""`epp lab trace`: what a trace is like - lengths, reuse, gaps, and what fits in which cache."""

from __future__ import annotations

import json
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from epp.errors import EppError
from epp.lab.compare.plan import Source
from epp.lab.compare.stats import percentile
from epp.lab.compare.trace_stats import describe, reuse_share, session_gaps
from epp.lab.workloads.registry import WORKLOADS

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from epp.lab.compare.trace import TraceRequest

_QUANTILES = (10, 25, 50, 75, 90, 95, 99)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add = parser.add_argument
    formats = (
        "Mooncake rows, Azure's CSV, canonical records, recorder files or their folder; or the name of a "
        "generated workload"
    )
    add("trace", metavar="FILE", help=formats)
    add("--scale", type=int, default=1, help="divide lengths")
    add("--max-prompt-tokens", type=int, default=0, help="drop longer prompts (default: keep all)")
    add("--seed", type=int, default=0, help="seed of what is drawn (default: %(default)s)")
    add("--capacity", default="1M,3M,5M,10M,20M,50M", help="cache sizes in tokens (default: %(default)s)")
    add("--json", action="store_true", help="print figures as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Print the figures of a trace.

    Raises:
        EppError: no such trace, or a flag that makes no sense.
    """
    is_workload = arguments.trace in WORKLOADS
    if not is_workload and not Path(arguments.trace).exists():
        known = ", ".join(sorted(WORKLOADS))
        raise EppError(f"{arguments.trace}: neither a file nor a workload (workloads: {known})")
    source = Source(
        workload=arguments.trace if is_workload else "",
        trace="" if is_workload else arguments.trace,
        scale=max(1, arguments.scale),
        max_prompt_tokens=max(0, arguments.max_prompt_tokens),
    )
    capacities = [parse_tokens(text) for text in arguments.capacity.split(",") if text]
    found = trace_figures(source.requests(max(0, arguments.seed)), capacities)
    if arguments.json:
        print(json.dumps(found, indent=1, default=str))
    else:
        Console().print(stats_table(arguments.trace, found))
    return 0


def parse_tokens(text: str) -> int:
    """Read ``800k``, ``3M`` or ``983549`` as a number of tokens.

    Raises:
        EppError: it is none of these.
    """
    factor = {"k": 1_000, "m": 1_000_000}.get(text[-1:].lower(), 1)
    try:
        return max(1, int(float(text[:-1] if factor > 1 else text) * factor))
    except (ValueError, OverflowError) as error:  # the latter of inf
        raise EppError(f"{text!r} is not a number of tokens such as 983549, 800k or 3M") from error


def trace_figures(requests: Sequence[TraceRequest], capacities: Sequence[int]) -> dict[str, Any]:
    """Return all figures as plain values."""
    return {
        "stats": describe(requests),
        "block_tokens": sorted({r.block_tokens for r in requests if r.block_ids}),
        "requests_without_blocks": sum(not r.block_ids for r in requests),
        "closed_loop_requests": sum(r.after is not None for r in requests),
        **{
            what: {f"p{q}": percentile([getattr(r, what) for r in requests], q) for q in _QUANTILES}
            for what in ("prompt_tokens", "output_tokens")
        },
        "sessions": session_gaps(requests),
        "reuse_by_capacity": {str(c): reuse_share(requests, c) for c in capacities},
    }


def stats_table(name: str, found: dict[str, Any]) -> Table:
    """Lay the figures out for people."""
    s, gaps = found["stats"], found["sessions"]
    times = "  ".join(f"{gaps[k]:,.1f} s" for k in ("p50_s", "p90_s", "p99_s"))
    turns = f"{gaps['turns_mean']:.2f}  {gaps['turns_p50']:.0f}  {gaps['turns_p95']:.0f}  {gaps['turns_max']}"
    own = s["reuse_share"] - s["cross_user_share"]
    names = " ".join(f"p{q}" for q in _QUANTILES)
    rows = {
        "requests, sessions, users": f"{s['requests']:,}  {s['sessions']:,}  {s['users']:,}",
        "duration, rate": f"{s['duration_s']:,.0f} s  {s['rate_rps']:.2f}/s",
        "prompt tokens per second": f"{s['input_tokens_per_s']:,.0f}",
        "arrival gaps CV2, Fano factor of minutes": f"{s['gap_cv2']:.2f}  {s['fano_60s']:.1f}",
        "requests that wait for an answer": f"{found['closed_loop_requests']:,}",
        f"prompt tokens {names}": "  ".join(f"{v:,.0f}" for v in found["prompt_tokens"].values()),
        f"output tokens {names}": "  ".join(f"{v:,.0f}" for v in found["output_tokens"].values()),
        "prompt tokens, mean": f"{s['prompt_mean_tokens']:,.0f}",
        "requests of at most 20 tokens": f"{s['short_row_share']:.1%}",
        "requests per session mean, p50, p95, max": turns,
        "gaps in sessions p50, p90, p99": "-" if isnan(gaps["p50_s"]) else times,
        "reuse, unlimited memory": f"{s['reuse_share']:.1%}",
        "  within users, across users": f"{own:.1%}  {s['cross_user_share']:.1%}",
        "tokens new to everybody, per request": f"{s['uncached_mean_tokens']:,.0f}",
        **{
            f"reuse, one LRU cache of {int(capacity):,} tokens": f"{share:.1%}"
            for capacity, share in found["reuse_by_capacity"].items()
        },
        "requests without prefix data (no reuse is invented)": f"{found['requests_without_blocks']:,}",
    }
    table = Table(title=name, title_justify="left", show_header=False)
    table.add_column("")
    table.add_column("", justify="right")
    for heading, text in rows.items():
        table.add_row(heading, text)
    return table
