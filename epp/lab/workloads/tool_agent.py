"""Generated calls of agents and tools with the statistics of Mooncake's toolagent trace, up to 22k tokens.

Owns: the recipe. Its targets are published figures of the trace's 23,608 requests in an hour (source [T];
the rows themselves are not needed): input mean 8,590, quartiles 3,227, 6,345 and 7,470 tokens; of it in
blocks seen more than once a mean of 5,755, quartiles 2,048, 6,144 and 6,144; the rest mean 2,834, quartiles
266, 560 and 1,103; output mean 182, quartiles 13, 30 and 356; 59 % of input reusable. Templates of 12, 5
and 1 blocks of 512 tokens are what was seen of its prefixes. Pure: one numpy Generator from the given seed.

Shape: Poisson arrivals. Most requests are a tool's template, long and always the same, and a little text of
their own; some of them documents that nobody sends again. The others are turns of agents whose context
grows. How many tools there are, and how unequally they are called, is not published: `tools` and `zipf` are
ours. Longer prompts are left out, because the smaller engines here serve none; the means are below the
trace's therefore.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from epp.lab.compare.trace import in_time_order
from epp.lab.workloads.content import Content, Prompt
from epp.lab.workloads.mooncake_chat import Quantiles

if TYPE_CHECKING:
    from numpy.random import Generator

    from epp.lab.compare.trace import TraceRequest


@dataclass(frozen=True, slots=True)
class ToolAgent:
    """Parameters; the defaults are half an hour at the trace's own rate.

    Attributes:
        duration_s: requests are sent within it.
        rate_rps: mean request rate.
        later_rate_rps: the same from ``shift_at`` on; None for no shift.
        shift_at: when it changes, as a part of the duration.
        tools: tools, each with a template.
        zipf: exponent of how calls fall on tools.
        template_blocks: (share of tools, blocks of the template).
        own_tokens: what a call adds to the template, and a turn to its context.
        document_tokens: what a call adds to a template of one block: text to work on, mostly.
        agent_share: share of requests that are turns of agents.
        agents: agents under way at a time.
        agent_turns: mean turns of an agent.
        output_tokens: answer length; 1 for all when ``prefill_only``.
        prefill_only: only first tokens are asked for, as of the prefill side of a disaggregated pool.
        divisor: all lengths are divided by it, blocks too.
        max_prompt_tokens: longer prompts are left out (before the division).
        block_tokens: block size of the ids (before the division).
    """

    duration_s: float = 1800.0
    rate_rps: float = 6.56
    later_rate_rps: float | None = None
    shift_at: float = 0.5
    tools: int = 48
    zipf: float = 1.0
    template_blocks: tuple[tuple[float, int], ...] = ((0.54, 12), (0.16, 5), (0.30, 1))
    own_tokens: Quantiles = Quantiles(  # noqa: RUF009 - frozen
        ((0, 20), (0.25, 230), (0.5, 450), (0.75, 850), (0.9, 2_000), (0.96, 9_000), (1, 40_000))
    )
    document_tokens: Quantiles = Quantiles(  # noqa: RUF009 - frozen
        ((0, 400), (0.25, 1_200), (0.5, 3_500), (0.75, 10_000), (0.9, 20_000), (1, 90_000))
    )
    agent_share: float = 0.18
    agents: int = 40
    agent_turns: float = 8.0
    output_tokens: Quantiles = Quantiles(  # noqa: RUF009 - frozen
        ((0, 1), (0.1, 3), (0.25, 13), (0.5, 30), (0.75, 356), (0.9, 500), (0.97, 780), (1, 2_000))
    )
    prefill_only: bool = False
    divisor: int = 1
    max_prompt_tokens: int = 22_000
    block_tokens: int = 512

    def busier(self, factor: float) -> ToolAgent:
        """The same traffic, so many times as much of it: more of the same agents, the same tools."""
        later = None if self.later_rate_rps is None else self.later_rate_rps * factor
        agents = max(1, round(self.agents * factor))
        return replace(self, rate_rps=self.rate_rps * factor, later_rate_rps=later, agents=agents)


def generate(parameters: ToolAgent, seed: int) -> tuple[TraceRequest, ...]:
    """The load for a seed, in time order, open loop; equal arguments give equal bytes.

    Raises:
        ValueError: the divisor does not divide the block.
    """
    p, rng = parameters, np.random.default_rng(seed)
    if p.block_tokens % p.divisor:
        raise ValueError(f"a divisor of {p.divisor} does not divide blocks of {p.block_tokens} tokens")
    content = Content(p.block_tokens // p.divisor)
    calls = _Calls(p, rng, content)
    requests = []
    for number, at_s in enumerate(_arrivals(p, rng)):
        who, prompt = calls.next()
        output_tokens = 1 if p.prefill_only else max(1, round(p.output_tokens.draw(rng) / p.divisor))
        name = f"t{number}" if who.startswith("tool") else who
        requests.append(
            content.request(prompt, at_s=at_s, session=name, user=who, output_tokens=output_tokens)
        )
    return in_time_order(requests)


def _arrivals(p: ToolAgent, rng: Generator) -> list[float]:
    shift_s = p.duration_s * p.shift_at
    later = p.rate_rps if p.later_rate_rps is None else p.later_rate_rps
    out: list[float] = []
    for start_s, end_s, rate in ((0.0, shift_s, p.rate_rps), (shift_s, p.duration_s, later)):
        count = int(rng.poisson(rate * (end_s - start_s)))
        out += np.sort(rng.uniform(start_s, end_s, size=count)).tolist()
    return out


class _Calls:
    """Whose call comes next, and with which prompt."""

    def __init__(self, p: ToolAgent, rng: Generator, content: Content) -> None:
        self._p, self._rng, self._content = p, rng, content
        self._bounds = np.cumsum(1.0 / np.arange(1, p.tools + 1) ** p.zipf)
        # Sizes follow the popularity in turn, so that each size has its share of the calls under any seed.
        self._templates = [content.fresh(blocks * content.block_tokens) for blocks in _dealt(p, rng)]
        self._agents: list[tuple[str, Prompt]] = []
        self._born = 0

    def next(self) -> tuple[str, Prompt]:
        """User and prompt; one that is too long is drawn again."""
        longest = self._p.max_prompt_tokens // self._p.divisor
        while True:
            if self._rng.random() < self._p.agent_share:
                user, prompt = self._turn(longest)
            else:
                tool = self._tool()
                template = self._templates[tool]
                short = len(template.ids) == 1
                user, prompt = f"tool{tool}", self._grown(template, documents=short)
            if prompt.tokens <= longest:
                return user, prompt

    def _tool(self) -> int:
        return int(np.searchsorted(self._bounds, self._rng.random() * self._bounds[-1]))

    def _grown(self, prompt: Prompt, *, documents: bool = False) -> Prompt:
        lengths = self._p.document_tokens if documents else self._p.own_tokens
        own = max(1, round(lengths.draw(self._rng) / self._p.divisor))
        return self._content.grown(prompt, prompt.tokens + own, (prompt.tokens,))

    def _turn(self, longest: int) -> tuple[str, Prompt]:
        place = int(self._rng.integers(self._p.agents))
        while len(self._agents) <= place:
            self._agents.append(self._agent())
        if self._rng.random() < 1.0 / self._p.agent_turns:
            self._agents[place] = self._agent()
        name, last = self._agents[place]
        prompt = self._grown(last)
        self._agents[place] = self._agent() if prompt.tokens > longest else (name, prompt)
        return name, prompt

    def _agent(self) -> tuple[str, Prompt]:
        self._born += 1
        return f"agent{self._born}", self._templates[self._tool()]


def _dealt(p: ToolAgent, rng: Generator) -> list[int]:
    """Blocks of each tool's template, the most called first: shares of calls as close as they come."""
    weights = 1.0 / np.arange(1, p.tools + 1) ** p.zipf
    owed = np.zeros(len(p.template_blocks))
    shares = np.array([share for share, _ in p.template_blocks])
    out = []
    for weight in weights:
        owed += shares / shares.sum() * weight
        pick = int(np.argmax(owed + 1e-6 * rng.random(len(owed))))
        owed[pick] -= weight
        out.append(p.template_blocks[pick][1])
    return out
