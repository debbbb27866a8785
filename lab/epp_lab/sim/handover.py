"""A request whose prompt one worker computes and another answers: prefill, KV cache over a link, decode.

Follows llm-d's sidecar with vLLM's NIXL connector: the request goes to the decode worker, whose sidecar has
the prompt computed by the prefill worker; what the decode worker does not hold of it is pulled over the
network, and then the request joins its queue, where the first token comes of its next step. Where the
prefill worker is dead, dies or refuses, the decode worker does all of it.

Each worker has one interface that sends and receives at its rate, first come, first served: what waits at
either end delays a transfer. A transfer goes through both at the same time; blocks stay in the prefill
worker's cache as long as it needs no room.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Protocol

from epp_lab.sim.loop import Rank

if TYPE_CHECKING:
    from epp_lab.sim.job import Finished, FirstToken, Job
    from epp_lab.sim.loop import Loop

#: From the sidecar to the other worker, between workers of one rack.
_HOP_MS = 0.5
#: Before the first byte of a transfer: descriptors are exchanged.
_SETUP_MS = 2.0


class Interface:
    """A worker's network interface for KV caches, full duplex.

    Args:
        gbps: its rate in Gb/s; infinite for one that is never waited for.
    """

    def __init__(self, gbps: float = inf) -> None:
        self._bytes_per_ms = gbps * 1e9 / 8 / 1e3
        self._sends_until_ms = self._receives_until_ms = 0.0
        #: Seconds that transfers have taken to come in, each for itself, by the time that they begin, and
        #: how many they were.
        self.transfer_s = 0.0
        self.transfers = 0

    def send(self, to: Interface, size_bytes: float, now_ms: float) -> float:
        """Send from now on, after what waits here and there; return when all of it is there."""
        begin_ms = max(now_ms + _SETUP_MS, self._sends_until_ms)
        self._sends_until_ms = begin_ms + size_bytes / self._bytes_per_ms
        to._receives_until_ms = max(begin_ms, to._receives_until_ms) + size_bytes / to._bytes_per_ms
        there_ms = max(self._sends_until_ms, to._receives_until_ms)
        to.transfer_s += (there_ms - begin_ms) / 1e3
        to.transfers += size_bytes > 0.0
        return there_ms


class Listener(Protocol):
    """Hears from a worker what becomes of a job."""

    def on_first_token(self, event: FirstToken) -> None:
        """Hear of the first token."""

    def on_finished(self, event: Finished) -> None:
        """Hear of the last."""

    def on_broken(self, problem: str) -> None:
        """Hear that there will be none."""


class Worker(Protocol):
    """Whoever computes or answers: `epp_lab.sim.fleet.Replica`."""

    up: bool
    interface: Interface

    def announce(self, job_id: int, listener: Listener) -> None:
        """Expect a job whose time is not known; its listener hears if the worker dies before."""

    def awaits(self, job_id: int) -> bool:
        """Tell whether that job is still expected or under way."""
        ...

    def forget(self, job_id: int) -> None:
        """Expect that job no more."""

    def expect(self, job: Job, arrives_ms: float, listener: Listener) -> None:
        """Expect a job that is on its way."""

    def kv_bytes_missing(self, job: Job) -> float:
        """Return the size of those of a prompt's KV blocks that it does not hold."""
        ...


class Handover:
    """The way of one request from the sidecar of its decode worker back to that worker's engine.

    Args:
        job: as the decode worker would compute it alone.
        prefiller: who computes the prompt.
        decoder: who answers; its sidecar acts.
        flight: hears from the decode worker.
        loop: virtual time.
    """

    def __init__(self, job: Job, prefiller: Worker, decoder: Worker, flight: Listener, loop: Loop) -> None:
        self._job, self._prefiller, self._decoder = job, prefiller, decoder
        self._flight, self._loop = flight, loop
        self._cached_tokens = 0

    def start(self, arrives_ms: float) -> None:
        """Go on when the request reaches the decode worker's sidecar."""
        self._decoder.announce(self._job.job_id, self._flight)
        self._loop.at(arrives_ms, Rank.REPORT, self._prefill)

    def on_first_token(self, event: FirstToken) -> None:
        """Keep what the prefill worker had in its cache: the sidecar tells the client that."""
        self._cached_tokens = event.cached_tokens

    def on_finished(self, event: Finished) -> None:  # noqa: ARG002 - its one token is thrown away
        """Pull what the decode worker lacks."""
        if not self._decoder.awaits(self._job.job_id):
            return  # the request was lost with its decode worker
        size_bytes, now_ms = self._decoder.kv_bytes_missing(self._job), self._loop.now_ms
        there_ms = self._prefiller.interface.send(self._decoder.interface, size_bytes, now_ms + _HOP_MS)
        self._prefiller.announce(self._job.job_id, self)  # it may still die
        self._loop.at(there_ms, Rank.REPORT, self._received)

    def on_broken(self, problem: str) -> None:  # noqa: ARG002 - whatever it was, the decode worker is whole
        """Let the decode worker do all of it."""
        self._loop.at(self._loop.now_ms + _HOP_MS, Rank.REPORT, self._decode, None)

    def _prefill(self) -> None:
        if not self._decoder.awaits(self._job.job_id):
            return
        if not self._prefiller.up:
            self.on_broken("connection refused")
            return
        only_prompt = replace(self._job, output_tokens=1, answer_blocks=())
        self._prefiller.expect(only_prompt, self._loop.now_ms + _HOP_MS, self)

    def _received(self) -> None:
        if self._prefiller.awaits(self._job.job_id):
            self._prefiller.forget(self._job.job_id)
            self._decode(self._cached_tokens)

    def _decode(self, brought: int | None) -> None:
        if self._decoder.awaits(self._job.job_id):
            job = self._job if brought is None else replace(self._job, brought=brought, miss=False)
            self._decoder.expect(job, self._loop.now_ms, self._flight)
