"""What of a trace's reuse fits in which cache, and how long reuse takes to come back.

Owns a prefix cache reduced to its order of eviction: least recently used, a prefix's end before its start, as
engines evict. Pure.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from epp.lab.compare.stats import percentile
from epp.lab.compare.trace_stats import take_in

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epp.lab.compare.trace import TraceRequest

#: Capacities that are asked for by default, in tokens.
CAPACITIES_TOKENS = (1_000_000, 3_000_000, 5_000_000, 10_000_000, 20_000_000, 50_000_000)


def reuse_share(requests: Sequence[TraceRequest], capacity_tokens: int) -> float:
    """Part of all prompt tokens found in one cache of that size through which the trace goes in order.

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
        oldest = number + 1 - len(queue)
        while used > capacity_tokens and queue:
            path = queue[0]
            while path and used > capacity_tokens:
                block_id = path.pop()
                if last_used.get(block_id) == oldest:  # else it was used again since
                    used -= size_of.pop(block_id)
                    del last_used[block_id]
            if not path:
                queue.popleft()
                oldest += 1
    return hits / total if total else 0.0


@dataclass(frozen=True, slots=True)
class Gaps:
    """Times between a session's requests, in seconds; NaN when no session has a second one.

    Attributes:
        p50_s: median.
        p90_s: 90th percentile.
        p99_s: 99th percentile.
        turns_mean: requests of a session.
        turns_p50: their median.
        turns_p95: their 95th percentile.
        turns_max: most of one session.
    """

    p50_s: float
    p90_s: float
    p99_s: float
    turns_mean: float
    turns_p50: float
    turns_p95: float
    turns_max: int


def session_gaps(requests: Sequence[TraceRequest]) -> Gaps:
    """Gaps and lengths of sessions, by nominal send times.

    Raises:
        ValueError: the trace is empty.
    """
    if not requests:
        raise ValueError("an empty trace has no sessions")
    last: dict[str, float] = {}
    turns: dict[str, int] = {}
    gaps = []
    for request in requests:
        if request.session in last:
            gaps.append((request.at_ms - last[request.session]) / 1000.0)
        last[request.session] = request.at_ms
        turns[request.session] = turns.get(request.session, 0) + 1
    counts = [float(n) for n in turns.values()]
    return Gaps(
        p50_s=percentile(gaps, 50),
        p90_s=percentile(gaps, 90),
        p99_s=percentile(gaps, 99),
        turns_mean=sum(counts) / len(counts),
        turns_p50=percentile(counts, 50),
        turns_p95=percentile(counts, 95),
        turns_max=int(max(counts)),
    )
