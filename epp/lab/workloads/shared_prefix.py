"""Generated traffic with a set share of every prompt common to a group of requests.

Owns: the parameters and the generator. Pure: one numpy Generator from the given seed.

Shape: Poisson arrivals; each request belongs to one of a few groups (Zipf), and the first part of its prompt
is the group's. The share of the prompt that is common is the one knob, as in Lodestar's evaluation (10-70 %),
and may change in the middle of the run: a drift from 5 to 50 % is what a learned or tuned policy has to
follow. Groups may be replaced at a set pace, so that what is hot changes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from epp.lab.compare.trace import TraceRequest, in_time_order
from epp.lab.workloads.art_chat import Lognormal
from epp.lab.workloads.content import Content, Prompt

_Z95 = 1.6449


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """Parameters.

    Attributes:
        duration_s: requests are sent within it.
        rate_rps: mean request rate.
        share: part of each prompt that its group shares.
        later_share: the same from ``drift_at`` on; None for no drift.
        drift_at: when it changes, as a part of the duration.
        groups: groups at a time.
        zipf: exponent of how requests fall on groups.
        group_life_s: mean time after which a group is replaced by a new one, 0 for never.
        prompt_tokens: length of a prompt.
        max_prompt_tokens: longer prompts are drawn again.
        output_tokens: answer length.
        block_tokens: block size of the ids.
    """

    duration_s: float = 1800.0
    rate_rps: float = 4.0
    share: float = 0.3
    later_share: float | None = None
    drift_at: float = 0.5
    groups: int = 24
    zipf: float = 1.0
    group_life_s: float = 0.0
    prompt_tokens: Lognormal = Lognormal(4_500.0, 14_000.0, _Z95)  # noqa: RUF009 - frozen
    max_prompt_tokens: int = 24_000
    output_tokens: Lognormal = Lognormal(140.0, 420.0, _Z95)  # noqa: RUF009 - frozen
    block_tokens: int = 64

    def busier(self, factor: float) -> SharedPrefix:
        """The same traffic, so many times as much of it."""
        return replace(self, rate_rps=self.rate_rps * factor)


def generate(parameters: SharedPrefix, seed: int) -> tuple[TraceRequest, ...]:
    """The load for a seed, in time order; equal arguments give equal bytes.

    Raises:
        ValueError: a share is not in [0, 1).
    """
    p, rng = parameters, np.random.default_rng(seed)
    for share in (p.share, p.share if p.later_share is None else p.later_share):
        if not 0.0 <= share < 1.0:
            raise ValueError(f"a shared part must be in [0, 1): {share}")
    content = Content(p.block_tokens)
    bounds = np.cumsum(1.0 / np.arange(1, p.groups + 1) ** p.zipf)
    prefixes: dict[tuple[int, int], Prompt] = {}
    phases = rng.random(p.groups)
    requests: list[TraceRequest] = []
    count = int(rng.poisson(p.rate_rps * p.duration_s))
    for number, at_s in enumerate(np.sort(rng.uniform(0.0, p.duration_s, size=count))):
        late = p.later_share is not None and at_s >= p.drift_at * p.duration_s
        share = p.later_share if late and p.later_share is not None else p.share
        group = int(np.searchsorted(bounds, rng.random() * bounds[-1]))
        life = int(at_s / p.group_life_s + phases[group]) if p.group_life_s else 0
        tokens = p.prompt_tokens.draw(rng)
        while not 16 <= tokens <= p.max_prompt_tokens:
            tokens = p.prompt_tokens.draw(rng)
        # Of a group's content, as long as any prompt, each request takes its share in whole blocks.
        key = (group, life)
        if key not in prefixes:
            prefixes[key] = content.fresh(p.max_prompt_tokens)
        kept = round(share * tokens / p.block_tokens)
        start = kept * p.block_tokens
        prompt = Prompt(prefixes[key].ids[:kept], start, (start,) if kept else (0,))
        prompt = content.grown(prompt, max(int(tokens), start + 1))
        output_tokens = max(8, min(1_024, int(p.output_tokens.draw(rng))))
        name = f"p{number}"
        requests.append(
            content.request(
                prompt, at_s=float(at_s), session=name, user=f"g{group}.{life}", output_tokens=output_tokens
            )
        )
    return in_time_order(requests)
