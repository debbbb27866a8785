"""Generated assistant chat with the statistics of Mooncake's conversation trace, prompts up to 24k tokens.

Its figures are of the published trace's rows up to 24k, counted as source [T] counts them. Pure: one numpy
Generator from the given seed.

Shape: Poisson arrivals of conversations, all starting with one template of a block. Most have one request,
the others come back minutes later, when much else has been through the caches: what can be reused depends on
how long a cache remembers. Openings are as long as whole conversations, because the trace begins in the
middle of most. Hence its use: it tests policies that believe in caches more than these can hold.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from epp_lab.workloads.content import Content, Prompt, Quantiles, arrivals

if TYPE_CHECKING:
    from numpy.random import Generator

    from epp_lab.compare.trace import TraceRequest


#: Conversations open so long before the window, so that it begins in a steady state.
_LEAD_S = 1500.0
#: Share of conversations with one request only.
_SINGLE_SHARE = 0.704
#: Mean number of further requests of the others.
_LATER_TURNS = 2.02
#: What every prompt starts with.
_TEMPLATE_TOKENS = 512
#: Length of a conversation's first prompt.
_OPENING_TOKENS = Quantiles(
    ((0, 620), (0.1, 903), (0.25, 1_202), (0.5, 4_532), (0.75, 9_420), (0.9, 15_902), (1, 24_000))
)
#: What the next prompt adds to the one before, answer included.
_ADDED_TOKENS = Quantiles(
    ((0, 20), (0.1, 60), (0.25, 249), (0.5, 460), (0.75, 783), (0.9, 4_342), (0.95, 6_349), (1, 14_000))
)
#: Share of further requests that go on from a part of the prompt before.
_BRANCH_SHARE = 0.14
#: Lowest and highest part kept then.
_BRANCH_KEPT = (0.2, 0.95)
#: From send to send within a conversation.
_GAP_S = Quantiles(
    ((0, 12), (0.1, 39), (0.25, 66), (0.5, 117), (0.75, 255), (0.9, 468), (0.95, 600), (1, 2_000))
)
#: Answer length.
_OUTPUT_TOKENS = Quantiles(
    ((0, 4), (0.1, 25), (0.25, 155), (0.5, 346), (0.75, 467), (0.9, 591), (0.99, 1_022), (1, 1_800))
)
#: A conversation ends before its first longer prompt.
_MAX_PROMPT_TOKENS = 24_000
#: Block size of the ids.
_BLOCK_TOKENS = 512


@dataclass(frozen=True, slots=True)
class MooncakeChat:
    """Parameters; the defaults are half an hour of the trace's rows up to 24k tokens.

    Attributes:
        rate_rps: mean request rate.
        duration_s: requests are sent within it.
        divisor: all lengths are divided by it, blocks too.
    """

    rate_rps: float = 2.96
    duration_s: float = 1800.0
    divisor: int = 1


def generate(parameters: MooncakeChat, seed: int) -> tuple[TraceRequest, ...]:
    """Return the load for a seed, in time order, open loop; equal arguments give equal bytes."""
    p, rng = parameters, np.random.default_rng(seed)
    content = Content(_BLOCK_TOKENS // p.divisor)
    template = content.whole_blocks(_TEMPLATE_TOKENS // p.divisor)
    turns = 1.0 + (1.0 - _SINGLE_SHARE) * _LATER_TURNS
    wanted = p.rate_rps * (p.duration_s + _LEAD_S) / turns
    for number, start_s in enumerate(arrivals(rng, wanted, -_LEAD_S, p.duration_s)):
        name, at_s, last = f"c{number}", start_s, template
        later = 0 if rng.random() < _SINGLE_SHARE else int(rng.geometric(1.0 / _LATER_TURNS))
        for turn in range(1 + later):
            prompt = _next(p, rng, content, last) if turn else _opening(p, rng, content, template)
            if prompt.tokens > _MAX_PROMPT_TOKENS // p.divisor or at_s >= p.duration_s:
                break
            output_tokens = max(1, round(_OUTPUT_TOKENS.draw(rng) / p.divisor))
            if at_s >= 0.0:
                content.send(prompt, at_s=at_s, session=name, user=name, output_tokens=output_tokens)
            last = prompt
            at_s += _GAP_S.draw(rng)
    return content.in_order()


def _opening(p: MooncakeChat, rng: Generator, content: Content, template: Prompt) -> Prompt:
    tokens = max(template.tokens + 16, int(_OPENING_TOKENS.draw(rng) / p.divisor))
    return content.grown(template, tokens, (template.tokens,))


def _next(p: MooncakeChat, rng: Generator, content: Content, last: Prompt) -> Prompt:
    if rng.random() < _BRANCH_SHARE:
        low, high = _BRANCH_KEPT
        trunk = content.cut(last, max(1, int(len(last.ids) * rng.uniform(low, high))))
        return content.grown(trunk, max(trunk.tokens + 16, last.tokens), (trunk.tokens,))
    return content.grown(
        last, last.tokens + max(16, int(_ADDED_TOKENS.draw(rng) / p.divisor)), (last.tokens,)
    )
