"""A burst of requests against a policy: what it picked, with counters that move and scrapes that lag."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tests.kit.fleets import fleet_view, request

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from epp.policies.base import Policy


def burst(
    policy: Policy,
    prefixes: Sequence[str],
    *,
    endpoints: int,
    scrape_every: int = 1_000_000,
    weights: Mapping[str, float] | None = None,
    prompt_tokens: int = 1000,
) -> list[int]:
    """The picks of one request per prefix, none of which ends; ties go to a keyed draw, as in life.

    An endpoint has cached what it was sent. Live columns move with every pick, the engine's with every
    ``scrape_every`` picks; requests start running at once.
    """
    live, scraped = np.zeros(endpoints), np.zeros(endpoints)
    held: list[set[str]] = [set() for _ in range(endpoints)]
    tie = np.random.default_rng(1)
    picks = []
    for number, prefix in enumerate(prefixes):
        if number % scrape_every == 0:
            scraped = live.copy()
        cached = np.array([prompt_tokens if prefix in known else 0 for known in held])
        snapshot = fleet_view(
            endpoints,
            cached_tokens=cached,
            uncached_tokens=prompt_tokens - cached,
            running_requests=live,
            queued_tokens=live * prompt_tokens,
            engine_running=scraped,
            engine_kv_usage=np.minimum(scraped / 100, 1.0),
            engine_used_tokens=scraped * prompt_tokens,
        )
        ask = request(
            f"d-{number}",
            prompt_tokens=prompt_tokens,
            affinity_key=prefix,
            prefix_key=prefix,
            sequence=number,
        )
        costs = policy.rank(ask, snapshot, {**policy.default_weights(), **(weights or {})}, 0).costs
        pick = int(tie.choice(np.flatnonzero(costs == costs.min())))
        live[pick] += 1
        held[pick].add(prefix)
        picks.append(pick)
    return picks
