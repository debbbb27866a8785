"""Generated agent traffic: a planner that fans out into siblings, all starting from one context at once.

Shape: agents arrive as a Poisson process. An agent's context grows step by step; every few steps it fans
out: siblings start within a fraction of a second, share the whole context and add a task each, work for
some turns of their own, and their last answers are folded back into the context. What makes it hard: the
first sibling has not prefilled the common context when the others must be placed. The prefix they share
(tools and system prompt) is partly common to all agents. Lengths follow Claude Code sessions divided by 8
(source [T]: new tokens a turn p50 718 / 8, prefix 15k / 8, output p50 217).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from epp_lab.workloads.content import Z75, Z95, Content, Lognormal, Prompt, arrivals

if TYPE_CHECKING:
    from numpy.random import Generator

    from epp_lab.compare.trace import TraceRequest

#: Lowest and highest number of siblings.
_SIBLINGS = (3, 8)
#: Mean requests of a sibling.
_SIBLING_TURNS = 3.0
#: Siblings start within it.
_SPREAD_S = 0.3
#: Tools and system prompt that all agents share.
_COMMON_TOKENS = 1_400
#: Answers are cut here.
_MAX_OUTPUT_TOKENS = 1_024
#: What an answer is taken to last when nominal send times are set.
_NOMINAL_ANSWER_S = 3.0
#: Block size of the ids.
_BLOCK_TOKENS = 64


@dataclass(frozen=True, slots=True)
class AgentBursts:
    """Parameters.

    Attributes:
        duration_s: agents start within it; what would be sent later is cut off.
        agents_per_min: mean rate of new agents.
        steps: mean number of an agent's own requests.
        fan_out_share: share of steps that are followed by a fan-out.
        context_tokens: an agent's own first context.
        step_tokens: what a step adds beside the answer.
        output_tokens: answer length.
        think_s: pause between an answer and what follows it.
        max_think_s: longer pauses are cut to this.
        max_prompt_tokens: an agent (or sibling) whose prompt would grow beyond stops.
    """

    duration_s: float = 1800.0
    agents_per_min: float = 6.0
    steps: float = 8.0
    fan_out_share: float = 0.35
    context_tokens: Lognormal = Lognormal(3_000.0, 13_000.0, Z95)  # noqa: RUF009 - frozen
    step_tokens: Lognormal = Lognormal(180.0, 1_800.0, Z95)  # noqa: RUF009 - frozen
    output_tokens: Lognormal = Lognormal(150.0, 600.0, Z95)  # noqa: RUF009 - frozen
    think_s: Lognormal = Lognormal(3.0, 40.0, Z95)  # noqa: RUF009 - frozen
    max_think_s: float = 120.0
    max_prompt_tokens: int = 28_000


#: Long sessions of single agents: recorded Claude Code sessions (source [T]) with lengths divided by 8.
SESSIONS = AgentBursts(
    agents_per_min=12.0,
    steps=44.0,
    fan_out_share=0.0,
    context_tokens=Lognormal(2_900.0, 13_200.0, Z75),
    step_tokens=Lognormal(60.0, 1_054.0, Z95),
    output_tokens=Lognormal(27.0, 188.0, Z95),
    think_s=Lognormal(10.0, 472.0, Z95),
    max_think_s=600.0,
    max_prompt_tokens=24_000,
)


def generate(parameters: AgentBursts, seed: int) -> tuple[TraceRequest, ...]:
    """Return the load for a seed, in time order, closed loop; equal arguments give equal bytes."""
    return _Generator(parameters, seed).run()


@dataclass(slots=True)
class _Thread:
    """Where an agent or a sibling stands: its prompt, its last request and that one's nominal end."""

    name: str
    prompt: Prompt
    at_s: float
    after: int | None = None
    think_s: float = 0.0


class _Generator:
    def __init__(self, parameters: AgentBursts, seed: int) -> None:
        self._p = parameters
        self._rng: Generator = np.random.default_rng(seed)
        self._content = Content(_BLOCK_TOKENS)
        self._common = self._content.whole_blocks(_COMMON_TOKENS)

    def run(self) -> tuple[TraceRequest, ...]:
        p, rng = self._p, self._rng
        mean = p.agents_per_min * p.duration_s / 60.0
        for number, start_s in enumerate(arrivals(rng, mean, 0.0, p.duration_s)):
            self._agent(f"a{number}", start_s)
        return self._content.in_order()

    def _agent(self, name: str, start_s: float) -> None:
        p, rng = self._p, self._rng
        room = p.max_prompt_tokens // 2 - self._common.tokens
        tokens = min(room, max(_BLOCK_TOKENS, int(p.context_tokens.draw(rng))))
        prompt = self._content.grown(self._common, self._common.tokens + tokens, (self._common.tokens,))
        agent = _Thread(name, prompt, start_s)
        for _ in range(int(rng.geometric(1.0 / p.steps))):
            answer_tokens = self._send(agent, name)
            if answer_tokens is None:
                return
            if rng.random() < p.fan_out_share:
                answer_tokens += self._fan_out(agent, name, answer_tokens)
            self._continue(agent, answer_tokens)

    def _fan_out(self, agent: _Thread, user: str, answer_tokens: int) -> int:
        """Send siblings from the agent's context; it goes on after the slowest; tokens of their answers."""
        rng = self._rng
        low, high = _SIBLINGS
        folded, slowest = 0, agent
        for number in range(int(rng.integers(low, high + 1))):
            task = _Thread(
                f"{agent.name}/{len(self._content.requests)}.{number}", agent.prompt, agent.at_s, agent.after
            )
            self._continue(task, answer_tokens, think_s=float(rng.uniform(0.0, _SPREAD_S)))
            last: int | None = None
            for _ in range(int(rng.geometric(1.0 / _SIBLING_TURNS))):
                if last is not None:
                    self._continue(task, last)
                last = self._send(task, user)
                if last is None:
                    break
            if last is not None:
                folded += last
                slowest = max(slowest, task, key=lambda thread: thread.at_s)
        agent.at_s, agent.after = slowest.at_s, slowest.after
        return folded

    def _send(self, thread: _Thread, user: str) -> int | None:
        """Send one request; its answer's tokens, or None when the thread has to stop here."""
        p = self._p
        if thread.at_s >= p.duration_s or thread.prompt.tokens > p.max_prompt_tokens:
            return None
        output_tokens = min(_MAX_OUTPUT_TOKENS, max(8, int(p.output_tokens.draw(self._rng))))
        thread.after = self._content.send(
            thread.prompt,
            at_s=thread.at_s,
            session=thread.name,
            user=user,
            output_tokens=output_tokens,
            after=thread.after,
            think_s=thread.think_s,
        )
        thread.at_s += _NOMINAL_ANSWER_S
        return output_tokens

    def _continue(self, thread: _Thread, answer_tokens: int, *, think_s: float | None = None) -> None:
        """Append the answer and a new message; the thread's next request comes after a pause."""
        p = self._p
        thread.think_s = min(p.max_think_s, p.think_s.draw(self._rng)) if think_s is None else think_s
        thread.at_s += thread.think_s
        before = thread.prompt.tokens
        added = max(8, int(p.step_tokens.draw(self._rng)))
        turns = (before, before + answer_tokens)
        thread.prompt = self._content.grown(thread.prompt, before + answer_tokens + added, turns)
