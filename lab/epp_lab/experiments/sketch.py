"""Measure a region's summaries: bytes to each peer at 50 requests a second, and what the sketch gets wrong.

One region's picker decides a workload's requests in virtual time, and what it says is heard by one peer. Its
engines keep 500,000 tokens each, so before half of the load is over they evict. Blocks are of 64 tokens, as
served; what comes in longer ones is cut.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from epp.policies.registry import create
from epp.prefix_cache.index import PrefixIndex
from epp.regions.remote import RemoteRegions, peer_endpoint
from epp.regions.sketch import STRIDE, Sketch
from epp.regions.summary import LEAST_S, Summaries
from epp.schedule.scheduler import Scheduler, SchedulerSettings
from epp.schedule.weights import WeightBook
from epp.signals.datastore import Datastore
from epp.types import Endpoint, RequestInfo
from epp_lab.compare.plan import Source
from epp_lab.experiment import Experiment

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: Workload, and how many times as many users send about 50 requests a second.
WORKLOADS: Mapping[str, tuple[str, float]] = {
    "chat": ("art-chat", 12.0),
    "short chat": ("wild-chat", 4.5),
    "agents": ("agent-sessions", 21.0),
    "bursts of agents": ("agent-bursts", 12.0),
    "tool calls": ("toolagent-like", 2.25),
}
FULL = "100,000 prefixes"
ENTRIES: Mapping[str, int] = {"8 engines": 8, "32 engines": 32}
MEASURES = ("KB/s to a peer", "messages/s", "prefixes", "false hits %", "depth right %", "whole KB")
_REQUESTS, _RATE, _TOKENS, _LASTS_S, _ABSENT = 15_000, 50.0, 64, 4.0, 100_000


def run(cell: str, entry: str, seed: int) -> dict[str, float]:
    """Let a region of so many engines decide a load, and a peer hear of it."""
    if cell == FULL:
        sketch = Sketch()
        held = sum(map(sketch.insert, np.random.default_rng(seed).integers(2**63, size=100_000).tolist()))
        found = (0.0, 0.0, held, _false_hits(sketch), 100.0 * held / 100_000, len(sketch.content()) / 1e3)
        return dict(zip(MEASURES, found, strict=True))
    scheduler, peer = (
        _picker([Endpoint(f"10.0.0.{number}:8000") for number in range(ENTRIES[entry])]),
        Datastore(PrefixIndex()),
    )
    said = Summaries(scheduler.datastore, region="a", origin="a", key_id="")
    heard = RemoteRegions(peer, region="b", key_id="", peers={"a": "a:1"})
    peer.apply([peer_endpoint("a", "a:1")], 0.0)
    under_way: deque[tuple[float, str]] = deque()
    right, before, due_s = list[bool](), (0, 0), 0.0
    for number, request in enumerate(islice(prompts(cell, seed), _REQUESTS)):
        now_s = number / _RATE
        while due_s <= now_s:
            if message := said.make(due_s, due_s):
                heard.hear(message, due_s)
            due_s += LEAST_S
        while under_way and under_way[0][0] <= now_s:
            scheduler.end(under_way.popleft()[1], "completed", now_s)
        if number == _REQUESTS // 2:
            before = said.sent, said.sent_bytes
        if number > _REQUESTS // 2:
            tokens = heard.match(request).cached_tokens(np.zeros(1, np.intp))[0]
            blocks = scheduler.datastore.index.match(request).depth_blocks // STRIDE * STRIDE
            right.append(tokens == request.tokens_before(blocks))
        decision = scheduler.decide(request, now_s, now_s)
        scheduler.first_token(decision.id, now_s)
        under_way.append((now_s + _LASTS_S, decision.id))
    seconds = _REQUESTS / 2 / _RATE
    found = (
        (said.sent_bytes - before[1]) / 1e3 / seconds,
        (said.sent - before[0]) / seconds,
        said.sketch.entries,
        _false_hits(said.sketch),
        100.0 * float(np.mean(right)),
        len(said.whole()) / 1e3,
    )
    return dict(zip(MEASURES, found, strict=True))


def prompts(cell: str, seed: int) -> Iterator[RequestInfo]:
    """Make a cell's requests, in blocks of 64 tokens."""
    name, users = WORKLOADS[cell]
    for one in Source(workload=name, rate=users).requests(seed):
        parts = one.block_tokens // _TOKENS
        blocks = [_mix(block * parts + part) for block in one.block_ids for part in range(parts)]
        full = blocks[: one.prompt_tokens // _TOKENS]
        yield RequestInfo(prompt_tokens=one.prompt_tokens, blocks=full, block_tokens=float(_TOKENS))


def _picker(pool: list[Endpoint]) -> Scheduler:
    policy, numbers = create("gorgo-ms"), iter(range(_REQUESTS))
    scheduler = Scheduler(
        datastore=Datastore(PrefixIndex()),
        policy=policy,
        balance=create("least-request"),
        weights=WeightBook(
            policy=policy.name, specs=policy.weight_specs, configured={}, bounds={}, source=""
        ),
        settings=SchedulerSettings(),
        new_id=lambda: str(next(numbers)),
    )
    scheduler.set_pool(pool, 0.0)
    return scheduler


def _false_hits(sketch: Sketch) -> float:
    """Return the share of absent blocks that it takes for held, in percent."""
    absent = np.random.default_rng(2**32).integers(2**63, size=_ABSENT).tolist()
    return 100.0 * sum(block in sketch for block in absent) / _ABSENT


def _mix(block: int) -> int:
    """Spread an id over 64 bits."""
    block = (block ^ block >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    return (block ^ block >> 27) * 0x94D049BB133111EB % 2**64


EXPERIMENT = Experiment(
    question="What does a region send each peer at 50 requests a second, and how right is its sketch?",
    cells=(FULL, *WORKLOADS),
    entries=ENTRIES,
    run=run,
    seeds=3,
    ranges=MEASURES,
    minutes=3.5,
)
