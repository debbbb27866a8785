"""Generated short public chat: many strangers, few requests each, content shared between users.

The recipe is that of source [T], last paragraph, with the figures of its table 6.1. Pure: all randomness
comes from one numpy Generator made from the given seed.

Shape: Poisson arrivals of users who send one or two requests each. Some prompts start with a preamble that
everybody's share, some repeat a popular prompt word for word; few of a user's further requests go on from the
one before, most are new prompts: of the published tokens under 5 % are a user's own once more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from epp_lab.workloads.content import Z90, Content, Lognormal, Prompt, Zipf, arrivals

if TYPE_CHECKING:
    from epp_lab.compare.trace import TraceRequest

#: Requests are sent within it.
_DURATION_S = 1800.0
#: Mean requests of a user (1.74 per address published).
_REQUESTS_PER_USER = 1.7
#: Length of a prompt.
_PROMPT_TOKENS = Lognormal(380.0, 1_650.0, Z90)
#: Longer prompts are cut.
_MAX_PROMPT_TOKENS = 16_000
#: Share of users whose prompts start with the common preamble.
_PREAMBLE_SHARE = 0.30
#: Its length.
_PREAMBLE_TOKENS = 300
#: Share of a user's further requests that extend the one before.
_FOLLOW_SHARE = 0.08
#: Share of new prompts that repeat a popular one; cross-user reuse comes to the published 28 %.
_DUPLICATE_SHARE = 0.21
#: How many popular prompts there are; which is repeated follows Zipf's law.
_POPULAR = 40
#: Their typical length.
_POPULAR_TOKENS = 900
#: Answer length (mean 329 and 312 in the published windows).
_OUTPUT_TOKENS = Lognormal(230.0, 700.0, Z90)
#: Answers are cut here.
_MAX_OUTPUT_TOKENS = 1_024
#: What a second request adds beside the answer.
_MESSAGE_TOKENS = Lognormal(40.0, 190.0, Z90)
#: Pause between requests of a user.
_GAP_S = Lognormal(20.0, 90.0, Z90)
#: Block size of the ids.
_BLOCK_TOKENS = 64


@dataclass(frozen=True, slots=True)
class WildChat:
    """Parameters; the defaults are the published replay window: 30 minutes at 11.4 requests per second.

    Attributes:
        rate_rps: mean request rate.
        lengths: multiplies lengths of prompts; 3.75 for the whole data set's mean of 2,925 tokens.
    """

    rate_rps: float = 11.4
    lengths: float = 1.0


def generate(parameters: WildChat, seed: int) -> tuple[TraceRequest, ...]:
    """Return the load for a seed, in time order; equal arguments give equal bytes."""
    p, rng = parameters, np.random.default_rng(seed)
    content = Content(_BLOCK_TOKENS)
    preamble = content.whole_blocks(p.lengths * _PREAMBLE_TOKENS)
    # Prompts that many send are of ordinary length: one alone must not decide the statistics.
    low, high = 0.75 * _POPULAR_TOKENS, 1.33 * _POPULAR_TOKENS
    lengths = [int(p.lengths * _PROMPT_TOKENS.draw_between(rng, low, high)) for _ in range(_POPULAR)]
    popular = [content.grown(Prompt(), tokens, (0,)) for tokens in lengths]
    popularity = Zipf(_POPULAR)
    users = p.rate_rps * _DURATION_S / _REQUESTS_PER_USER
    for user, start_s in enumerate(arrivals(rng, users, 0.0, _DURATION_S)):
        at_s, prompt, name = start_s, Prompt(), f"w{user}"
        for turn in range(int(rng.geometric(1.0 / _REQUESTS_PER_USER))):
            output_tokens = min(_MAX_OUTPUT_TOKENS, max(8, int(_OUTPUT_TOKENS.draw(rng))))
            at_s += _GAP_S.draw(rng) if turn else 0.0
            if turn == 0 or rng.random() >= _FOLLOW_SHARE:
                prompt = _prompt(content, preamble, rng, p.lengths)
                if rng.random() < _DUPLICATE_SHARE:
                    prompt = popular[popularity.draw(rng)]
            else:
                added = max(4, int(_MESSAGE_TOKENS.draw(rng)))
                turns = (prompt.tokens, prompt.tokens + output_tokens)
                prompt = content.grown(prompt, prompt.tokens + output_tokens + added, turns)
            if at_s >= _DURATION_S or prompt.tokens > _MAX_PROMPT_TOKENS:
                break
            content.send(prompt, at_s=at_s, session=name, user=name, output_tokens=output_tokens)
    return content.in_order()


def _prompt(content: Content, preamble: Prompt, rng: np.random.Generator, lengths: float) -> Prompt:
    tokens = min(_MAX_PROMPT_TOKENS, max(16, int(lengths * _PROMPT_TOKENS.draw(rng))))
    if rng.random() < _PREAMBLE_SHARE:
        return content.grown(preamble, preamble.tokens + tokens, (preamble.tokens,))
    return content.grown(Prompt(), tokens, (0,))
