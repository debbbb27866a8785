"""Generated calls of agents and tools with the statistics of Mooncake's toolagent trace, up to 22k tokens.

Its targets are published figures of the trace's 23,608 requests in an hour (source [T]; the rows themselves
are not needed): input mean 8,590, quartiles 3,227, 6,345 and 7,470 tokens; of it in blocks seen more than
once a mean of 5,755, quartiles 2,048, 6,144 and 6,144; the rest mean 2,834, quartiles 266, 560 and 1,103;
output mean 182, quartiles 13, 30 and 356; 59 % of input reusable. Templates of 12, 5 and 1 blocks of 512
tokens are what was seen of its prefixes. Pure: one numpy Generator from the given seed.

Shape: Poisson arrivals. Most requests are a tool's template, long and always the same, and a little text of
their own; some of them documents that nobody sends again. The others are turns of agents whose context
grows. How many tools there are, and how unequally they are called, is not published: `tools` and `_ZIPF` are
ours. Longer prompts are left out, because the smaller engines here serve none; the means are below the
trace's therefore.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from epp_lab.workloads.content import Content, Prompt, Quantiles, Zipf, arrivals

if TYPE_CHECKING:
    from numpy.random import Generator

    from epp_lab.compare.trace import TraceRequest

#: Exponent of how calls fall on tools.
_ZIPF = 1.0
#: (share of tools, blocks of the template).
_TEMPLATE_BLOCKS = ((0.54, 12), (0.16, 5), (0.30, 1))
#: What a call adds to the template, and a turn to its context.
_OWN_TOKENS = Quantiles(
    ((0, 20), (0.25, 230), (0.5, 450), (0.75, 850), (0.9, 2_000), (0.96, 9_000), (1, 40_000))
)
#: What a call adds to a template of one block: text to work on, mostly.
_DOCUMENT_TOKENS = Quantiles(
    ((0, 400), (0.25, 1_200), (0.5, 3_500), (0.75, 10_000), (0.9, 20_000), (1, 90_000))
)
#: Share of requests that are turns of agents.
_AGENT_SHARE = 0.18
#: Mean turns of an agent.
_AGENT_TURNS = 8.0
#: Answer length; 1 for all when ``prefill_only``.
_OUTPUT_TOKENS = Quantiles(
    ((0, 1), (0.1, 3), (0.25, 13), (0.5, 30), (0.75, 356), (0.9, 500), (0.97, 780), (1, 2_000))
)
#: Longer prompts are left out (before the division).
_MAX_PROMPT_TOKENS = 22_000
#: Block size of the ids (before the division).
_BLOCK_TOKENS = 512


@dataclass(frozen=True, slots=True)
class ToolAgent:
    """Parameters; the defaults are half an hour at the trace's own rate.

    Attributes:
        duration_s: requests are sent within it.
        rate_rps: mean request rate.
        later_rate_rps: the same from the middle on; None for no shift.
        tools: tools, each with a template.
        agents: agents under way at a time.
        prefill_only: only first tokens are asked for, as of the prefill side of a disaggregated pool.
        divisor: all lengths are divided by it, blocks too.
    """

    duration_s: float = 1800.0
    rate_rps: float = 6.56
    later_rate_rps: float | None = None
    tools: int = 48
    agents: int = 40
    prefill_only: bool = False
    divisor: int = 1


def generate(parameters: ToolAgent, seed: int) -> tuple[TraceRequest, ...]:
    """Return the load for a seed, in time order, open loop; equal arguments give equal bytes."""
    p, rng = parameters, np.random.default_rng(seed)
    content = Content(_BLOCK_TOKENS // p.divisor)
    calls = _Calls(p, rng, content)
    shift_s, later_rps = p.duration_s / 2.0, p.rate_rps if p.later_rate_rps is None else p.later_rate_rps
    times_s = arrivals(rng, p.rate_rps * shift_s, 0.0, shift_s)
    times_s += arrivals(rng, later_rps * (p.duration_s - shift_s), shift_s, p.duration_s)
    for number, at_s in enumerate(times_s):
        who, prompt = calls.next()
        output_tokens = 1 if p.prefill_only else max(1, round(_OUTPUT_TOKENS.draw(rng) / p.divisor))
        name = f"t{number}" if who.startswith("tool") else who
        content.send(prompt, at_s=at_s, session=name, user=who, output_tokens=output_tokens)
    return content.in_order()


class _Calls:
    """Whose call comes next, and with which prompt."""

    def __init__(self, p: ToolAgent, rng: Generator, content: Content) -> None:
        self._p, self._rng, self._content = p, rng, content
        self._tools = Zipf(p.tools, _ZIPF)
        # Sizes follow the popularity in turn, so that each size has its share of the calls under any seed.
        self._templates = [
            content.fresh(blocks * content.block_tokens) for blocks in _dealt(self._tools, rng)
        ]
        self._agents: list[tuple[str, Prompt]] = []
        self._born = 0

    def next(self) -> tuple[str, Prompt]:
        """User and prompt; one that is too long is drawn again."""
        longest = _MAX_PROMPT_TOKENS // self._p.divisor
        while True:
            if self._rng.random() < _AGENT_SHARE:
                user, prompt = self._turn(longest)
            else:
                tool = self._tools.draw(self._rng)
                template = self._templates[tool]
                short = len(template.ids) == 1
                user, prompt = f"tool{tool}", self._grown(template, documents=short)
            if prompt.tokens <= longest:
                return user, prompt

    def _grown(self, prompt: Prompt, *, documents: bool = False) -> Prompt:
        lengths = _DOCUMENT_TOKENS if documents else _OWN_TOKENS
        own = max(1, round(lengths.draw(self._rng) / self._p.divisor))
        return self._content.grown(prompt, prompt.tokens + own, (prompt.tokens,))

    def _turn(self, longest: int) -> tuple[str, Prompt]:
        place = int(self._rng.integers(self._p.agents))
        while len(self._agents) <= place:
            self._agents.append(self._agent())
        if self._rng.random() < 1.0 / _AGENT_TURNS:
            self._agents[place] = self._agent()
        name, last = self._agents[place]
        prompt = self._grown(last)
        self._agents[place] = self._agent() if prompt.tokens > longest else (name, prompt)
        return name, prompt

    def _agent(self) -> tuple[str, Prompt]:
        self._born += 1
        return f"agent{self._born}", self._templates[self._tools.draw(self._rng)]


def _dealt(tools: Zipf, rng: Generator) -> list[int]:
    """Return the blocks of each tool's template, the most called first, by shares of calls."""
    owed = np.zeros(len(_TEMPLATE_BLOCKS))
    shares = np.array([share for share, _ in _TEMPLATE_BLOCKS])
    out = []
    for weight in tools.weights:
        owed += shares / shares.sum() * weight
        pick = int(np.argmax(owed + 1e-6 * rng.random(len(owed))))
        owed[pick] -= weight
        out.append(_TEMPLATE_BLOCKS[pick][1])
    return out
