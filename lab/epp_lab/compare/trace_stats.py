"""`epp lab trace`: what a trace is like - lengths, arrivals, sessions, reuse, and what fits in which cache.

These are the measures that workloads are accepted by and that source [T] lists.
"""

from __future__ import annotations

import json
from collections import Counter, deque
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.table import Table

from epp.errors import EppError
from epp_lab.compare.plan import Source, add_window_arguments
from epp_lab.compare.stats import percentile
from epp_lab.workloads.registry import WORKLOADS

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from epp_lab.compare.trace import TraceRequest

_QUANTILES = (10, 25, 50, 75, 90, 95, 99)
SHORT_ROW_TOKENS = 20


def take_in(ids: Sequence[int], tokens: int, block_tokens: int, size_of: dict[int, int]) -> tuple[int, int]:
    """Let a prompt go through a memory of blocks.

    Args:
        ids: its blocks, root first; a block counts under its id whatever comes before it.
        tokens: its length.
        block_tokens: tokens per block; the last one may be partial.
        size_of: the memory: most tokens of each block ever sent; added to.

    Returns:
        Tokens at its start that were there, and tokens that it adds.
    """
    ids = ids[: -(-tokens // block_tokens)]
    known = list(map(size_of.get, ids))
    whole = known.count(block_tokens)
    if known[:whole].count(block_tokens) < whole:
        whole = 0  # not all at the start: look at each
    hits, added, run = min(whole * block_tokens, tokens), 0, True
    left = tokens - whole * block_tokens
    for block_id in ids[whole:]:
        take = min(block_tokens, left)
        there = size_of.get(block_id, 0)
        run = run and there > 0
        if run:
            hits += min(there, take)
            run = there >= take
        if there < take:
            added += take - there
            size_of[block_id] = take
        left -= take
    return hits, added


def cached_tokens(requests: Sequence[TraceRequest], *, by_user: bool = False) -> list[int]:
    """Return, per request, the tokens that an earlier one (of the same user) already had as its prefix."""
    seen: dict[str, dict[int, int]] = {}
    return [
        take_in(r.block_ids, r.prompt_tokens, r.block_tokens, seen.setdefault(r.user if by_user else "", {}))[
            0
        ]
        for r in requests
    ]


def describe(requests: Sequence[TraceRequest]) -> dict[str, float]:
    """Return the figures of a trace in time order; shares are of prompt tokens unless named otherwise.

    Reuse is under unbounded memory. ``gap_cv2`` is the squared coefficient of variation of the times between
    arrivals, 1 for Poisson; ``fano_60s`` the variance over the mean of arrivals per minute, 1 for Poisson.
    """
    at_s = np.array([r.at_ms for r in requests]) / 1000.0
    prompts = np.array([r.prompt_tokens for r in requests], dtype=float)
    cached = np.array(cached_tokens(requests))
    own = np.array(cached_tokens(requests, by_user=True))
    duration_s = float(at_s[-1] - at_s[0])
    gaps = np.diff(at_s)
    gap_mean = float(gaps.mean()) if len(gaps) else 0.0
    minutes = np.bincount(((at_s - at_s[0]) // 60).astype(int))[: int(duration_s // 60)]
    return {
        "requests": len(requests),
        "users": len({r.user for r in requests}),
        "sessions": len({r.session for r in requests}),
        "duration_s": duration_s,
        "rate_rps": len(requests) / duration_s if duration_s else 0.0,
        "input_tokens_per_s": float(prompts.sum()) / duration_s if duration_s else 0.0,
        "prompt_p50_tokens": float(np.percentile(prompts, 50)),
        "prompt_mean_tokens": float(prompts.mean()),
        "prompt_p95_tokens": float(np.percentile(prompts, 95)),
        "output_mean_tokens": float(np.mean([r.output_tokens for r in requests])),
        "reuse_share": float(cached.sum() / prompts.sum()),
        "cross_user_share": float((cached - own).sum() / prompts.sum()),
        "uncached_mean_tokens": float((prompts - cached).mean()),
        "short_row_share": float((prompts <= SHORT_ROW_TOKENS).mean()),
        "gap_cv2": float(gaps.var() / gap_mean**2) if gap_mean else 0.0,
        "fano_60s": float(minutes.var() / minutes.mean()) if len(minutes) > 1 and minutes.mean() else 0.0,
    }


def session_gaps(requests: Sequence[TraceRequest]) -> dict[str, float]:
    """Return times between a session's requests (NaN when none has a second one), and its length."""
    last: dict[str, float] = {}
    gaps = []
    for request in requests:
        if request.session in last:
            gaps.append((request.at_ms - last[request.session]) / 1000.0)
        last[request.session] = request.at_ms
    turns = list(Counter(r.session for r in requests).values())
    return {
        **{f"p{q}_s": percentile(gaps, q) for q in (50, 90, 99)},
        "turns_mean": sum(turns) / len(turns),
        **{f"turns_p{q}": percentile(turns, q) for q in (50, 95)},
        "turns_max": max(turns),
    }


def reuse_share(requests: Sequence[TraceRequest], capacity_tokens: int) -> float:
    """Return the part of all prompt tokens that a trace finds in one cache of a size.

    Whole blocks count, and a block under its own last use: when room is needed the least recently used goes,
    of equally old ones the deepest in its prompt, so that no prefix loses its start before its end.
    """
    last_used: dict[int, int] = {}  # block id -> request
    size_of: dict[int, int] = {}
    queue: deque[list[int]] = deque()  # of requests, the oldest first: the blocks that may still be there
    used = hits = total = 0
    for number, request in enumerate(requests):
        total += request.prompt_tokens
        ids = request.block_ids[: -(-request.prompt_tokens // request.block_tokens)]
        found, added = take_in(ids, request.prompt_tokens, request.block_tokens, size_of)
        hits += found
        used += added
        last_used.update(dict.fromkeys(ids, number))
        queue.append(list(ids))
        while used > capacity_tokens and queue:
            if not queue[0]:
                queue.popleft()
                continue
            block_id = queue[0].pop()
            if last_used.get(block_id) == number + 1 - len(queue):  # else it was used again since
                used -= size_of.pop(block_id)
                del last_used[block_id]
    return hits / total if total else 0.0


# ---- the command ---------------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add = parser.add_argument
    formats = (
        "Mooncake rows, Azure's CSV, canonical records, recorder files or their folder; or the name of a "
        "generated workload"
    )
    add("trace", metavar="FILE", help=formats)
    add_window_arguments(add)
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
        max_prompt_tokens=0,
        tick_ms=arguments.tick_ms,
        from_s=arguments.from_s,
        until_s=arguments.seconds,
    )
    capacities = [parse_tokens(text) for text in arguments.capacity.split(",") if text]
    found = trace_figures(source.requests(0), capacities)
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
