"""Answers of a simulated replica under way: events as their tokens come, or the whole at the end.

One timer serves all of a replica's streams: one wake a decode step, and only while somebody follows single
tokens. What events and answers look like is the API's format's.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from epp_lab.sim.job import FirstToken

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from epp_lab.sim.engine import Engine
    from epp_lab.sim.formats import Events, Format
    from epp_lab.sim.job import Finished, Job


class Answer:
    """One answer's progress on its way to the client; it is followed token by token if it is streamed.

    Args:
        form: how it is written.
        delay_s: how long the way back to the client is.
        on_first: called once, at the first token.

    Attributes:
        streamed: whether the client asked for events, and the API has them.
    """

    def __init__(self, form: Format, *, delay_s: float, on_first: Callable[[], None]) -> None:
        self._form = form
        self.streamed = form.streams and form.asked.parsed.stream
        self._delay_s, self._on_first = delay_s, on_first
        self._clock = asyncio.get_running_loop().time
        # When it arrives, and what; None at the end.
        self._under_way: asyncio.Queue[tuple[float, bytes] | None] = asyncio.Queue()
        self._sent = 0

    async def pieces(self) -> AsyncIterator[bytes]:
        """Return a stream's pieces as they reach the client, until the answer ends; none of a whole one."""
        while (piece := await self._under_way.get()) is not None:
            due_s, data = piece
            if (left_s := due_s - self._clock()) > 0:
                await asyncio.sleep(left_s)
            yield data

    def on_first_token(self, cached_tokens: int) -> None:
        """Note what the cache gave, and send what precedes the first token."""
        self._form.cached_tokens = cached_tokens
        self._on_first()
        if self.streamed:
            self._send(self._form.begin())

    def on_tokens(self, generated: int) -> None:
        """Send the tokens that are new."""
        for number in range(self._sent, generated):
            self._send(self._form.token(number))
        self._sent = max(self._sent, generated)

    def on_end(self, end: Finished) -> None:
        """Send what is left, and the end mark."""
        if self.streamed:
            self.on_tokens(end.generated_tokens)
            self._send(self._form.end())
            if mark := self._form.end_mark:
                self._put(b"data: %b\n\n" % mark)
        self._under_way.put_nowait(None)

    def body(self) -> bytes:
        """Return the whole answer."""
        return msgspec.json.encode(self._form.whole())

    def _send(self, events: Events) -> None:
        for event in events:
            name = b"event: %b\n" % event["type"].encode() if "type" in event else b""
            self._put(b"%bdata: %b\n\n" % (name, msgspec.json.encode(event)))

    def _put(self, data: bytes) -> None:
        self._under_way.put_nowait((self._clock() + self._delay_s, data))


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
                    if answer.streamed:
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
