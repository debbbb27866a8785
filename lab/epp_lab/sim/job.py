"""What goes into a replica's model and what comes out: jobs, events, a snapshot. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Job:
    """One request as an engine sees it.

    Attributes:
        job_id: unique among the jobs of one engine, for ever.
        prompt_tokens: length of the prompt, at least 1.
        output_tokens: tokens that the model will generate, at least 1.
        blocks: chained hashes of the prompt's blocks, root first. That of a last, partial block names only
            where a checkpoint can be; prefix caches without checkpoints ignore it.
        answer_blocks: hashes of the blocks that follow when the answer is appended, the first one being the
            block which the prompt's end and the answer's start share. Empty where a trace does not say.
        miss: the cache gives nothing, whatever it holds.
        brought: of a prompt whose KV cache another engine computed and sent here, how many tokens that one
            found cached; None of a prompt that is computed here.
    """

    job_id: int
    prompt_tokens: int
    output_tokens: int
    blocks: Sequence[int] = ()
    answer_blocks: Sequence[int] = ()
    miss: bool = False
    brought: int | None = None


@dataclass(frozen=True, slots=True)
class FirstToken:
    """The first token of a job left the engine.

    Attributes:
        job_id: the job.
        at_ms: virtual time.
        cached_tokens: prompt tokens found in the cache at admission.
        waited_ms: time in the queue, until it was first admitted.
    """

    job_id: int
    at_ms: float
    cached_tokens: int
    waited_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of a job, complete or cancelled: exactly one for each.

    Attributes:
        job_id: the job.
        at_ms: virtual time.
        generated_tokens: tokens that left the engine.
    """

    job_id: int
    at_ms: float
    generated_tokens: int


EngineEvent = FirstToken | Finished


@dataclass(slots=True)
class Counters:
    """What an engine counts from its start on.

    Attributes:
        submitted, done, cancelled: jobs.
        prompt_tokens, cached_tokens: of jobs that reached their first token.
        generated_tokens: tokens that left the engine.
        preemptions: times that a running job lost its place to make room in the KV pool.
        busy_ms: time in which the GPU computed.
    """

    submitted: int = 0
    done: int = 0
    cancelled: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    preemptions: int = 0
    busy_ms: float = 0.0

    def copy(self) -> Counters:
        """Return a copy; scrapes make hundreds of thousands, and `copy.copy` takes five times as long."""
        return Counters(
            self.submitted,
            self.done,
            self.cancelled,
            self.prompt_tokens,
            self.cached_tokens,
            self.generated_tokens,
            self.preemptions,
            self.busy_ms,
        )


@dataclass(frozen=True, slots=True)
class EngineState:
    """An engine's gauges at one moment, and a copy of its counters.

    Attributes:
        arriving: jobs in the front end, not yet in the queue.
        waiting: jobs in the queue.
        running: jobs admitted: prefilling or decoding.
        held_tokens: KV tokens that running jobs hold.
        idle_tokens: KV tokens kept for later prompts.
        capacity_tokens: size of the KV pool.
        counters: as of the same moment.
    """

    arriving: int
    waiting: int
    running: int
    held_tokens: int
    idle_tokens: int
    capacity_tokens: int
    counters: Counters

    @property
    def kv_usage(self) -> float:
        """Held share of the KV pool, 0 to 1, as engines report it: idle blocks count as free."""
        return self.held_tokens / self.capacity_tokens
