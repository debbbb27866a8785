"""`epp trace stats`: what a trace is like - lengths, reuse, gaps, and what fits in which cache."""

from __future__ import annotations

import json
from dataclasses import asdict
from difflib import get_close_matches
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from epp.errors import EppError
from epp.lab.compare.agent_sessions import SESSIONS
from epp.lab.compare.cache_fit import CAPACITIES_TOKENS, reuse_share, session_gaps
from epp.lab.compare.plan import Source
from epp.lab.compare.stats import percentile
from epp.lab.compare.trace_stats import describe
from epp.lab.workloads.registry import WORKLOADS

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from epp.lab.compare.trace import TraceRequest

_QUANTILES = (10, 25, 50, 75, 90, 95, 99)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    parser.add_argument(
        "trace",
        metavar="FILE",
        help=f"Mooncake rows, agent sessions (the first {SESSIONS}), Azure's CSV, canonical records, "
        "recorder files or their folder; or the name of a generated workload",
    )
    parser.add_argument(
        "--scale", type=int, default=0, help="divide lengths (default: 8 for agent sessions, else 1)"
    )
    parser.add_argument(
        "--max-prompt-tokens", type=int, default=0, help="drop longer prompts (default: keep all)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of what is drawn (default: %(default)s)")
    parser.add_argument(
        "--capacity",
        default=",".join(f"{c // 1_000_000}M" for c in CAPACITIES_TOKENS),
        help="cache sizes in tokens (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print figures as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Print the figures of a trace.

    Raises:
        EppError: no such trace, or a flag that makes no sense.
    """
    for name in ("scale", "max_prompt_tokens", "seed"):
        if getattr(arguments, name) < 0:
            raise EppError(f"--{name.replace('_', '-')} must be at least 0, not {getattr(arguments, name)}")
    is_workload = arguments.trace in WORKLOADS
    if not is_workload and not Path(arguments.trace).exists():
        near = get_close_matches(arguments.trace, WORKLOADS, n=1, cutoff=0.5)
        fix = f"did you mean {near[0]!r}?" if near else f"workloads: {', '.join(sorted(WORKLOADS))}"
        raise EppError(f"{arguments.trace}: neither a file nor a workload ({fix})")
    source = Source(
        workload=arguments.trace if is_workload else "",
        trace="" if is_workload else arguments.trace,
        scale=arguments.scale,
        max_prompt_tokens=arguments.max_prompt_tokens,
    )
    capacities = [parse_tokens(text) for text in arguments.capacity.split(",") if text]
    found = trace_figures(source.requests(arguments.seed), capacities)
    if arguments.json:
        print(json.dumps(found, indent=1, default=str))
    else:
        Console().print(stats_table(arguments.trace, found))
    return 0


def parse_tokens(text: str) -> int:
    """``800k``, ``3M`` or ``983549`` as a number of tokens.

    Raises:
        EppError: it is none of these.
    """
    factor = {"k": 1_000, "m": 1_000_000}.get(text[-1:].lower(), 1)
    digits = text[:-1] if factor > 1 else text
    try:
        tokens = int(float(digits) * factor)
    except (ValueError, OverflowError) as error:  # the latter of inf
        raise EppError(f"{text!r} is not a number of tokens such as 983549, 800k or 3M") from error
    if tokens <= 0:
        raise EppError(f"a cache of {text} holds nothing")
    return tokens


def trace_figures(requests: Sequence[TraceRequest], capacities: Sequence[int]) -> dict[str, Any]:
    """All figures as plain values."""
    prompts = [r.prompt_tokens for r in requests]
    outputs = [r.output_tokens for r in requests]
    with_blocks = sum(bool(r.block_ids) for r in requests)
    return {
        "stats": asdict(describe(requests)),
        "block_tokens": sorted({r.block_tokens for r in requests if r.block_ids}),
        "requests_without_blocks": len(requests) - with_blocks,
        "closed_loop_requests": sum(r.after is not None for r in requests),
        "prompt_tokens": {f"p{q}": percentile(prompts, q) for q in _QUANTILES},
        "output_tokens": {f"p{q}": percentile(outputs, q) for q in _QUANTILES},
        "sessions": asdict(session_gaps(requests)),
        "reuse_by_capacity": {str(c): reuse_share(requests, c) for c in capacities},
    }


def stats_table(name: str, found: dict[str, Any]) -> Table:
    """The figures laid out for people."""
    s, gaps = found["stats"], found["sessions"]
    table = Table(title=name, title_justify="left", show_header=False)
    table.add_column("")
    table.add_column("", justify="right")
    table.add_row("requests, sessions, users", f"{s['requests']:,}  {s['sessions']:,}  {s['users']:,}")
    table.add_row("duration, rate", f"{s['duration_s']:,.0f} s  {s['rate_rps']:.2f}/s")
    table.add_row("prompt tokens per second", f"{s['input_tokens_per_s']:,.0f}")
    table.add_row("arrival gaps CV2, Fano factor of minutes", f"{s['gap_cv2']:.2f}  {s['fano_60s']:.1f}")
    waiting = found["closed_loop_requests"]
    table.add_row("requests that wait for an answer", f"{waiting:,}")
    table.add_section()
    names = " ".join(f"p{q}" for q in _QUANTILES)
    for what in ("prompt_tokens", "output_tokens"):
        values = "  ".join(f"{v:,.0f}" for v in found[what].values())
        table.add_row(f"{what.replace('_', ' ')} {names}", values)
    table.add_row("prompt tokens, mean", f"{s['prompt_mean_tokens']:,.0f}")
    table.add_row("requests of at most 20 tokens", f"{100 * s['short_row_share']:.1f} %")
    table.add_section()
    table.add_row(
        "requests per session mean, p50, p95, max",
        f"{gaps['turns_mean']:.2f}  {gaps['turns_p50']:.0f}  {gaps['turns_p95']:.0f}  {gaps['turns_max']}",
    )
    no_gaps = isnan(gaps["p50_s"])
    times = "-" if no_gaps else "  ".join(f"{gaps[k]:,.1f} s" for k in ("p50_s", "p90_s", "p99_s"))
    table.add_row("gaps in sessions p50, p90, p99", times)
    table.add_section()
    own = s["reuse_share"] - s["cross_user_share"]
    table.add_row("reuse, unlimited memory", f"{100 * s['reuse_share']:.1f} %")
    table.add_row("  within users, across users", f"{100 * own:.1f} %  {100 * s['cross_user_share']:.1f} %")
    table.add_row("tokens new to everybody, per request", f"{s['uncached_mean_tokens']:,.0f}")
    for capacity, share in found["reuse_by_capacity"].items():
        table.add_row(f"reuse, one LRU cache of {_tokens(int(capacity))}", f"{100 * share:.1f} %")
    if found["requests_without_blocks"]:
        table.add_row(
            "requests without prefix data (no reuse is invented)", f"{found['requests_without_blocks']:,}"
        )
    return table


def _tokens(count: int) -> str:
    return f"{count / 1e6:g}M tokens" if count >= 1_000_000 else f"{count / 1e3:g}k tokens"
