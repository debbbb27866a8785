"""Generated traffic with a set share of every prompt common to a group of requests.

Shape: Poisson arrivals; each request belongs to one of a few groups (Zipf), and the first part of its prompt
is the group's. The share of the prompt that is common is the one knob, as in Lodestar's evaluation (10-70 %).
Groups may be replaced at a set pace, so that what is hot changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from epp_lab.workloads.content import Z95, Content, Lognormal, Prompt, Zipf, arrivals

if TYPE_CHECKING:
    from epp_lab.compare.trace import TraceRequest

#: Length of a prompt.
_PROMPT_TOKENS = Lognormal(4_500.0, 14_000.0, Z95)
#: Longer prompts are drawn again.
_MAX_PROMPT_TOKENS = 24_000
#: Answer length.
_OUTPUT_TOKENS = Lognormal(140.0, 420.0, Z95)
#: Block size of the ids.
_BLOCK_TOKENS = 64


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """Parameters.

    Attributes:
        duration_s: requests are sent within it.
        rate_rps: mean request rate.
        share: part of each prompt that its group shares.
        prefixes: groups at a time.
        zipf: exponent of how requests fall on groups.
        group_life_s: mean time after which a group is replaced by a new one, 0 for never.
    """

    duration_s: float = 1800.0
    rate_rps: float = 4.0
    share: float = 0.3
    prefixes: int = 24
    zipf: float = 1.0
    group_life_s: float = 0.0


def generate(parameters: SharedPrefix, seed: int) -> tuple[TraceRequest, ...]:
    """Return the load for a seed, in time order; equal arguments give equal bytes."""
    p, rng = parameters, np.random.default_rng(seed)
    content = Content(_BLOCK_TOKENS)
    groups = Zipf(p.prefixes, p.zipf)
    prefixes: dict[tuple[int, int], Prompt] = {}
    phases = rng.random(p.prefixes)
    for number, at_s in enumerate(arrivals(rng, p.rate_rps * p.duration_s, 0.0, p.duration_s)):
        group = groups.draw(rng)
        life = int(at_s / p.group_life_s + phases[group]) if p.group_life_s else 0
        tokens = _PROMPT_TOKENS.draw_between(rng, 16, _MAX_PROMPT_TOKENS)
        # Of a group's content, as long as any prompt, each request takes its share in whole blocks.
        key = (group, life)
        if key not in prefixes:
            prefixes[key] = content.fresh(_MAX_PROMPT_TOKENS)
        common = content.cut(prefixes[key], round(p.share * tokens / _BLOCK_TOKENS))
        prompt = content.grown(common, max(int(tokens), common.tokens + 1), (common.tokens,))
        output_tokens = max(8, min(1_024, int(_OUTPUT_TOKENS.draw(rng))))
        name = f"p{number}"
        content.send(prompt, at_s=at_s, session=name, user=f"g{group}.{life}", output_tokens=output_tokens)
    return content.in_order()
