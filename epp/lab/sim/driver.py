"""An engine model in real time: one timer for all of a replica's streams, one delay line for its distance.

There is no task and no timer per token: one wake per decode step serves every stream, and only while somebody
follows single tokens.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from epp.lab.sim.job import FirstToken

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from epp.lab.sim.answers import Answer
    from epp.lab.sim.engine import Engine
    from epp.lab.sim.job import Job


class DelayLine:
    """Runs actions a fixed time later, in order, on one timer."""

    def __init__(self, loop: asyncio.AbstractEventLoop, delay_s: float) -> None:
        self._loop = loop
        self._delay_s = delay_s
        self._pending: deque[tuple[float, Callable[[], object]]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def run_later(self, action: Callable[[], object]) -> None:
        """Run ``action`` when the delay has passed; at once when there is none."""
        if self._delay_s <= 0:
            action()
            return
        self._pending.append((self._loop.time() + self._delay_s, action))
        if self._timer is None:
            self._timer = self._loop.call_at(self._pending[0][0], self._run_due)

    def close(self) -> None:
        """Forget what is under way."""
        self._pending.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _run_due(self) -> None:
        # The loop may wake a tick of its clock early; waiting for the rest would cost a second wake.
        now_s = self._loop.time() + 0.0005
        self._timer = None
        while self._pending and self._pending[0][0] <= now_s:
            self._pending.popleft()[1]()
        if self._pending and self._timer is None:
            self._timer = self._loop.call_at(self._pending[0][0], self._run_due)


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
