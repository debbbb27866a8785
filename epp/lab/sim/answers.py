"""Answers of a simulated replica in the OpenAI wire formats, streamed as vLLM streams them or whole.

A streamed chat begins with a role chunk, sends one chunk per token, the last of which carries the finish
reason, then the usage chunk if asked for, then ``[DONE]``. One timer serves all of a replica's streams: one
wake a decode step, and only while somebody follows single tokens.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import msgspec

from epp.lab.sim.job import FirstToken

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from epp.lab.sim.api import SimRequest
    from epp.lab.sim.engine import Engine
    from epp.lab.sim.job import Finished, Job

_ERROR_TYPES = {400: "invalid_request_error", 404: "not_found_error", 429: "rate_limit_error"}


class Answer:
    """One answer's progress on its way to the client; it is followed token by token if it is streamed.

    Args:
        asked: what it answers.
        request_id: its id.
        words: the answer, one word per token.
        finish_reason: ``stop`` or ``length``.
        delay_s: how long the way back to the client is.
        on_first: called once, at the first token.
    """

    def __init__(
        self,
        asked: SimRequest,
        request_id: str,
        words: Sequence[str],
        finish_reason: str,
        *,
        delay_s: float,
        on_first: Callable[[], None],
    ) -> None:
        self.follows_tokens = asked.stream
        self._asked, self._words, self._finish_reason = asked, words, finish_reason
        self._delay_s, self._on_first = delay_s, on_first
        self._clock = asyncio.get_running_loop().time
        # When it arrives, and what; None at the end.
        self._under_way: asyncio.Queue[tuple[float, bytes] | None] = asyncio.Queue()
        kind = "chat.completion" if asked.chat else "text_completion"
        chunk = ".chunk" if asked.chat and asked.stream else ""
        self._head = {
            "id": request_id,
            "object": kind + chunk,
            "created": int(time.time()),
            "model": asked.model,
        }
        self._cached_tokens = self._sent = 0

    async def pieces(self) -> AsyncIterator[bytes]:
        """Return a stream's pieces as they reach the client, until the answer ends; none of a whole one."""
        while (piece := await self._under_way.get()) is not None:
            due_s, data = piece
            if (left_s := due_s - self._clock()) > 0:
                await asyncio.sleep(left_s)
            yield data

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
            self._send({"choices": [self._choice(self._finish_reason if is_last else None, **text)]})
        self._sent = max(self._sent, generated)

    def on_end(self, end: Finished) -> None:
        """Send what is left, the usage if wanted, and the end mark."""
        if self._asked.stream:
            self.on_tokens(end.generated_tokens)
            if self._asked.include_usage:
                self._send({"choices": [], "usage": self._usage()})
            self._put(b"[DONE]")
        self._under_way.put_nowait(None)

    def body(self) -> bytes:
        """Return the whole answer."""
        text = "".join(self._words)
        said = {"message": {"role": "assistant", "content": text}} if self._asked.chat else {"text": text}
        choice = self._choice(self._finish_reason, **said)
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
        self._put(msgspec.json.encode({**self._head, **chunk}))

    def _put(self, data: bytes) -> None:
        self._under_way.put_nowait((self._clock() + self._delay_s, b"data: %b\n\n" % data))


class EngineDriver:
    """Moves an engine along the event loop's clock and tells its answers."""

    def __init__(self, engine: Engine, loop: asyncio.AbstractEventLoop) -> None:
        self.engine = engine
        self._loop = loop
        self._start_s = loop.time()
        self._answers: dict[int, Answer] = {}
        self._following: dict[int, Answer] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def now_ms(self) -> float:
        """Return the milliseconds on the engine's clock."""
        return (self._loop.time() - self._start_s) * 1000.0

    def submit(self, job: Job, answer: Answer) -> None:
        """Hand a job to the engine.

        Raises:
            ValueError: the engine refuses it (`Engine.submit`).
        """
        self.engine.submit(job, self.now_ms())
        self._answers[job.job_id] = answer
        self._arm()

    def cancel(self, job_id: int) -> None:
        """End a job early; nothing happens when it has ended. Its answer hears no more."""
        self._following.pop(job_id, None)
        if self._answers.pop(job_id, None) is not None:
            self.engine.cancel(job_id, self.now_ms())
            self._arm()

    def slow_down(self, factor: float) -> None:
        """See `Engine.set_slowdown`."""
        self.engine.set_slowdown(factor, self.now_ms())
        self._wake()

    def close(self) -> None:
        """Stop the clock; no answer is called any more."""
        self._answers.clear()
        self._following.clear()
        self._closed = True
        self._arm()

    def catch_up(self) -> None:
        """Bring the engine and its answers up to now, e.g. before reading its snapshot."""
        if not self._closed:
            self._wake()

    def _arm(self) -> None:
        due_ms = self.engine.next_token_ms() if self._following else self.engine.next_event_ms()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if due_ms is not None and not self._closed:
            self._timer = self._loop.call_at(self._start_s + due_ms / 1000.0, self._wake)

    def _wake(self) -> None:
        for event in self.engine.advance(self.now_ms()):
            job_id = event.job_id
            if isinstance(event, FirstToken):
                answer = self._answers.get(job_id)
                if answer is not None:
                    answer.on_first_token(event.cached_tokens)
                    if answer.follows_tokens:
                        self._following[job_id] = answer
            else:
                self._following.pop(job_id, None)
                answer = self._answers.pop(job_id, None)
                if answer is not None:
                    answer.on_end(event)
        generated = self.engine.generated
        for job_id, answer in list(self._following.items()):
            answer.on_tokens(generated(job_id))
        self._arm()


def error_body(status: int, message: str, param: str | None = None, code: str | None = None) -> bytes:
    """Return an error as OpenAI clients expect it."""
    kind = _ERROR_TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": param, "code": code}})
