"""Generated short chat and questions on long documents, with the statistics of Mooncake's synthetic trace.

Its targets are published figures of the trace's 3,993 requests (source [T]): input quartiles 277, 11,587 and
23,175 tokens, 90th, 95th and 99th percentile 38,611, 48,905 and 66,456; 2,211 first blocks, so that 45 % of
the requests come back to a context; they find 98 % of their prompts there, 64 s later in the median; output
median 69, 90th percentile 389. Source [L] names its parts: ShareGPT, L-Eval and LooGLE. Pure: one numpy
Generator from the given seed.

Shape: Poisson arrivals of contexts. More than half are short chat that nobody comes back to, the others are
documents, each with a few questions. Longer prompts than the smaller engines here serve are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from epp_lab.workloads.content import Content, Quantiles, arrivals

if TYPE_CHECKING:
    from epp_lab.compare.trace import TraceRequest

#: Contexts open so long before the window, so that it begins in a steady state.
_LEAD_S = 600.0
#: Share of contexts that are short chat.
_SHORT_SHARE = 0.54
#: Mean questions on a document.
_QUESTIONS = 2.78
#: Length of a short prompt.
_SHORT_TOKENS = Quantiles(((0, 8), (0.4, 60), (0.83, 277), (1, 1_000)))
#: Length of a document.
_DOCUMENT_TOKENS = Quantiles(
    (
        (0, 1_000),
        (0.28, 11_300),
        (0.64, 22_900),
        (0.86, 38_300),
        (0.93, 48_600),
        (0.986, 66_100),
        (1, 191_000),
    )
)
#: Length of a question.
_QUESTION_TOKENS = Quantiles(((0, 20), (0.5, 250), (1, 1_000)))
#: From question to question on a document.
_GAP_S = Quantiles(((0, 1), (0.1, 5.9), (0.5, 63.6), (0.9, 293.8), (0.99, 608), (1, 900)))
#: Answer length.
_OUTPUT_TOKENS = Quantiles(((0, 2), (0.25, 20), (0.5, 69), (0.9, 389), (1, 893)))
#: Longer prompts are left out (after the division).
_MAX_PROMPT_TOKENS = 24_000
#: Block size of the ids (before the division).
_BLOCK_TOKENS = 512


@dataclass(frozen=True, slots=True)
class MooncakeMix:
    """Parameters; the defaults are the trace's own rate and length.

    Attributes:
        duration_s: requests are sent within it.
        rate_rps: mean request rate.
        divisor: all lengths are divided by it, blocks too.
    """

    duration_s: float = 1022.0
    rate_rps: float = 3.91
    divisor: int = 1


def generate(parameters: MooncakeMix, seed: int) -> tuple[TraceRequest, ...]:
    """Return the load for a seed, in time order, open loop; equal arguments give equal bytes."""
    p, rng = parameters, np.random.default_rng(seed)
    content = Content(_BLOCK_TOKENS // p.divisor)
    each = _SHORT_SHARE + (1.0 - _SHORT_SHARE) * _QUESTIONS

    def tokens_of(lengths: Quantiles) -> int:
        return max(1, round(lengths.draw(rng) / p.divisor))

    wanted = p.rate_rps * (p.duration_s + _LEAD_S) / each
    for number, start_s in enumerate(arrivals(rng, wanted, -_LEAD_S, p.duration_s)):
        at_s, short = start_s, rng.random() < _SHORT_SHARE
        document = content.fresh(tokens_of(_SHORT_TOKENS if short else _DOCUMENT_TOKENS))
        while document.tokens + _QUESTION_TOKENS.points[-1][1] / p.divisor > _MAX_PROMPT_TOKENS:
            document = content.fresh(tokens_of(_DOCUMENT_TOKENS))
        for _ in range(1 if short else int(rng.geometric(1.0 / _QUESTIONS))):
            prompt = document
            if not short:
                prompt = content.grown(
                    document, document.tokens + tokens_of(_QUESTION_TOKENS), (document.tokens,)
                )
            output_tokens = tokens_of(_OUTPUT_TOKENS)
            if 0.0 <= at_s < p.duration_s:
                content.send(
                    prompt,
                    at_s=at_s,
                    session=f"m{number}-{len(content.requests)}",
                    user=f"m{number}",
                    output_tokens=output_tokens,
                )
            at_s += _GAP_S.draw(rng)
    return content.in_order()
