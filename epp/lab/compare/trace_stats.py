"""What a trace is like: lengths, arrivals, sessions, how much of its prompts was seen before, and what fits.

These are the measures that workloads are accepted by and that source [T] lists. Pure.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING

import numpy as np

from epp.lab.compare.stats import percentile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epp.lab.compare.trace import TraceRequest

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
