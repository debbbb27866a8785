"""One simulated replica: its engine, its connections, its lives.

Owns what is under way there. Must not know picker or client: whoever sends gives a `Flight`, which
hears. A replica that dies takes its engine with it; one that revives has a new one, cold, and a new start
time.
"""

from __future__ import annotations

from dataclasses import fields, replace
from math import inf
from typing import TYPE_CHECKING

from epp.lab.sim.engine import Engine
from epp.lab.sim.job import Counters, FirstToken
from epp.lab.sim.loop import Rank
from epp.lab.sim.network import Connections
from epp.signals.metrics_text import EngineSample

if TYPE_CHECKING:
    from epp.lab.sim.flight import Flight
    from epp.lab.sim.job import Job
    from epp.lab.sim.loop import Loop
    from epp.lab.sim.scenario import ReplicaSpec

# Process start times are Unix times; those of a window count from here.
_EPOCH_S = 1_700_000_000.0


class Replica:
    """A replica on the loop.

    Args:
        spec: what it is.
        block_tokens: tokens per block of the jobs' hashes.
        loop: virtual time.

    Attributes:
        network: the way there as it is now.
        changes: number of times that anything came from outside: a job, a cancellation, an event. While it
            stays the same, what was forecast of the engine comes true.
    """

    def __init__(self, spec: ReplicaSpec, block_tokens: int, loop: Loop) -> None:
        self.spec, self._block_tokens, self._loop = spec, block_tokens, loop
        self.network = spec.network
        self.connections = Connections(spec.network)
        self.up = not spec.absent
        self.engine = Engine(spec.engine_class, block_tokens)
        self.on_wire: dict[int, tuple[float, Job]] = {}  # sent, not arrived: by job id
        self._flights: dict[int, Flight] = {}
        self._started_s = _EPOCH_S
        self._slowdown = 1.0
        self._wake_ms = inf
        self._past = Counters()  # of its earlier lives
        self.changes = 0

    def expect(self, job: Job, arrives_ms: float, flight: Flight) -> None:
        """Expect a job that is on its way."""
        self.changes += 1
        self.on_wire[job.job_id] = (arrives_ms, job)
        self._flights[job.job_id] = flight
        self._loop.at(arrives_ms, Rank.REPORT, self._arrived, job.job_id)

    def die(self) -> None:
        """End the process, and with it everything that is there or on its way."""
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
        flights, self._flights = self._flights, {}
        for flight in flights.values():
            flight.on_broken("connection reset")

    def start(self) -> None:
        """Let a new, cold process listen at the address."""
        if self.up:
            return
        self.changes += 1
        self.up = True
        self._started_s = _EPOCH_S + self._loop.now_ms / 1e3
        self.engine.set_slowdown(self._slowdown, self._loop.now_ms)

    def set_slowdown(self, factor: float) -> None:
        """See `Engine.set_slowdown`; the hardware keeps it over restarts."""
        self.changes += 1
        self._slowdown = factor
        if self.up:
            self.engine.set_slowdown(factor, self._loop.now_ms)
            self._run()

    def reroute(self, factor: float) -> None:
        """Let round trips take ``factor`` times as long as the spec's, for what is sent from now on."""
        self.changes += 1
        self.network = replace(self.spec.network, rtt_ms=factor * self.spec.network.rtt_ms)
        self.connections.reroute(self.network)

    def sample(self) -> EngineSample:
        """Return what a scrape would find at this moment."""
        self._run()
        snapshot = self.engine.snapshot()
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
            return  # lost with an earlier life
        try:
            self.engine.submit(found[1], self._loop.now_ms)
        except ValueError as error:
            self._flights.pop(job_id).on_broken(str(error))
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
                flight = self._flights.get(event.job_id)
                if flight is not None:
                    flight.on_first_token(event)
            else:
                flight = self._flights.pop(event.job_id, None)
                if flight is not None:
                    flight.on_finished(event)
        due_ms = engine.next_event_ms()
        if due_ms is not None and due_ms < self._wake_ms:
            self._wake_ms = due_ms
            self._loop.at(due_ms, Rank.ENGINE, self._wake, due_ms)
