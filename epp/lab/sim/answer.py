"""The two ways in which an answer leaves a simulated replica: streamed token by token, or whole.

Owns one answer's progress on its connection. A stream writes its pieces straight to the transport, already
framed: no task wakes for a token.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from epp.lab.sim import sse

if TYPE_CHECKING:
    from collections.abc import Callable

    from epp.lab.sim.driver import DelayLine
    from epp.lab.sim.job import Finished


class Answer:
    """What both ways share: the words, the counts, the moments.

    Args:
        frames: the encoder.
        words: the answer, one word per token.
        finish_reason: ``stop`` or ``length``.
        prompt_tokens: for the usage.
        report_cached_tokens: whether the usage tells cached tokens.
        on_first: told once, at the first token.
    """

    follows_tokens = False

    def __init__(
        self,
        frames: sse.Frames,
        words: list[str],
        finish_reason: str,
        *,
        prompt_tokens: int,
        report_cached_tokens: bool,
        on_first: Callable[[], None],
    ) -> None:
        self.frames = frames
        self.words = words
        self.finish_reason = finish_reason
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._prompt_tokens = prompt_tokens
        self._report_cached_tokens = report_cached_tokens
        self._cached_tokens = 0
        self._on_first = on_first

    @property
    def usage(self) -> sse.Usage:
        """Token counts, right once the answer is complete."""
        cached = self._cached_tokens if self._report_cached_tokens else None
        return sse.Usage(self._prompt_tokens, len(self.words), cached)

    def on_first_token(self, cached_tokens: int) -> None:
        """Note what the cache gave."""
        self._cached_tokens = cached_tokens
        self._on_first()

    def on_tokens(self, generated: int) -> None:
        """Nothing: a whole answer has no use for single tokens."""

    def on_end(self, end: Finished) -> None:  # noqa: ARG002 - the words are known beforehand
        """The answer is complete."""
        self.finish()

    def finish(self) -> None:
        """Let whoever awaits `ended` go on."""
        if not self.ended.done():
            self.ended.set_result(None)

    def body(self) -> bytes:
        """The whole answer."""
        return self.frames.whole("".join(self.words), self.finish_reason, self.usage)


class StreamedAnswer(Answer):
    """Writes each token to the connection, the network's delay later.

    Args:
        include_usage: whether the usage chunk is sent.
        reset_after_tokens: cut the connection after so many tokens, None for never.
        line: the way back to the client.
    """

    follows_tokens = True

    def __init__(
        self,
        frames: sse.Frames,
        words: list[str],
        finish_reason: str,
        *,
        prompt_tokens: int,
        report_cached_tokens: bool,
        on_first: Callable[[], None],
        include_usage: bool,
        reset_after_tokens: int | None,
        line: DelayLine,
    ) -> None:
        super().__init__(
            frames,
            words,
            finish_reason,
            prompt_tokens=prompt_tokens,
            report_cached_tokens=report_cached_tokens,
            on_first=on_first,
        )
        self._include_usage = include_usage
        self._reset_after_tokens = reset_after_tokens
        self._line = line
        self._sent = 0
        self._transport: asyncio.Transport | None = None
        self._chunked = True
        self._early: list[bytes] = []

    def open(self, transport: asyncio.Transport, *, chunked: bool) -> None:
        """The response headers are out: what arrived before them follows."""
        self._transport = transport
        self._chunked = chunked
        for data in self._early:
            self._write(data)
        self._early.clear()

    def on_first_token(self, cached_tokens: int) -> None:
        """Send what precedes the first token."""
        super().on_first_token(cached_tokens)
        if role := self.frames.role():
            self._send(role)

    def on_tokens(self, generated: int) -> None:
        """Send the tokens that are new."""
        limit = self._reset_after_tokens
        last = len(self.words) - 1
        for index in range(self._sent, generated if limit is None else min(generated, limit)):
            self._send(self.frames.token(self.words[index], self.finish_reason if index == last else None))
        self._sent = max(self._sent, generated)
        if limit is not None and generated >= limit:
            self._line.run_later(self._reset)

    def on_end(self, end: Finished) -> None:
        """Send what is left, the usage if wanted, and the end mark."""
        self.on_tokens(end.generated_tokens)
        if self._include_usage:
            self._send(self.frames.usage(self.usage))
        self._send(sse.DONE)
        self._line.run_later(self.finish)

    def _send(self, data: bytes) -> None:
        self._line.run_later(partial(self._write, data))

    def _write(self, data: bytes) -> None:
        if self._transport is None:
            self._early.append(data)
        elif not self._transport.is_closing():
            self._transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    def _reset(self) -> None:
        if self._transport is not None:
            self._transport.abort()
