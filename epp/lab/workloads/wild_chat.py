"""Generated short public chat: many strangers, few requests each, content shared between users.

Owns: the recipe of source [T], last paragraph, with the figures of its table 6.1. Pure:
all randomness comes from one numpy Generator made from the given seed.

Shape: Poisson arrivals of users who send one or two requests each. Some prompts start with a preamble that
everybody's share, some repeat a popular prompt word for word; few of a user's further requests go on from the
one before, most are new prompts: of the published tokens under 5 % are a user's own once more.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from epp.lab.compare.trace import TraceRequest, in_time_order
from epp.lab.workloads.art_chat import Lognormal
from epp.lab.workloads.content import Content, Prompt

_Z90 = 1.2816


@dataclass(frozen=True, slots=True)
class WildChat:
    """Parameters; the defaults are the published replay window: 30 minutes at 11.4 requests per second.

    Attributes:
        duration_s: requests are sent within it.
        rate_rps: mean request rate.
        requests_per_user: mean requests of a user (1.74 per address published).
        prompt_tokens: length of a prompt.
        max_prompt_tokens: longer prompts are cut.
        preamble_share: share of users whose prompts start with the common preamble.
        preamble_tokens: its length.
        follow_share: share of a user's further requests that extend the one before.
        duplicate_share: share of new prompts that repeat a popular one; set so that cross-user reuse comes to
            the published 28 % of tokens.
        popular: how many popular prompts there are; which is repeated follows Zipf's law.
        popular_tokens: their typical length.
        output_tokens: answer length (mean 329 and 312 in the published windows).
        max_output_tokens: answers are cut here.
        message_tokens: what a second request adds beside the answer.
        gap_s: pause between requests of a user.
        block_tokens: block size of the ids.
    """

    duration_s: float = 1800.0
    rate_rps: float = 11.4
    requests_per_user: float = 1.7
    prompt_tokens: Lognormal = Lognormal(380.0, 1_650.0, _Z90)  # noqa: RUF009 - frozen
    max_prompt_tokens: int = 16_000
    preamble_share: float = 0.30
    preamble_tokens: int = 300
    follow_share: float = 0.08
    duplicate_share: float = 0.21
    popular: int = 40
    popular_tokens: int = 900
    output_tokens: Lognormal = Lognormal(230.0, 700.0, _Z90)  # noqa: RUF009 - frozen
    max_output_tokens: int = 1_024
    message_tokens: Lognormal = Lognormal(40.0, 190.0, _Z90)  # noqa: RUF009 - frozen
    gap_s: Lognormal = Lognormal(20.0, 90.0, _Z90)  # noqa: RUF009 - frozen
    block_tokens: int = 64

    def busier(self, factor: float) -> WildChat:
        """The same traffic, so many times as much of it."""
        return replace(self, rate_rps=self.rate_rps * factor)


def generate(parameters: WildChat, seed: int) -> tuple[TraceRequest, ...]:
    """The load for a seed, in time order; equal arguments give equal bytes."""
    p, rng = parameters, np.random.default_rng(seed)
    content = Content(p.block_tokens)
    preamble = content.whole_blocks(p.preamble_tokens)
    popular = [_popular(p, content, rng) for _ in range(p.popular)]
    bounds = np.cumsum(1.0 / np.arange(1, p.popular + 1))
    requests: list[TraceRequest] = []
    users = int(rng.poisson(p.rate_rps * p.duration_s / p.requests_per_user))
    for user, start_s in enumerate(np.sort(rng.uniform(0.0, p.duration_s, size=users))):
        at_s = float(start_s)
        prompt = Prompt()
        for turn in range(int(rng.geometric(1.0 / p.requests_per_user))):
            output_tokens = min(p.max_output_tokens, max(8, int(p.output_tokens.draw(rng))))
            at_s += p.gap_s.draw(rng) if turn else 0.0
            if turn == 0 or rng.random() >= p.follow_share:
                prompt = _prompt(p, content, preamble, rng)
                if rng.random() < p.duplicate_share:
                    prompt = popular[int(np.searchsorted(bounds, rng.random() * bounds[-1]))]
            else:
                added = max(4, int(p.message_tokens.draw(rng)))
                turns = (prompt.tokens, prompt.tokens + output_tokens)
                prompt = content.grown(prompt, prompt.tokens + output_tokens + added, turns)
            if at_s >= p.duration_s or prompt.tokens > p.max_prompt_tokens:
                break
            name = f"w{user}"
            requests.append(
                content.request(prompt, at_s=at_s, session=name, user=name, output_tokens=output_tokens)
            )
    return in_time_order(requests)


def _prompt(p: WildChat, content: Content, preamble: Prompt, rng: np.random.Generator) -> Prompt:
    tokens = min(p.max_prompt_tokens, max(16, int(p.prompt_tokens.draw(rng))))
    if rng.random() < p.preamble_share:
        return content.grown(preamble, preamble.tokens + tokens, (preamble.tokens,))
    return content.grown(Prompt(), tokens, (0,))


def _popular(p: WildChat, content: Content, rng: np.random.Generator) -> Prompt:
    """A prompt that many send: of ordinary length, or a single one would decide a window's statistics."""
    tokens = p.prompt_tokens.draw(rng)
    while not 0.75 * p.popular_tokens <= tokens <= 1.33 * p.popular_tokens:
        tokens = p.prompt_tokens.draw(rng)
    return content.grown(Prompt(), int(tokens), (0,))
