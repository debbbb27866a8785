"""`epp demo --overload`: more than replicas can serve, with requests that wait in the picker and without.

The load was fixed before any run of it. By the replicas' constants a request takes one of them some 290 ms
where contexts are computed once: 240 ms of prefill, 50 ms of all else. Three serve ten requests a second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from epp_lab.compare.load import objective_of
from epp_lab.demo import beside
from epp_lab.demo.beside import Scene
from epp_lab.demo.stack import Replica
from epp_lab.experiments.queue import measures
from epp_lab.workloads.content import Content, arrivals
from epp_lab.workloads.tenants import Tenancy

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from epp_lab.compare.trace import TraceRequest

NAMES = ("engine-1", "engine-2", "engine-3")
#: How long requests are sent, from when on they count, and how long one waits at most.
LOAD_S, WARMUP_S, TTL_S = 30.0, 5.0, 10.0
#: Requests a second that the replicas can serve, and how many times as many are sent.
CAPACITY, TIMES = 10.0, 1.5
#: The first tenant sends half of it; a fifth of the sessions are of high priority.
SHARED = Tenancy(tenants=4, high_share=0.2)
#: A session: a context that its turns share, two seconds apart, and what each adds.
_TURNS, _PAUSE_S, _CONTEXT_TOKENS, _OWN_TOKENS, _OUTPUT_TOKENS = 4, 2.0, (8_000, 16_000), 1_000, 24
_SECTIONS: Mapping[str, Any] = {
    "without a queue": {},
    "with it": {"queue": {"enabled": True, "ttl_s": TTL_S, "priorities": {objective_of(1): 1}}},
}

#: Figures of `measures` that are shown.
SHOWN = ("high TTFT p95 ms", "low TTFT p95 ms", "Jain", "tokens/ms", "hits", "refused %")


def generate(seed: int) -> tuple[TraceRequest, ...]:
    """Return the load for a seed, in time order, open loop."""
    rng, content = np.random.default_rng(seed), Content(64)
    for number, at_s in enumerate(arrivals(rng, CAPACITY * TIMES * LOAD_S / _TURNS, 0.0, LOAD_S)):
        prompt, name = content.whole_blocks(int(rng.integers(*_CONTEXT_TOKENS))), f"{seed}-{number}"
        for turn in range(_TURNS):
            if (due_s := at_s + turn * _PAUSE_S) < LOAD_S:
                prompt = content.grown(prompt, prompt.tokens + _OWN_TOKENS, (prompt.tokens,))
                content.send(prompt, at_s=due_s, session=name, user=name, output_tokens=_OUTPUT_TOKENS)
    return SHARED.apply(content.in_order())


async def show(arguments: argparse.Namespace) -> int:
    """Send the load without a queue and with it, and print what came of it."""
    requests = generate(arguments.seed)
    at_ms = [request.at_ms for request in requests]
    scene = Scene(
        title="A picker with a queue and without",
        text=f"{len(requests)} requests of seed {arguments.seed} within {LOAD_S:g} s, {TIMES:g} times what "
        f"{len(NAMES)} simulated replicas serve, through a real Envoy; one of four tenants sends half of "
        "them, a fifth are of high priority",
        replicas=[Replica(engine, rtt_ms=1.0) for engine in NAMES],
        sections=_SECTIONS,
        queue_wait_s=TTL_S,
        measures=lambda results: measures(requests, results, at_ms, LOAD_S, WARMUP_S),
        shown=SHOWN,
        verdict=verdict,
        warmup_s=WARMUP_S,
    )
    return await beside.show(arguments, scene, requests)


def verdict(found: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Say in words what the queue does."""
    without, queued = found.values()
    high_s, else_s = (each["high TTFT p95 ms"] / 1e3 for each in (queued, without))
    return [
        f"High priority's TTFT p95 is {high_s:.2f} s with the queue, {else_s:.2f} s without.",
        f"Jain's index of tenants is {queued['Jain']:.3f} with it, {without['Jain']:.3f} without.",
        f"Tokens served a ms are {queued['tokens/ms']:.0f} with it, {without['tokens/ms']:.0f} without.",
        f"Refused are {queued['refused %']:.0f} % with it, {without['refused %']:.0f} % without.",
    ]
