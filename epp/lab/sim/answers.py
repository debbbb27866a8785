"""Answers of a simulated replica in the OpenAI wire formats, streamed as vLLM streams them or whole.

A streamed chat begins with a role chunk, sends one chunk per token, the last of which carries the finish
reason, then the usage chunk if asked for, then ``[DONE]``. A stream writes its chunks straight to the
transport: no task wakes for a token.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from epp.lab.sim.api import SimRequest
    from epp.lab.sim.driver import DelayLine
    from epp.lab.sim.job import Finished

_ERROR_TYPES = {400: "invalid_request_error", 404: "not_found_error", 429: "rate_limit_error"}


class Answer:
    """One answer's progress on its connection; it is followed token by token if it is streamed.

    Args:
        asked: what it answers.
        request_id: its id.
        words: the answer, one word per token.
        finish_reason: ``stop`` or ``length``.
        line: the way back to the client.
        on_first: called once, at the first token.
    """

    def __init__(
        self,
        asked: SimRequest,
        request_id: str,
        words: Sequence[str],
        finish_reason: str,
        *,
        line: DelayLine,
        on_first: Callable[[], None],
    ) -> None:
        self.finish_reason = finish_reason
        self.follows_tokens = asked.stream
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._asked, self._words, self._line, self._on_first = asked, words, line, on_first
        kind = "chat.completion" if asked.chat else "text_completion"
        chunk = ".chunk" if asked.chat and asked.stream else ""
        self._head = {
            "id": request_id,
            "object": kind + chunk,
            "created": int(time.time()),
            "model": asked.model,
        }
        self._cached_tokens = self._sent = 0
        self._transport: asyncio.Transport | None = None
        self._chunked = True
        self._early: list[bytes] = []

    def open(self, transport: asyncio.Transport, *, chunked: bool) -> None:
        """Write to the transport from now on: the response headers are out."""
        self._transport, self._chunked = transport, chunked
        for data in self._early:
            self._write(data)
        self._early.clear()

    def on_first_token(self, cached_tokens: int) -> None:
        """Note what the cache gave, and send what precedes the first token."""
        self._cached_tokens = cached_tokens
        self._on_first()
        if self._asked.stream and self._asked.chat:
            self._send({"choices": [self._choice(delta={"role": "assistant", "content": ""})]})

    def on_tokens(self, generated: int) -> None:
        """Send the tokens that are new."""
        for number in range(self._sent, generated):
            word, is_last = self._words[number], number == len(self._words) - 1
            text = {"delta": {"content": word}} if self._asked.chat else {"text": word}
            self._send({"choices": [self._choice(self.finish_reason if is_last else None, **text)]})
        self._sent = max(self._sent, generated)

    def on_end(self, end: Finished) -> None:
        """Send what is left, the usage if wanted, and the end mark."""
        if not self._asked.stream:
            self._finish()
            return
        self.on_tokens(end.generated_tokens)
        if self._asked.include_usage:
            self._send({"choices": [], "usage": self._usage()})
        self._line.run_later(partial(self._write, b"data: [DONE]\n\n"))
        self._line.run_later(self._finish)

    def body(self) -> bytes:
        """Return the whole answer."""
        text = "".join(self._words)
        said = {"message": {"role": "assistant", "content": text}} if self._asked.chat else {"text": text}
        choice = self._choice(self.finish_reason, **said)
        return msgspec.json.encode({**self._head, "choices": [choice], "usage": self._usage()})

    def _choice(self, finish_reason: str | None = None, **said: object) -> dict[str, Any]:
        return {"index": 0, **said, "logprobs": None, "finish_reason": finish_reason}

    def _usage(self) -> dict[str, Any]:
        prompt_tokens, completion_tokens = self._asked.prompt_tokens, len(self._words)
        return {
            "prompt_tokens": prompt_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
            "completion_tokens": completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self._cached_tokens},
        }

    def _send(self, chunk: dict[str, Any]) -> None:
        data = b"data: %b\n\n" % msgspec.json.encode({**self._head, **chunk})
        self._line.run_later(partial(self._write, data))

    def _write(self, data: bytes) -> None:
        if self._transport is None:
            self._early.append(data)
        elif not self._transport.is_closing():
            self._transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    def _finish(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


def error_body(status: int, message: str, param: str | None = None, code: str | None = None) -> bytes:
    """Return an error as OpenAI clients expect it."""
    kind = _ERROR_TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": param, "code": code}})
