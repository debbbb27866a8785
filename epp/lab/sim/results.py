"""What a simulated window yields: one result a request, the replicas' counters, a digest of all of it.

Values only. Times are milliseconds of virtual time; those of requests count from the start of the window.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

import xxhash

if TYPE_CHECKING:
    from collections.abc import Iterator

    from epp.lab.sim.job import Counters


@dataclass(frozen=True, slots=True)
class SimResult:
    """One request as its client saw it, and what only a simulator knows of it.

    Latencies count from the intended send time, like those of `epp.lab.compare.load.RequestResult`, whose
    fields
    of the same name mean the same.

    Attributes:
        index: position in the load: what pairs results of two runs.
        session: session of the request.
        user: user of the request.
        intended_ms: when it should have been sent.
        slip_ms: how much later it was sent: its wait for one of the client's places.
        ttft_ms: until the first token, None when none came.
        e2e_ms: until the answer ended (or failed).
        itl_ms: (E2E - TTFT) / (completion tokens - 1), None for answers of fewer than two tokens.
        error: what went wrong, ``""`` for success.
        endpoint: who served it (or failed to, last), ``""`` when nobody was picked.
        decision_id: the picker's id of its decision.
        prompt_tokens: length of the prompt.
        completion_tokens: tokens that came.
        believed_cached_tokens: what the picker expected of the endpoint it picked.
        cached_tokens: what the engine's cache gave, 0 when it never came to that.
        waited_ms: time in the engine's queue.
        network_ms: from sending to the replica's socket: distance, handshake and upload.
    """

    index: int
    session: str
    user: str
    intended_ms: float
    slip_ms: float
    ttft_ms: float | None
    e2e_ms: float
    itl_ms: float | None
    error: str
    endpoint: str
    decision_id: str
    prompt_tokens: int
    completion_tokens: int
    believed_cached_tokens: int
    cached_tokens: int
    waited_ms: float
    network_ms: float

    @property
    def ok(self) -> bool:
        """Whether the answer came whole."""
        return not self.error


@dataclass(frozen=True, slots=True)
class Sample:
    """The true state of the fleet at one moment; one value per replica, in the order of the specification.

    Attributes:
        at_ms: since the start of the window.
        running: requests in the batch.
        waiting: requests in the front end and in the queue.
        kv_held_tokens: KV tokens that running requests hold.
        picked: requests picked so far.
    """

    at_ms: float
    running: tuple[int, ...]
    waiting: tuple[int, ...]
    kv_held_tokens: tuple[int, ...]
    picked: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WindowResult:
    """One policy on one load.

    Attributes:
        policy: its name.
        seed: seed of the network, the decisions and the faults.
        requests: a result for each request sent, by index.
        endpoints: addresses, in the order of the specification.
        regions: region of each.
        counters: what each replica's engine counted; of a restarted one, all its lives together.
        duration_ms: until the last answer.
        events: steps that the loop took.
        timeline: samples, when asked for.
    """

    policy: str
    seed: int
    requests: tuple[SimResult, ...]
    endpoints: tuple[str, ...]
    regions: tuple[str, ...]
    counters: tuple[Counters, ...]
    duration_ms: float
    events: int
    timeline: tuple[Sample, ...] = ()

    def digest(self) -> str:
        """A hash of everything above: equal for equal runs, whatever machine and process they ran in."""
        state = xxhash.xxh3_128()
        for part in self._parts():
            data = part if isinstance(part, bytes) else part.encode()
            state.update(struct.pack("<q", len(data)))
            state.update(data)
        return state.hexdigest()

    def _parts(self) -> Iterator[str | bytes]:
        yield from (self.policy, str(self.seed), repr(self.endpoints), repr(self.duration_ms))
        yield from (repr(counters) for counters in self.counters)
        yield from (repr(result) for result in self.requests)
        yield from (repr(sample) for sample in self.timeline)
