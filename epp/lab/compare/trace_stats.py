"""What a trace is like: lengths, arrivals, and how much of its prompts was seen before.

Owns: the measures that workloads are accepted by and that source [T] lists. Pure.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epp.lab.compare.trace import TraceRequest

SHORT_ROW_TOKENS = 20


@dataclass(frozen=True, slots=True)
class Reuse:
    """Token-weighted reuse under unbounded memory: the leading run of blocks seen earlier in the trace.

    Attributes:
        cached_tokens: per request, prompt tokens that some earlier request already had as its prefix.
        own_tokens: per request, the part of them that the same user had sent before.
    """

    cached_tokens: tuple[int, ...]
    own_tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TraceStats:
    """A trace in figures; shares are of prompt tokens unless named otherwise.

    Attributes:
        requests: number of requests.
        users: number of different users.
        sessions: number of different sessions.
        duration_s: from the first to the last request.
        rate_rps: requests per second over that time.
        input_tokens_per_s: prompt tokens per second over that time.
        prompt_p50_tokens: median prompt length.
        prompt_mean_tokens: mean prompt length.
        prompt_p95_tokens: 95th percentile of prompt length.
        output_mean_tokens: mean output limit.
        reuse_share: reusable tokens under unbounded memory.
        cross_user_share: reusable tokens that only another user had sent before.
        uncached_mean_tokens: tokens per request that nobody had sent before.
        short_row_share: share of requests with prompts of at most 20 tokens.
        gap_cv2: squared coefficient of variation of the times between arrivals; 1 for Poisson.
        fano_60s: variance over mean of arrivals per minute; 1 for Poisson, 0 when under two minutes.
    """

    requests: int
    users: int
    sessions: int
    duration_s: float
    rate_rps: float
    input_tokens_per_s: float
    prompt_p50_tokens: float
    prompt_mean_tokens: float
    prompt_p95_tokens: float
    output_mean_tokens: float
    reuse_share: float
    cross_user_share: float
    uncached_mean_tokens: float
    short_row_share: float
    gap_cv2: float
    fano_60s: float


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


def measure_reuse(requests: Sequence[TraceRequest]) -> Reuse:
    """Reuse of each request against all earlier ones, in the given order."""
    seen: dict[int, int] = {}
    seen_by_user: defaultdict[str, dict[int, int]] = defaultdict(dict)
    cached, own = [], []
    for request in requests:
        prompt = (request.block_ids, request.prompt_tokens, request.block_tokens)
        cached.append(take_in(*prompt, seen)[0])
        own.append(take_in(*prompt, seen_by_user[request.user])[0])
    return Reuse(tuple(cached), tuple(own))


def describe(requests: Sequence[TraceRequest]) -> TraceStats:
    """Figures of a non-empty trace in time order.

    Raises:
        ValueError: the trace is empty.
    """
    if not requests:
        raise ValueError("an empty trace has no statistics")
    at_s = np.array([r.at_ms for r in requests]) / 1000.0
    prompts = np.array([r.prompt_tokens for r in requests], dtype=float)
    reuse = measure_reuse(requests)
    cached, own = np.array(reuse.cached_tokens), np.array(reuse.own_tokens)
    duration_s = float(at_s[-1] - at_s[0])
    gaps = np.diff(at_s)
    gap_mean = float(gaps.mean()) if len(gaps) else 0.0
    minutes = np.bincount(((at_s - at_s[0]) // 60).astype(int))[: int(duration_s // 60)]
    return TraceStats(
        requests=len(requests),
        users=len({r.user for r in requests}),
        sessions=len({r.session for r in requests}),
        duration_s=duration_s,
        rate_rps=len(requests) / duration_s if duration_s else 0.0,
        input_tokens_per_s=float(prompts.sum()) / duration_s if duration_s else 0.0,
        prompt_p50_tokens=float(np.percentile(prompts, 50)),
        prompt_mean_tokens=float(prompts.mean()),
        prompt_p95_tokens=float(np.percentile(prompts, 95)),
        output_mean_tokens=float(np.mean([r.output_tokens for r in requests])),
        reuse_share=float(cached.sum() / prompts.sum()),
        cross_user_share=float((cached - own).sum() / prompts.sum()),
        uncached_mean_tokens=float((prompts - cached).mean()),
        short_row_share=float((prompts <= SHORT_ROW_TOKENS).mean()),
        gap_cv2=float(gaps.var() / gap_mean**2) if gap_mean else 0.0,
        fano_60s=float(minutes.var() / minutes.mean()) if len(minutes) > 1 and minutes.mean() else 0.0,
    )
