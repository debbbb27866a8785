"""`epp demo --agents`: agents whose contexts outgrow the KV caches, their turns held in the picker and not.

The load was fixed before any run of it. Contexts are twice what the KV caches of three replicas hold:
60 agents of 3,650 tokens each on the mean, beside the prompt that all of them share. A replica fills its
cache in 2.2 s; quantum and age are as many times that as the defaults are of an engine's 40 s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from epp_lab.demo import beside
from epp_lab.demo.beside import Scene
from epp_lab.demo.stack import Replica
from epp_lab.experiments.agents import measures
from epp_lab.workloads.content import Content

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from epp_lab.compare.load import RequestResult
    from epp_lab.compare.trace import TraceRequest

NAMES = ("engine-1", "engine-2", "engine-3")
AGENTS, TURNS, KV_TOKENS = 60, 20, 36_000
#: What all agents send, what each begins with, what a turn and its answer add; pauses after an answer.
_SHARED_TOKENS, _FIRST_TOKENS, _TURN_TOKENS, _OUTPUT_TOKENS, _THINK_S = 1_024, 2_000, 150, 24, (0.5, 1.5)
_LONGEST_S = 120.0
_PROGRAMS = {"enabled": True, "quantum_s": 16.0, "age_s": 6.0, "longest_hold_s": _LONGEST_S}
_SECTIONS: Mapping[str, Any] = {
    "turns are sent at once": {},
    "turns are held": {"queue": {"enabled": True, "ttl_s": _LONGEST_S, "programs": _PROGRAMS}},
}
#: Figures of `measures` that are shown.
SHOWN = ("turns/s", "hits", "TTFT p50 s", "TTFT p95 s", "longest TTFT s", "JCT p50 s", "JCT p95 s", "Jain")


def generate(seed: int) -> tuple[TraceRequest, ...]:
    """Return the load for a seed, in time order, closed loop."""
    rng, content = np.random.default_rng(seed), Content(64)
    shared = content.whole_blocks(_SHARED_TOKENS)
    for number in range(AGENTS):
        name, at_s, after = f"agent-{number}", float(rng.uniform(0.0, 5.0)), None
        prompt = content.grown(shared, shared.tokens + _FIRST_TOKENS, (shared.tokens,))
        for _ in range(TURNS):
            think_s = float(rng.uniform(*_THINK_S)) if after is not None else 0.0
            at_s += think_s
            after = content.send(
                prompt,
                at_s=at_s,
                session=name,
                user=name,
                output_tokens=_OUTPUT_TOKENS,
                after=after,
                think_s=think_s,
            )
            answered = prompt.tokens + _OUTPUT_TOKENS
            prompt = content.grown(prompt, answered + _TURN_TOKENS, (prompt.tokens, answered))
    return content.in_order()


async def show(arguments: argparse.Namespace) -> int:
    """Send the load with turns held and without, and print what came of it."""
    requests = generate(arguments.seed)

    def summed(results: Sequence[RequestResult]) -> dict[str, float]:
        longest_s = max((one.ttft_ms or 0.0) for one in results) / 1e3
        return measures(requests, results) | {"longest TTFT s": longest_s}

    scene = Scene(
        title="Agents whose contexts outgrow the KV caches",
        text=f"{AGENTS} agents of seed {arguments.seed} in closed loop, {TURNS} turns each, before "
        f"{len(NAMES)} simulated replicas of {KV_TOKENS:,} KV tokens, through a real Envoy; "
        "their contexts are twice what the KV caches hold",
        replicas=[Replica(engine, rtt_ms=1.0, kv_tokens=KV_TOKENS) for engine in NAMES],
        sections=_SECTIONS,
        queue_wait_s=_LONGEST_S,
        measures=summed,
        shown=SHOWN,
        verdict=verdict,
    )
    return await beside.show(arguments, scene, requests)


def verdict(found: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Say in words what holding turns does."""
    without, held = found.values()
    longest_s = [each["longest TTFT s"] for each in (held, without)]
    return [
        f"Turns a second are {held['turns/s']:.1f} where turns are held, {without['turns/s']:.1f} else.",
        f"{held['hits']:.0%} of the prompts' tokens are found in KV caches, {without['hits']:.0%} else.",
        f"An agent's job takes {held['JCT p50 s']:.0f} s (p50), {without['JCT p50 s']:.0f} s else.",
        f"A first token takes {longest_s[0]:.0f} s at most, {longest_s[1]:.0f} s else.",
    ]
