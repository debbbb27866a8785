"""A job's place inside an engine: how far it is, and which part of the KV pool is its own.

Owns the accounting between one job and the pool. Must not know the batch, the queue or time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epp.sim.job import Job
    from epp.sim.kv_cache import KvCache


class Entry:
    """One job between submission and end.

    Attributes:
        job: what was submitted.
        path: hashes of the blocks that prompt and answer will fill, root first.
        seq: order of submission.
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
        "seq",
        "todo",
    )

    def __init__(self, job: Job, path: Sequence[int], seq: int) -> None:
        self.job = job
        self.path = path
        self.seq = seq
        self.admitted = self.ended = self.first_token_sent = False
        self.cached_tokens = self.generated = self.todo = 0
        self.joined_step = self.finish_step = 0
        self.kv_tokens = self.blocks_held = 0

    @property
    def prefill_tokens(self) -> int:
        """Length of what a prefill must cover: the prompt, and after a preemption the answer so far."""
        return self.job.prompt_tokens + self.generated

    def find(self, kv: KvCache) -> tuple[int, int]:
        """Blocks that the pool already has, and the tokens of room that admission would take."""
        blocks, idle = kv.match(self.path[: self.prefill_tokens // kv.block_tokens])
        return blocks, self.prefill_tokens - (blocks - idle) * kv.block_tokens

    def take_prefix(self, kv: KvCache, blocks: int) -> None:
        """Hold the cached prefix. One token at least is left to compute: it yields the next one."""
        kv.hold(self.path[:blocks])
        self.blocks_held = blocks
        self.kv_tokens = blocks * kv.block_tokens
        credit = min(self.kv_tokens, self.prefill_tokens - 1)
        self.todo = self.prefill_tokens - credit
        if not self.first_token_sent:
            self.cached_tokens = credit

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

    def free(self, kv: KvCache, decoded_tokens: int) -> None:
        """Give all room back, ``decoded_tokens`` more than at joining; full blocks stay as idle ones."""
        self.kv_tokens += decoded_tokens
        # The last generated token was never an input: it has a place in the pool but no contents.
        self.share(kv, self.kv_tokens - 1)
        kv.private_tokens -= self.kv_tokens - self.blocks_held * kv.block_tokens
        kv.release(self.path[: self.blocks_held])
        self.kv_tokens = self.blocks_held = 0
