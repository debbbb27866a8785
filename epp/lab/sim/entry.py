"""A job's place inside an engine: how far it is, and which part of the KV pool is its own.

Owns the accounting between one job and the pool. Must not know the batch, the queue or time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epp.lab.sim.checkpoints import Checkpoints
    from epp.lab.sim.job import Job
    from epp.lab.sim.kv_cache import KvCache


class Found(NamedTuple):
    """What the cache has of a prompt.

    Attributes:
        blocks: leading blocks that are present and of use.
        cached_tokens: tokens that need not be computed.
        room_tokens: room in the pool that admission would take.
    """

    blocks: int
    cached_tokens: int
    room_tokens: int


class Entry:
    """One job between submission and end.

    Attributes:
        job: what was submitted.
        path: hashes of the blocks that prompt and answer will fill, root first.
        tail: hash of the block that the prompt's end only begins, None where that is not known.
        tail_number: its place in the prompt.
        seq: order of submission.
        ready_ms: when it reaches the queue.
        waited_ms: time from there to its first admission.
        admitted: whether it is in the batch (prefilling, decoding, or leaving).
        ended: whether its end was reported.
        first_token_sent: whether its first token was reported.
        cached_tokens: prompt tokens found at first admission.
        generated: tokens generated before it joined the decode batch.
        todo: prompt tokens still to compute.
        joined_step, finish_step: the engine's decode step when it joined, and at which it is done.
        kv_tokens: its tokens in the pool, shared blocks included, as of joining the decode batch.
        blocks_held: leading blocks of ``path`` that it holds.
    """

    __slots__ = (
        "admitted",
        "blocks_held",
        "cached_tokens",
        "ended",
        "finish_step",
        "first_token_sent",
        "generated",
        "job",
        "joined_step",
        "kv_tokens",
        "path",
        "ready_ms",
        "seq",
        "tail",
        "tail_number",
        "todo",
        "waited_ms",
    )

    def __init__(self, job: Job, path: Sequence[int], seq: int, *, ready_ms: float, tail_number: int) -> None:
        self.job = job
        self.path = path
        self.tail = job.blocks[tail_number] if tail_number < len(job.blocks) else None
        self.tail_number = tail_number
        self.seq = seq
        self.ready_ms = ready_ms
        self.waited_ms = 0.0
        self.admitted = self.ended = self.first_token_sent = False
        self.cached_tokens = self.generated = self.todo = 0
        self.joined_step = self.finish_step = 0
        self.kv_tokens = self.blocks_held = 0

    @property
    def prefill_tokens(self) -> int:
        """Length of what a prefill must cover: the prompt, and after a preemption the answer so far."""
        return self.job.prompt_tokens + self.generated

    def copy(self) -> Entry:
        """An independent copy; job and path are shared, since nobody changes them."""
        twin = Entry.__new__(Entry)
        for name in Entry.__slots__:
            setattr(twin, name, getattr(self, name))
        return twin

    def find(self, kv: KvCache, checkpoints: Checkpoints | None) -> Found:
        """What the cache has. One token at least is left to compute: it yields the next one."""
        prefill_tokens = self.prefill_tokens
        if self.job.miss:
            return Found(0, 0, prefill_tokens)
        size = kv.block_tokens
        path = self.path[: prefill_tokens // size]
        blocks, idle = kv.match(path)
        credit = min(blocks * size, prefill_tokens - 1)
        if checkpoints is not None:
            # Tokens beyond the last full block are there with the checkpoint that needs them.
            limit = min(prefill_tokens - 1, blocks * size + size - 1)
            credit = checkpoints.deepest(self.block, limit)
            blocks = credit // size
            blocks, idle = kv.match(path[:blocks])
        return Found(blocks, credit, prefill_tokens - (blocks - idle) * size)

    def block(self, number: int) -> int | None:
        """Hash of a block of prompt and answer, None where it is not known."""
        if number < len(self.path):
            return self.path[number]
        return self.tail if number == self.tail_number else None

    def take_prefix(self, kv: KvCache, found: Found) -> None:
        """Hold the cached prefix."""
        kv.hold(self.path[: found.blocks])
        self.blocks_held = found.blocks
        self.kv_tokens = found.blocks * kv.block_tokens
        self.todo = self.prefill_tokens - found.cached_tokens
        if not self.first_token_sent:
            self.cached_tokens = found.cached_tokens

    def grow(self, kv: KvCache, kv_tokens: int) -> None:
        """Have room for ``kv_tokens`` in all."""
        added = kv_tokens - self.kv_tokens
        if added > 0:
            kv.make_room(added)
            kv.private_tokens += added
            self.kv_tokens = kv_tokens

    def share(self, kv: KvCache, filled_tokens: int) -> None:
        """Turn full private blocks into shared, held ones; duplicates give their room back."""
        held, full = self.blocks_held, min(filled_tokens // kv.block_tokens, len(self.path))
        if full > held:
            kv.private_tokens -= (full - held) * kv.block_tokens
            kv.hold(self.path[held:full])
            self.blocks_held = full

    def keep(self, checkpoints: Checkpoints, tokens: int, running: int) -> None:
        """Keep the state after so many tokens, where what they are is known."""
        number = (tokens - 1) // checkpoints.block_tokens
        block = self.block(number)
        if block is not None and (tokens <= self.job.prompt_tokens or number < len(self.path)):
            checkpoints.keep(block, tokens, running)

    def free(self, kv: KvCache, decoded_tokens: int) -> int:
        """Give all room back, ``decoded_tokens`` more than at joining; full blocks stay as idle ones.

        Returns the tokens whose contents were computed.
        """
        self.kv_tokens += decoded_tokens
        # The last generated token was never an input: it has a place in the pool but no contents.
        filled = self.prefill_tokens - self.todo if self.todo else self.kv_tokens - 1
        self.share(kv, filled)
        kv.private_tokens -= self.kv_tokens - self.blocks_held * kv.block_tokens
        kv.release(self.path[: self.blocks_held])
        self.kv_tokens = self.blocks_held = 0
        return filled
