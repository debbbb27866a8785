"""Generated assistant chat with the statistics of Mooncake's conversation trace, prompts up to 24k tokens.

Owns: the recipe; its figures are of the published trace's rows up to 24k, counted as source [T] counts them.
Pure: one numpy Generator from the given seed.

Shape: Poisson arrivals of conversations, all starting with one template of a block. Most have one request,
the others come back minutes later, when much else has been through the caches: what can be reused depends on
how long a cache remembers. Openings are as long as whole conversations, because the trace begins in the
middle of most. Hence its use: it tests policies that believe in caches more than these can hold.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from epp.lab.compare.trace import in_time_order
from epp.lab.workloads.content import Content, Prompt

if TYPE_CHECKING:
    from numpy.random import Generator

    from epp.lab.compare.trace import TraceRequest


@dataclass(frozen=True, slots=True)
class Quantiles:
    """A distribution by (share below, value) points, log-linear in between.

    Attributes:
        points: ascending in both, from share 0 to share 1.
    """

    points: tuple[tuple[float, float], ...]

    def draw(self, rng: Generator) -> float:
        """One value."""
        shares, values = zip(*self.points, strict=True)
        return float(np.exp(np.interp(rng.random(), shares, np.log(values))))


@dataclass(frozen=True, slots=True)
class MooncakeChat:
    """Parameters; the defaults are half an hour of the trace's rows up to 24k tokens.

    Attributes:
        duration_s: requests are sent within it.
        rate_rps: mean request rate.
        lead_s: conversations open so long before the window, so that it begins in a steady state.
        single_share: share of conversations with one request only.
        later_turns: mean number of further requests of the others.
        template_tokens: what every prompt starts with.
        opening_tokens: length of a conversation's first prompt.
        added_tokens: what the next prompt adds to the one before, answer included.
        branch_share: share of further requests that go on from a part of the prompt before.
        branch_kept: lowest and highest part kept then.
        gap_s: from send to send within a conversation.
        output_tokens: answer length.
        max_prompt_tokens: a conversation ends before its first longer prompt.
        block_tokens: block size of the ids.
    """

    duration_s: float = 1800.0
    rate_rps: float = 2.96
    lead_s: float = 1500.0
    single_share: float = 0.704
    later_turns: float = 2.02
    template_tokens: int = 512
    opening_tokens: Quantiles = Quantiles(
        ((0, 620), (0.1, 903), (0.25, 1_202), (0.5, 4_532), (0.75, 9_420), (0.9, 15_902), (1, 24_000))
    )
    added_tokens: Quantiles = Quantiles(
        ((0, 20), (0.1, 60), (0.25, 249), (0.5, 460), (0.75, 783), (0.9, 4_342), (0.95, 6_349), (1, 14_000))
    )
    branch_share: float = 0.14
    branch_kept: tuple[float, float] = (0.2, 0.95)
    gap_s: Quantiles = Quantiles(
        ((0, 12), (0.1, 39), (0.25, 66), (0.5, 117), (0.75, 255), (0.9, 468), (0.95, 600), (1, 2_000))
    )
    output_tokens: Quantiles = Quantiles(
        ((0, 4), (0.1, 25), (0.25, 155), (0.5, 346), (0.75, 467), (0.9, 591), (0.99, 1_022), (1, 1_800))
    )
    max_prompt_tokens: int = 24_000
    block_tokens: int = 512

    def busier(self, factor: float) -> MooncakeChat:
        """So many times as many conversations, each as before."""
        return replace(self, rate_rps=self.rate_rps * factor)


def generate(parameters: MooncakeChat, seed: int) -> tuple[TraceRequest, ...]:
    """The load for a seed, in time order, open loop; equal arguments give equal bytes."""
    p, rng = parameters, np.random.default_rng(seed)
    content = Content(p.block_tokens)
    template = content.whole_blocks(p.template_tokens)
    turns = 1.0 + (1.0 - p.single_share) * p.later_turns
    wanted = p.rate_rps * (p.duration_s + p.lead_s) / turns
    starts = rng.uniform(-p.lead_s, p.duration_s, size=int(rng.poisson(wanted)))
    requests: list[TraceRequest] = []
    for number, start_s in enumerate(np.sort(starts)):
        name = f"c{number}"
        at_s, last = float(start_s), template
        later = 0 if rng.random() < p.single_share else int(rng.geometric(1.0 / p.later_turns))
        for turn in range(1 + later):
            prompt = _next(p, rng, content, last) if turn else _opening(p, rng, content, template)
            if prompt.tokens > p.max_prompt_tokens or at_s >= p.duration_s:
                break
            output_tokens = round(p.output_tokens.draw(rng))
            if at_s >= 0.0:
                requests.append(
                    content.request(prompt, at_s=at_s, session=name, user=name, output_tokens=output_tokens)
                )
            last = prompt
            at_s += p.gap_s.draw(rng)
    return in_time_order(requests)


def _opening(p: MooncakeChat, rng: Generator, content: Content, template: Prompt) -> Prompt:
    tokens = max(template.tokens + 16, int(p.opening_tokens.draw(rng)))
    return content.grown(template, tokens, (template.tokens,))


def _next(p: MooncakeChat, rng: Generator, content: Content, last: Prompt) -> Prompt:
    if rng.random() < p.branch_share:
        low, high = p.branch_kept
        kept = max(1, int(len(last.ids) * rng.uniform(low, high)))
        start = kept * p.block_tokens
        trunk = Prompt(last.ids[:kept], start, tuple(t for t in last.turns if t < start))
        return content.grown(trunk, max(start + 16, last.tokens), (start,))
    return content.grown(last, last.tokens + max(16, int(p.added_tokens.draw(rng))), (last.tokens,))
