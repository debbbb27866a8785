"""Generated groups of prompts with a set share in common: the loads of Lodestar's evaluation.

Shape, from source [L], section 5.1: groups whose requests share the first part of their prompts, 10, 30, 50
or 70 % of it or all four in equal parts; prompts of 1,000 to 10,000 tokens, answers of a normal
distribution of mean 100 and deviation 10; Poisson arrivals; the distance between two requests of a group,
in requests, is uniform. The number of groups at a time and their lives are not published: `groups` and
`group_requests` are ours. A shift replaces all groups in the middle by ones of another share (5 to 50 %,
section 5.3). `epp_lab.workloads.shared_prefix` makes a drift within lasting groups instead.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from epp_lab.workloads.content import Content, Prompt

if TYPE_CHECKING:
    from numpy.random import Generator

    from epp_lab.compare.trace import TraceRequest

#: Mean number of requests of a group, after which a new one takes its place.
_GROUP_REQUESTS = 60.0
#: Shortest and longest prompt; a group's prompts are of about one length.
_PROMPT_TOKENS = (1_000, 10_000)
#: Mean and standard deviation of answers.
_OUTPUT_TOKENS = (100.0, 10.0)
#: Block size of the ids.
_BLOCK_TOKENS = 128


@dataclass(frozen=True, slots=True)
class PrefixGroups:
    """Parameters.

    Attributes:
        requests: number of requests.
        rate_rps: mean request rate.
        shares: parts of the prompts that groups share; each group takes one of them, all equally often.
        later_shares: the same from the middle on; empty for no shift.
        groups: groups at a time; the mean distance between two requests of one.
    """

    requests: int = 14_000
    rate_rps: float = 7.0
    shares: tuple[float, ...] = (0.5,)
    later_shares: tuple[float, ...] = ()
    groups: int = 48


@dataclass(slots=True)
class _Group:
    """A group under way: its name, what its prompts have in common, and their length."""

    name: str
    common: Prompt
    tokens: int


def generate(parameters: PrefixGroups, seed: int) -> tuple[TraceRequest, ...]:
    """Return the load for a seed, in time order, open loop; equal arguments give equal bytes."""
    p, rng = parameters, np.random.default_rng(seed)
    content = Content(_BLOCK_TOKENS)
    at_s = np.cumsum(rng.exponential(1.0 / p.rate_rps, size=p.requests))
    shares, born = p.shares, 0
    due: list[tuple[float, int, _Group]] = []
    for number in range(p.requests):
        if p.later_shares and number == p.requests // 2:
            shares, due = p.later_shares, []
        while len(due) < p.groups:
            due_at = number + p.groups * rng.random()
            heapq.heappush(due, (due_at, born, _group(rng, content, shares[born % len(shares)], born)))
            born += 1
        group = heapq.heappop(due)[2]
        low, high = _PROMPT_TOKENS
        tokens = int(np.clip(group.tokens * rng.uniform(0.95, 1.05), low, high))
        prompt = content.grown(group.common, max(tokens, group.common.tokens + 1), (group.common.tokens,))
        output = max(1, round(rng.normal(*_OUTPUT_TOKENS)))
        content.send(
            prompt, at_s=float(at_s[number]), session=f"p{number}", user=group.name, output_tokens=output
        )
        if rng.random() >= 1.0 / _GROUP_REQUESTS:
            heapq.heappush(due, (number + rng.uniform(1.0, 2.0 * p.groups), born + number, group))
    return content.in_order()


def _group(rng: Generator, content: Content, share: float, number: int) -> _Group:
    low, high = _PROMPT_TOKENS
    tokens = int(rng.integers(low, high + 1))
    common = round(share * tokens / _BLOCK_TOKENS)
    return _Group(f"g{number}", content.fresh(common * _BLOCK_TOKENS), tokens)
