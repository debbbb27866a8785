"""The load of `epp demo`, and what befalls its replicas meanwhile: fixed before any run of it.

Four replicas of one kind, all a millisecond away. The first phase is one in which no picker should be better
than plain balancing. In the others agents fan out: a burst of requests within a third of a second share a
context that is new or was asked for lately. A balancer that spreads a burst has every replica compute its
context; by arithmetic that takes some 85 % of the replicas' time, and half of it where one replica does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from epp_lab.workloads.content import Z95, Content, Lognormal, arrivals

if TYPE_CHECKING:
    from epp_lab.compare.trace import TraceRequest
    from epp_lab.workloads.content import Prompt

SEED = 1
#: Length of a phase's load, and the pause after it, in which what is under way ends.
PHASE_S, PAUSE_S = 7.0, 2.0
REPLICAS = ("engine-1", "engine-2", "engine-3", "engine-4")
#: Who is slow, and how many times as slow; who fails, and who leaves.
SLOW, SLOWDOWN, FAILING, LEAVING = "engine-2", 3.0, "engine-3", "engine-4"


class Phase(NamedTuple):
    """A part of the demo.

    Attributes:
        name: in a word.
        text: what happens in it.
    """

    name: str
    text: str

    @property
    def start_s(self) -> float:
        """When its load begins."""
        return PHASES.index(self) * (PHASE_S + PAUSE_S)


EVEN = Phase("even", "short prompts that share nothing, replicas alike")
BURSTS = Phase("bursts", "bursts of requests, each on a shared prefix")
SLOWED = Phase("slow", f"the same, {SLOW} three times as slow")
FAILED = Phase("failing", f"the same, {FAILING} fails every answer inside a 200")
LEFT = Phase("leaving", f"the same, {LEAVING} leaves the pool as the phase begins")
PHASES = (EVEN, BURSTS, SLOWED, FAILED, LEFT)

_EVEN_PER_S, _EVEN_TOKENS = 8.0, (100, 500)
_BURSTS_PER_S, _SIBLINGS, _SPREAD_S = 2.0, (4, 8), 0.3
#: Share of bursts on a context that is new; the others take one of the last few.
_NEW, _LATELY = 0.5, 8
_CONTEXT_TOKENS, _MOST_TOKENS = Lognormal(6_000.0, 12_000.0, Z95), 14_000.0
_OWN_TOKENS = (200, 600)
_OUTPUT_TOKENS, _BLOCK_TOKENS = 48, 64


def generate(seed: int) -> tuple[TraceRequest, ...]:
    """Return the load for a seed, in time order, open loop; a burst is a session."""
    rng, content = np.random.default_rng(seed), Content(_BLOCK_TOKENS)

    def send(prompt: Prompt, at_s: float, session: str) -> None:
        content.send(prompt, at_s=at_s, session=session, user=session, output_tokens=_OUTPUT_TOKENS)

    for number, at_s in enumerate(arrivals(rng, _EVEN_PER_S * PHASE_S, 0.0, PHASE_S)):
        send(content.fresh(int(rng.integers(*_EVEN_TOKENS))), at_s, f"even-{number}")
    contexts: list[Prompt] = []
    for phase in PHASES[1:]:
        begin_s = phase.start_s
        for number, at_s in enumerate(arrivals(rng, _BURSTS_PER_S * PHASE_S, begin_s, begin_s + PHASE_S)):
            if not contexts or rng.random() < _NEW:
                contexts.append(content.whole_blocks(_CONTEXT_TOKENS.draw_between(rng, 0.0, _MOST_TOKENS)))
                context = contexts[-1]
            else:
                context = contexts[-1 - int(rng.integers(min(_LATELY, len(contexts))))]
            for _ in range(int(rng.integers(_SIBLINGS[0], _SIBLINGS[1] + 1))):
                own = context.tokens + int(rng.integers(*_OWN_TOKENS))
                prompt = content.grown(context, own, (context.tokens,))
                send(prompt, at_s + float(rng.uniform(0.0, _SPREAD_S)), f"{phase.name}-{number}")
    return content.in_order()
