"""The model of one replica: an iteration-level scheduler over a batch and a KV cache, in virtual time.

Owns the decode batch and the phase that the GPU is in. Must not know I/O, the wall clock or randomness: the
same calls give the same events. Rules, from source [G] (an SGLang replica, not mixed):

* Who is admitted, and when: see `Batcher`. What the prefix cache gives: see `KvCache` and `Checkpoints`.
* Prefill first: while a request can be admitted, or a prompt is not complete, the GPU runs prefill batches of
  at most ``chunk_tokens`` uncached tokens, and every running decode stands still. A ``mixed`` class (vLLM's
  chunked prefill) decodes one token for everybody beside each of them instead.
* Otherwise one decode step generates a token for every running request and takes ``decode_step_ms(batch)``.
* When the room set aside for output was too little, the newest request is preempted and computed again later.
* The answer's blocks enter the cache when the request ends.

Decode steps between two changes of the batch are one event, computed in closed form: cost is per change of
the batch, not per token. Whoever wants single tokens asks `next_token_ms` and `generated`.
"""

from __future__ import annotations

import heapq
from copy import deepcopy
from math import ceil, inf
from typing import TYPE_CHECKING, Final

from epp_lab.sim.batch import Batcher, Entry
from epp_lab.sim.job import Counters, EngineEvent, EngineState, Finished, FirstToken, Job
from epp_lab.sim.kv_cache import Checkpoints, KvCache

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epp_lab.sim.engine_class import EngineClass
    from epp_lab.sim.kv_cache import Tell

_IDLE: Final = 0
_PREFILL: Final = 1
_DECODE: Final = 2


class DecodeRun:
    """Decode steps of one length in closed form: so many planned, so many done.

    Division rounds: a boundary must be the one that multiplication, which moves time, agrees with, so every
    question is answered by multiplication in the end.
    """

    def __init__(self, start_ms: float, step_ms: float) -> None:
        self.start_ms, self.step_ms = start_ms, step_ms
        self.planned = self.done = 0

    @property
    def end_ms(self) -> float:
        """End of the last planned step."""
        return self.start_ms + self.planned * self.step_ms

    @property
    def next_ms(self) -> float:
        """End of the step under way."""
        return self.start_ms + (self.done + 1) * self.step_ms

    def steps_until(self, at_ms: float) -> int:
        """Return the steps whose end is the first boundary at or after ``at_ms``."""
        start_ms, step_ms = self.start_ms, self.step_ms
        steps = max(0, ceil((at_ms - start_ms) / step_ms))
        while steps > 0 and start_ms + (steps - 1) * step_ms >= at_ms:
            steps -= 1
        while start_ms + steps * step_ms < at_ms:
            steps += 1
        return steps

    def take(self, now_ms: float) -> int:
        """Return the planned steps that have ended by ``now_ms`` since the last call."""
        if now_ms >= self.end_ms:
            ended = self.planned
        else:
            ended = self.steps_until(now_ms)
            if self.start_ms + ended * self.step_ms > now_ms:
                ended -= 1
            ended = min(ended, self.planned)
        new = max(0, ended - self.done)
        self.done += new
        return new


