"""Prompts as content: an allocator of block ids and what is built from them.

Owns: which ids are in use, and how prompts grow by fresh content or by content that exists already. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from epp.lab.compare.trace import TraceRequest


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
    """Gives out block ids, each once; equal ids mean equal content.

    Attributes:
        block_tokens: tokens per block.
    """

    block_tokens: int = 64
    _next_id: int = field(default=0, init=False)

    def fresh(self, tokens: int) -> Prompt:
        """A prompt that shares nothing with any other."""
        return self.grown(Prompt(), tokens)

    def whole_blocks(self, tokens: int) -> Prompt:
        """A fresh prompt of whole blocks (at least one), so that what follows it shares no block with it."""
        return self.fresh(max(1, round(tokens / self.block_tokens)) * self.block_tokens)

    def grown(self, prompt: Prompt, tokens: int, turns: tuple[int, ...] = ()) -> Prompt:
        """The prompt with fresh content appended up to a length; a partial last block goes on."""
        missing = max(0, -(-tokens // self.block_tokens) - len(prompt.ids))
        ids = prompt.ids + tuple(range(self._next_id, self._next_id + missing))
        self._next_id += missing
        return Prompt(ids, max(tokens, prompt.tokens), prompt.turns + turns)

    def request(
        self,
        prompt: Prompt,
        *,
        at_s: float,
        session: str,
        user: str,
        output_tokens: int,
        after: int | None = None,
        think_s: float = 0.0,
    ) -> TraceRequest:
        """The prompt as a request; times are rounded to microseconds."""
        return TraceRequest(
            at_ms=round(at_s * 1000.0, 3),
            session=session,
            user=user,
            prompt_tokens=prompt.tokens,
            output_tokens=output_tokens,
            block_ids=prompt.ids,
            block_tokens=self.block_tokens,
            after=after,
            think_ms=round(think_s * 1000.0, 3),
            turn_starts=prompt.turns,
        )
