"""What workloads are made of: prompts as block ids, and draws of lengths, times and who is asked.

Owns which ids are in use, and how prompts grow by fresh content or by content that exists already. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from epp_lab.compare.trace import TraceRequest, in_time_order

if TYPE_CHECKING:
    from numpy.random import Generator

Z75, Z90, Z95 = 0.6745, 1.2816, 1.6449  # normal quantiles


@dataclass(frozen=True, slots=True)
class Lognormal:
    """A lognormal given by its median and a higher quantile (standard normal ``z`` of that quantile)."""

    p50: float
    high: float
    z: float

    def draw(self, rng: Generator) -> float:
        """Return one value."""
        sigma = np.log(self.high / self.p50) / self.z
        return float(self.p50 * np.exp(sigma * rng.standard_normal()))

    def draw_between(self, rng: Generator, low: float, high: float) -> float:
        """Return the first value of those drawn that is within the bounds."""
        value = self.draw(rng)
        while not low <= value <= high:
            value = self.draw(rng)
        return value


@dataclass(frozen=True, slots=True)
class Quantiles:
    """A distribution by (share below, value) points, log-linear in between.

    Attributes:
        points: ascending in both, from share 0 to share 1.
    """

    points: tuple[tuple[float, float], ...]

    def draw(self, rng: Generator) -> float:
        """Return one value."""
        shares, values = zip(*self.points, strict=True)
        return float(np.exp(np.interp(rng.random(), shares, np.log(values))))


class Zipf:
    """Numbers from 0 on of which each is drawn less often than the one before it."""

    def __init__(self, count: int, exponent: float = 1.0) -> None:
        self.weights = 1.0 / np.arange(1, count + 1) ** exponent
        self._bounds = np.cumsum(self.weights)

    def draw(self, rng: Generator) -> int:
        """Return one number."""
        return int(np.searchsorted(self._bounds, rng.random() * self._bounds[-1]))


def arrivals(rng: Generator, mean: float, start_s: float, end_s: float) -> list[float]:
    """Return the times of a Poisson process that has ``mean`` of them within the bounds, in order."""
    times_s: list[float] = np.sort(rng.uniform(start_s, end_s, size=int(rng.poisson(mean)))).tolist()
    return times_s


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt under construction.

    Attributes:
        ids: prefix-cumulative block ids; the last block may be partial.
        tokens: its length.
        turns: offsets at which messages start (see `TraceRequest.turn_starts`).
    """

    ids: tuple[int, ...] = ()
    tokens: int = 0
    turns: tuple[int, ...] = ()


@dataclass(slots=True)
class Content:
    """Gives out block ids, each once, and collects what is sent; equal ids mean equal content.

    Attributes:
        block_tokens: tokens per block.
        next_id: the next block's.
        requests: what was sent, in the order of the calls.
    """

    block_tokens: int
    next_id: int = 0
    requests: list[TraceRequest] = field(default_factory=list)

    def fresh(self, tokens: int) -> Prompt:
        """Return a prompt that shares nothing with any other."""
        return self.grown(Prompt(), tokens)

    def whole_blocks(self, tokens: float) -> Prompt:
        """Return a fresh prompt of whole blocks, so that what follows it shares no block with it."""
        return self.fresh(max(1, round(tokens / self.block_tokens)) * self.block_tokens)

    def grown(self, prompt: Prompt, tokens: int, turns: tuple[int, ...] = ()) -> Prompt:
        """Return the prompt with fresh content appended up to a length; a partial last block goes on."""
        missing = max(0, -(-tokens // self.block_tokens) - len(prompt.ids))
        ids = prompt.ids + tuple(range(self.next_id, self.next_id + missing))
        self.next_id += missing
        return Prompt(ids, max(tokens, prompt.tokens), prompt.turns + turns)

    def cut(self, prompt: Prompt, blocks: int) -> Prompt:
        """Return the first blocks of a prompt, and the messages that start in them."""
        tokens = blocks * self.block_tokens
        return Prompt(prompt.ids[:blocks], tokens, tuple(turn for turn in prompt.turns if turn < tokens))

    def send(
        self,
        prompt: Prompt,
        *,
        at_s: float,
        session: str,
        user: str,
        output_tokens: int,
        max_output_tokens: int | None = None,
        after: int | None = None,
        think_s: float = 0.0,
    ) -> int:
        """Send the prompt as a request, times rounded to microseconds; its position among `requests`."""
        request = TraceRequest(
            at_ms=round(at_s * 1000.0, 3),
            session=session,
            user=user,
            prompt_tokens=prompt.tokens,
            output_tokens=output_tokens,
            max_output_tokens=max_output_tokens,
            block_ids=prompt.ids,
            block_tokens=self.block_tokens,
            after=after,
            think_ms=round(think_s * 1000.0, 3),
            turn_starts=prompt.turns,
        )
        self.requests.append(request)
        return len(self.requests) - 1

    def in_order(self) -> tuple[TraceRequest, ...]:
        """Return what was sent, in time order."""
        return in_time_order(self.requests)
