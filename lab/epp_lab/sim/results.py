"""What a simulated window yields: one result a request, the replicas' counters, a digest of all of it.

Values only. Times are milliseconds of virtual time; those of requests count from the start of the window.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import xxhash

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epp_lab.sim.job import Counters


@dataclass(slots=True)
class SimResult:
    """One request as its client saw it, and what only a simulator knows of it; filled in on its way.

    Latencies count from the intended send time, like those of `epp_lab.compare.load.RequestResult`, whose
    fields of the same name mean the same.

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
        endpoint: who served it (or failed to, last), ``""`` when nobody was chosen.
        decision_id: the picker's id of its decision.
        prompt_tokens: length of the prompt.
        completion_tokens: tokens that came.
        believed_cached_tokens: what the picker expected of the endpoint it chose.
        cached_tokens: what the engine's cache gave, 0 when it never came to that.
        waited_ms: time in the engine's queue.
        network_ms: from sending to the replica's socket: distance, handshake and upload.
        region: where it came from, of a fleet with regions.
        refused: peer regions that did not serve it.
        queued_ms: how long it waited in the picker's queue.
        prefilled_at: the prefill worker that was asked, ``""`` where the one that served it did all.
    """

    index: int
    session: str
    user: str
    intended_ms: float
    slip_ms: float
    ttft_ms: float | None = None
    e2e_ms: float = 0.0
    itl_ms: float | None = None
    error: str = ""
    endpoint: str = ""
    decision_id: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    believed_cached_tokens: int = 0
    cached_tokens: int = 0
    waited_ms: float = 0.0
    network_ms: float = 0.0
    region: str = field(default="", repr=False)
    refused: int = field(default=0, repr=False)
    queued_ms: float = field(default=0.0, repr=False)
    prefilled_at: str = field(default="", repr=False)

    @property
    def ok(self) -> bool:
        """Whether the answer came whole."""
        return not self.error


@dataclass(frozen=True, slots=True)
class WindowResult:
    """One policy on one load.

    Attributes:
        policy: its name.
        seed: seed of the network, the decisions and the faults.
        requests: a result for each request sent, by index.
        endpoints: addresses, in the order of the specification.
        counters: what each replica's engine counted; of a restarted one, all its lives together.
        duration_ms: until the last answer.
        messages: those that pickers sent each other, and their bytes; in no digest.
        egress: bytes of prompts and answers that left each region for another; likewise.
    """

    policy: str
    seed: int
    requests: tuple[SimResult, ...]
    endpoints: tuple[str, ...]
    counters: tuple[Counters, ...]
    duration_ms: float
    messages: tuple[int, int] = field(default=(0, 0), repr=False)
    egress: Mapping[str, float] = field(default_factory=dict, repr=False)

    def digest(self) -> str:
        """Return a hash of everything above, equal for equal runs on any machine."""
        return xxhash.xxh3_128_hexdigest(repr(self).encode())