class Engine:
    """One replica. Times are milliseconds on a clock that the caller moves forward.

    Args:
        cls: the constants.
        block_tokens: tokens per hashed block of every job's ``blocks``.
    """

    def __init__(self, cls: EngineClass, block_tokens: int = 16) -> None:
        self.cls = cls
        self._kv = KvCache(cls.kv_capacity_tokens, block_tokens)
        self._now_ms = 0.0
        self._slowdown = 1.0
        self._entries: dict[int, Entry] = {}
        self._arriving: list[tuple[float, int, Entry]] = []
        self._decoding: dict[int, Entry] = {}
        slots = cls.state_slots
        step_tokens = block_tokens if cls.states_at_blocks else 1
        self._checkpoints = None if slots is None else Checkpoints(slots, block_tokens, step_tokens)
        self._batcher = Batcher(cls, self._kv, self._checkpoints, self._decoding)
        self._leaving: list[Entry] = []  # cancelled while the GPU works on them; they go at its next boundary
        self._finish_order: list[tuple[int, int, Entry]] = []  # finish step, order of joining, job
        self._events: list[EngineEvent] = []
        self._phase = _IDLE
        self._phase_start_ms = 0.0
        self._phase_end_ms = inf
        self._run = DecodeRun(0.0, 1.0)  # the one under way, or the last one
        self._steps = 0  # decode steps since the start
        self._joins = 0
        self._count = Counters()

    # What callers do

    def submit(self, job: Job, now_ms: float) -> None:
        """Hand over a job; it reaches the queue after the front end's delay.

        Raises:
            ValueError: the job can never fit.
        """
        limit = min(self.cls.context_tokens, self.cls.kv_capacity_tokens)
        if job.prompt_tokens < 1 or job.output_tokens < 1 or job.prompt_tokens + job.output_tokens > limit:
            raise ValueError(
                f"job {job.job_id}: {job.prompt_tokens} prompt and {job.output_tokens} output tokens do not "
                f"fit a replica with room for {limit}"
            )
        self._run_until(now_ms)
        full = job.prompt_tokens // self._kv.block_tokens
        path: Sequence[int] = [*job.blocks[:full], *job.answer_blocks] if self.cls.prefix_cache else ()
        ready_ms = now_ms + self.cls.arrival_delay_ms(job.prompt_tokens)
        entry = Entry(job, path, self._count.submitted, ready_ms=ready_ms, tail_number=full)
        self._count.submitted += 1
        self._entries[job.job_id] = entry
        heapq.heappush(self._arriving, (ready_ms, entry.seq, entry))
        if self._phase == _DECODE:
            self._plan_run_end()

    def advance(self, now_ms: float) -> list[EngineEvent]:
        """Let time pass up to ``now_ms`` and return what happened, in order of time."""
        self._run_until(now_ms)
        events, self._events = self._events, []
        return events

    def cancel(self, job_id: int, now_ms: float) -> bool:
        """End a job early; False if it is not here (any more).

        Its `Finished` event carries ``now_ms``. What the GPU is computing at that moment runs on to its next
        boundary, and only then is the job's room free.
        """
        self._run_until(now_ms)
        entry = self._entries.get(job_id)
        if entry is None:
            return False
        entry.generated = self.generated(job_id)
        self._end(entry, now_ms)
        self._count.cancelled += 1
        if entry.admitted:
            self._leaving.append(entry)
            if self._phase == _DECODE:
                self._break_run(now_ms)
        else:
            entry.path = ()
            if entry in self._batcher.waiting:
                self._batcher.waiting.remove(entry)
            else:
                self._arriving = [item for item in self._arriving if item[2] is not entry]
                heapq.heapify(self._arriving)
        return True

    def set_slowdown(self, factor: float, now_ms: float) -> None:
        """Stretch all GPU work from the next boundary on by ``factor`` (1 is the class's own speed)."""
        self._run_until(now_ms)
        self._slowdown = factor
        if self._phase == _DECODE:
            self._break_run(now_ms)

    def tell_changes(self, tell: Tell) -> None:
        """Tell of each change of the cache from now on."""
        self._kv.tell = tell
        if self._checkpoints is not None:
            self._checkpoints.tell = tell

    def clear_cache(self, now_ms: float) -> None:
        """Forget what no job holds."""
        self._run_until(now_ms)
        if self._checkpoints is not None:
            self._checkpoints.clear()
        self._kv.clear()

    # What callers ask

    def next_event_ms(self) -> float | None:
        """Return when the batch changes next by itself; None when nothing is under way."""
        if self._events:
            return self._now_ms
        if self._phase != _IDLE:
            return max(self._phase_end_ms, self._now_ms)  # a run that is broken off may have ended before
        return max(self._arriving[0][0], self._now_ms) if self._arriving else None

    def next_token_ms(self) -> float | None:
        """Return when the next token can appear: the next decode step's end, or the next event."""
        if self._phase == _DECODE and not self._events:
            return max(min(self._run.next_ms, self._phase_end_ms), self._now_ms)
        return self.next_event_ms()

    def generated(self, job_id: int) -> int:
        """Return the tokens that a job has generated up to the last call that moved time."""
        entry = self._entries[job_id]
        if job_id in self._decoding:
            return entry.generated + self._steps - entry.joined_step
        return entry.generated

    def missing_tokens(self, job: Job) -> int:
        """Return the tokens of a prompt that are not in the cache, as of the last call that moved time."""
        present = self._kv.match(job.blocks[: job.prompt_tokens // self._kv.block_tokens])[0]
        return job.prompt_tokens - present * self._kv.block_tokens

    def snapshot(self) -> EngineState:
        """Return gauges and counters as of the last call that moved time."""
        kv = self._kv
        return EngineState(
            arriving=len(self._arriving),
            waiting=len(self._batcher.waiting),
            running=self._batcher.running,
            held_tokens=kv.held_tokens,
            idle_tokens=kv.idle_tokens,
            capacity_tokens=kv.capacity_tokens,
            counters=self._count.copy(),
        )

    # Time

    def _run_until(self, now_ms: float) -> None:
        if now_ms < self._now_ms:
            raise ValueError(f"time does not run backwards: {now_ms} after {self._now_ms}")
        while True:
            if self._phase == _IDLE:
                if not self._arriving or self._arriving[0][0] > now_ms:
                    break
                self._begin(max(self._arriving[0][0], self._now_ms))
            elif self._phase_end_ms <= now_ms:
                end_ms = self._phase_end_ms
                self._finish_phase(end_ms)
                self._begin(end_ms)
            else:
                break
        if self._phase == _DECODE:
            self._step(self._run.take(now_ms))
        self._now_ms = now_ms

    def _begin(self, at_ms: float) -> None:
        """Decide what the GPU does from a boundary on."""
        cls, batcher = self.cls, self._batcher
        while self._arriving and self._arriving[0][0] <= at_ms:
            batcher.waiting.append(heapq.heappop(self._arriving)[2])
        self._phase_start_ms = at_ms
        tokens = beside = 0
        if batcher.waiting or batcher.prefilling:
            if cls.mixed and self._decoding:
                self._preempt_for_one_step()
                beside = len(self._decoding)
            tokens = batcher.fill(cls.chunk_tokens - beside, self._steps, at_ms)
        if tokens:
            self._phase = _PREFILL
            self._phase_end_ms = at_ms + cls.prefill_step_ms(beside, tokens) * self._slowdown
        elif self._decoding:
            self._preempt_for_one_step()
            self._phase = _DECODE
            self._run = DecodeRun(at_ms, cls.decode_step_ms(len(self._decoding)) * self._slowdown)
            self._plan_run_end()
        else:
            self._phase = _IDLE
            self._phase_end_ms = inf

    def _finish_phase(self, end_ms: float) -> None:
        if self._phase == _PREFILL:
            if self.cls.mixed and self._decoding:
                self._step(1)
            for entry, tokens in self._batcher.take():
                self._prefilled(entry, tokens, end_ms)
            self._batcher.drop_done()
        else:
            self._step(self._run.take(end_ms))
        if self._leaving:
            for entry in self._leaving:
                self._free(entry)
            self._leaving.clear()
        order = self._finish_order
        while order and order[0][0] <= self._steps:
            entry = heapq.heappop(order)[2]
            if self._in_order(entry, self._steps):
                entry.generated = entry.job.output_tokens
                self._end(entry, end_ms)
                self._count.done += 1
                self._free(entry)
        self._count.busy_ms += end_ms - self._phase_start_ms

    # Prefill

    def _prefilled(self, entry: Entry, tokens: int, at_ms: float) -> None:
        """Share the blocks of a chunk that is computed; the last one of a prompt yields a token."""
        entry.todo -= tokens
        if entry.ended:
            return
        filled = entry.prefill_tokens - entry.todo
        entry.share(self._kv, filled)
        if self._checkpoints is not None:
            entry.keep(self._checkpoints, filled, self._batcher.running)
        if entry.todo:
            return
        entry.generated += 1
        entry.grow(self._kv, entry.kv_tokens + 1)
        self._count.generated_tokens += 1
        if not entry.first_token_sent:
            entry.first_token_sent = True
            self._count.prompt_tokens += entry.job.prompt_tokens
            self._count.cached_tokens += entry.cached_tokens
            self._events.append(FirstToken(entry.job.job_id, at_ms, entry.cached_tokens, entry.waited_ms))
        entry.joined_step = self._steps
        entry.finish_step = self._steps + entry.job.output_tokens - entry.generated
        self._decoding[entry.job.job_id] = entry
        self._joins += 1
        heapq.heappush(self._finish_order, (entry.finish_step, self._joins, entry))

    # Decode

    def _plan_run_end(self) -> None:
        """Let the decode run last until a job finishes, the pool is full, or someone can be admitted."""
        kv, batch = self._kv, len(self._decoding)
        order = self._finish_order
        while not self._in_order(order[0][2], order[0][0]):
            heapq.heappop(order)
        run = self._run
        left = min(order[0][0] - self._steps, (kv.capacity_tokens - kv.held_tokens) // batch)
        steps = run.done + left
        if self._arriving and not self._batcher.waiting and batch < self.cls.max_running:
            steps = min(steps, run.steps_until(self._arriving[0][0]))
        run.planned = max(steps, run.done)
        self._phase_end_ms = run.end_ms

    def _in_order(self, entry: Entry, finish_step: int) -> bool:
        """Tell whether a place in the order of finishing still stands; leaving and preemption void it."""
        return self._decoding.get(entry.job.job_id) is entry and entry.finish_step == finish_step

    def _break_run(self, now_ms: float) -> None:
        """End the decode run at the next boundary."""
        run = self._run
        run.planned = min(run.planned, max(run.done, run.steps_until(now_ms)))
        self._phase_end_ms = run.end_ms

    def _step(self, new: int) -> None:
        """Account for so many decode steps of the whole batch that have ended."""
        tokens = new * len(self._decoding)
        self._steps += new
        self._kv.private_tokens += tokens
        self._kv.make_room()
        # Jobs cancelled meanwhile have left already; the GPU computes them to the boundary.
        leaving = sum(entry.job.job_id in self._decoding for entry in self._leaving)
        self._count.generated_tokens += tokens - new * leaving

    def _preempt_for_one_step(self) -> None:
        """Send the newest jobs back to the queue's head until every other one can grow by a token."""
        kv = self._kv
        # Beside a mixed step a prompt may end and take a place too.
        others = len(self._batcher.prefilling) if self.cls.mixed else 0
        while kv.capacity_tokens - kv.held_tokens < len(self._decoding) + others:
            job_id, entry = next(reversed(self._decoding.items()))
            entry.generated = self.generated(job_id)
            self._free(entry)
            entry.admitted = False
            self._batcher.waiting.appendleft(entry)
            self._count.preemptions += 1

    # The end of a job

    def _end(self, entry: Entry, at_ms: float) -> None:
        """Report the end of a job, once."""
        entry.ended = True
        del self._entries[entry.job.job_id]
        self._events.append(Finished(entry.job.job_id, at_ms, entry.generated))

    def _free(self, entry: Entry) -> None:
        """Take a job out of the batch and give its room back."""
        decoded = 0
        if self._decoding.get(entry.job.job_id) is entry:
            del self._decoding[entry.job.job_id]
            decoded = self._steps - entry.joined_step
        filled = entry.free(self._kv, decoded)
        if self._checkpoints is not None and not entry.todo:
            entry.keep(self._checkpoints, filled, self._batcher.running)

    def fork(self) -> Engine:
        """Return an independent engine in the same state, to try out what would happen; events start anew."""
        return deepcopy(self, {id(self.cls): self.cls, id(self._events): []})
