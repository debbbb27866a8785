"""One simulated replica: its engine, its connections, its lives.

Owns what is under way there. Must not know picker or client: whoever sends gives callbacks. A replica that
dies takes its engine with it; one that revives has a new one, cold, and a new start time.
"""

from __future__ import annotations

from dataclasses import fields
from math import inf
from typing import TYPE_CHECKING, Protocol

from epp.lab.sim.engine import Engine
from epp.lab.sim.job import Counters, Finished, FirstToken
from epp.lab.sim.loop import Rank
from epp.lab.sim.network import Connections
from epp.signals.metrics_text import EngineSample

if TYPE_CHECKING:
    from epp.lab.sim.job import EngineState, Job
    from epp.lab.sim.loop import Loop
    from epp.lab.sim.scenario import ReplicaSpec

# Process start times are Unix times; those of a window count from here.
_EPOCH_S = 1_700_000_000.0


class Listener(Protocol):
    """Who sent a job and wants to know; told at the replica's own time, before any network."""

    def on_first_token(self, event: FirstToken) -> None:
        """Its first token left the engine."""
        ...

    def on_finished(self, event: Finished) -> None:
        """Its last token left the engine."""
        ...

    def on_broken(self, problem: str) -> None:
        """Nothing (more) will come."""
        ...


class Replica:
    """A replica on the loop.

    Args:
        spec: what it is.
        block_tokens: tokens per block of the jobs' hashes.
        loop: virtual time.

    Attributes:
        changes: number of times that anything came from outside: a job, a cancellation, an event. While it
            stays the same, what was forecast of the engine comes true.
        latest: id and arrival of the job that was sent last.
    """

    def __init__(self, spec: ReplicaSpec, block_tokens: int, loop: Loop) -> None:
        self.spec, self._block_tokens, self._loop = spec, block_tokens, loop
        self.connections = Connections(spec.network)
        self.up = not spec.absent
        self.engine = Engine(spec.engine_class, block_tokens)
        self.on_wire: dict[int, tuple[float, Job]] = {}  # sent, not arrived: by job id
        self._listeners: dict[int, Listener] = {}
        self._started_s = _EPOCH_S
        self._slowdown = 1.0
        self._wake_ms = inf
        self._past = Counters()  # of its earlier lives
        self.changes = 0
        self.latest = (-1, 0.0)

    def expect(self, job: Job, arrives_ms: float, listener: Listener) -> None:
        """A job is on its way."""
        self.changes += 1
        self.latest = (job.job_id, arrives_ms)
        self.on_wire[job.job_id] = (arrives_ms, job)
        self._listeners[job.job_id] = listener
        self._loop.at(arrives_ms, Rank.REPORT, self._arrived, job.job_id)

    def abandon(self, job_id: int) -> None:
        """The sender has lost interest: the job is cancelled, and nobody is told."""
        self.changes += 1
        self.on_wire.pop(job_id, None)
        if self._listeners.pop(job_id, None) is not None and self.up:
            self.engine.cancel(job_id, self._loop.now_ms)
            self._run()

    def die(self) -> None:
        """The process is gone, and with it everything that was there or on its way."""
        if not self.up:
            return
        self.changes += 1
        self._run()
        self._past = self.counters()
        self.up = False
        self.engine = Engine(self.spec.engine_class, self._block_tokens)
        self.connections.close()
        self._wake_ms = inf
        self.on_wire.clear()
        listeners, self._listeners = self._listeners, {}
        for listener in listeners.values():
            listener.on_broken("connection reset")

    def start(self) -> None:
        """A new, cold process listens at the address."""
        if self.up:
            return
        self.changes += 1
        self.up = True
        self._started_s = _EPOCH_S + self._loop.now_ms / 1e3
        self.engine = Engine(self.spec.engine_class, self._block_tokens)
        self.engine.set_slowdown(self._slowdown, self._loop.now_ms)

    def set_slowdown(self, factor: float) -> None:
        """See `Engine.set_slowdown`; the hardware keeps it over restarts."""
        self.changes += 1
        self._slowdown = factor
        if self.up:
            self.engine.set_slowdown(factor, self._loop.now_ms)
            self._run()

    def snapshot(self) -> EngineState:
        """The engine's true state at this moment."""
        self._run()
        return self.engine.snapshot()

    def sample(self) -> EngineSample:
        """What a scrape would find at this moment."""
        snapshot = self.snapshot()
        counters = snapshot.counters
        return EngineSample(
            engine="vllm",
            running=float(snapshot.running),
            waiting=float(snapshot.arriving + snapshot.waiting),
            kv_usage=snapshot.kv_usage,
            kv_capacity_tokens=round(snapshot.capacity_tokens * self.spec.kv_report_factor),
            process_start_time_s=self._started_s,
            prompt_tokens_total=float(counters.prompt_tokens),
            generation_tokens_total=float(counters.generated_tokens),
            prefix_queries_total=float(counters.prompt_tokens),
            prefix_hits_total=float(counters.cached_tokens),
            requests_total=float(counters.done),
        )

    def counters(self) -> Counters:
        """Of all its lives."""
        now, past = self.engine.snapshot().counters, self._past
        if not self.up:
            return past
        return Counters(
            **{field.name: getattr(past, field.name) + getattr(now, field.name) for field in fields(Counters)}
        )

    def _arrived(self, job_id: int) -> None:
        found = self.on_wire.pop(job_id, None)
        if found is None:
            return  # abandoned, or lost with an earlier life
        try:
            self.engine.submit(found[1], self._loop.now_ms)
        except ValueError as error:
            self._listeners.pop(job_id).on_broken(str(error))
        self._run()

    def _wake(self, due_ms: float) -> None:
        if due_ms == self._wake_ms:  # otherwise something nearer came in between
            self._wake_ms = inf
            self._run()

    def _run(self) -> None:
        """Let the engine come up to now, tell what happened, and see when it wants to be woken."""
        if not self.up:
            return
        engine = self.engine
        for event in engine.advance(self._loop.now_ms):
            if isinstance(event, FirstToken):
                listener = self._listeners.get(event.job_id)
                if listener is not None:
                    listener.on_first_token(event)
            else:
                listener = self._listeners.pop(event.job_id, None)
                if listener is not None:
                    listener.on_finished(event)
        due_ms = engine.next_event_ms()
        if due_ms is not None and due_ms < self._wake_ms:
            self._wake_ms = due_ms
            self._loop.at(due_ms, Rank.ENGINE, self._wake, due_ms)
