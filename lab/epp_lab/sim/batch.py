"""Putting together the next prefill batch: who is admitted, and how many tokens of whose prompt.

Owns the queue, the prompts under way, and the accounting between a job and the KV pool. Must not know time or
what the GPU does. Rules: first come, first served, the head of the queue blocks those behind it; a prompt
under way goes before the queue; admission credits the cached prefix and sets aside room for a share of the
output still to come.
"""

from __future__ import annotations

from collections import deque
from copy import copy
from math import ceil
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from epp_lab.sim.engine_class import EngineClass
    from epp_lab.sim.job import Job
    from epp_lab.sim.kv_cache import Checkpoints, KvCache


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

    @property
    def _was_brought(self) -> bool:
        """Whether all of the prompt but its last token came with it: until a preemption throws it away."""
        return self.job.brought is not None and not self.first_token_sent

    def __deepcopy__(self, memo: object) -> Entry:
        """Return an independent copy; job and path are shared, since nobody changes them."""
        return copy(self)

    def find(self, kv: KvCache, checkpoints: Checkpoints | None) -> Found:
        """Return what the cache has. One token at least is left to compute: it yields the next one."""
        prefill_tokens = self.prefill_tokens
        if self.job.miss:
            return Found(0, 0, prefill_tokens)
        size = kv.block_tokens
        path = self.path[: prefill_tokens // size]
        blocks, idle = kv.match(path)
        credit = min(blocks * size, prefill_tokens - 1)
        if self._was_brought:
            credit = prefill_tokens - 1
        elif checkpoints is not None:
            # Tokens beyond the last full block are there with the checkpoint that needs them.
            limit = min(prefill_tokens - 1, blocks * size + size - 1)
            credit = checkpoints.deepest(self.block, limit)
            blocks = credit // size
            blocks, idle = kv.match(path[:blocks])
        return Found(blocks, credit, prefill_tokens - (blocks - idle) * size)

    def block(self, number: int) -> int | None:
        """Return the hash of a block of prompt and answer, None where it is not known."""
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
            brought = self.job.brought
            self.cached_tokens = found.cached_tokens if brought is None else brought

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
        """Keep the state after so many tokens, or at the last step before, where what they are is known."""
        tokens -= tokens % checkpoints.step_tokens
        number = (tokens - 1) // checkpoints.block_tokens
        block = self.block(number) if tokens else None
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


class Batcher:
    """Queue, prompts under way and the batch being computed.

    Args:
        cls: the constants.
        kv: the pool that admission takes room in.
        checkpoints: where prefixes can be taken up, None for everywhere.
        decoding: the engine's decode batch by job id, read only.
    """

    def __init__(
        self, cls: EngineClass, kv: KvCache, checkpoints: Checkpoints | None, decoding: Mapping[int, Entry]
    ) -> None:
        self._cls, self._kv, self._checkpoints, self._decoding = cls, kv, checkpoints, decoding
        self.waiting: deque[Entry] = deque()
        self.prefilling: list[Entry] = []
        self.batch: list[tuple[Entry, int]] = []  # job, tokens of its prompt

    @property
    def running(self) -> int:
        """Admitted jobs."""
        return len(self._decoding) + len(self.prefilling)

    def fill(self, budget_tokens: int, steps: int, at_ms: float) -> int:
        """Make the next batch of at most ``budget_tokens``; the tokens in it, 0 for no batch.

        Args:
            budget_tokens: most uncached tokens.
            steps: decode steps done so far, for the output that is still to come.
            at_ms: when the batch starts, for the time that the admitted have waited.
        """
        budget, owed = budget_tokens, 0
        for entry in self.prefilling:
            if budget <= 0:
                break
            budget -= self._add_chunk(entry, budget)
            owed += entry.todo - self.batch[-1][1]
        while self.waiting and budget > 0 and not owed:
            entry = self.waiting[0]
            if self.running >= self._cls.max_running or not self._admit(entry, steps):
                break
            self.waiting.popleft()
            self.prefilling.append(entry)
            if not entry.first_token_sent:
                entry.waited_ms = at_ms - entry.ready_ms
            tokens = self._add_chunk(entry, budget)
            budget -= tokens
            owed += entry.todo - tokens
        return budget_tokens - budget

    def take(self) -> list[tuple[Entry, int]]:
        """Return the batch that was computed; the next one is empty."""
        batch, self.batch = self.batch, []
        return batch

    def drop_done(self) -> None:
        """Forget the prompts that are complete or whose jobs have ended."""
        self.prefilling = [entry for entry in self.prefilling if entry.todo and not entry.ended]

    def _admit(self, entry: Entry, steps: int) -> bool:
        """Credit the cached prefix and hold it, if the pool has room for the rest; False otherwise."""
        kv = self._kv
        found = entry.find(kv, self._checkpoints)
        answer_left = entry.job.output_tokens - entry.generated
        needed = found.room_tokens + max(1, ceil(self._cls.output_reserve_ratio * answer_left))
        # With nobody else in the pool the job fits without a reserve: submit() saw to that.
        if self.running and needed > kv.capacity_tokens - kv.held_tokens - self._set_aside(steps):
            return False
        entry.take_prefix(kv, found)
        entry.admitted = True
        if self._cls.mixed:  # decodes go on between its chunks and must not take its room
            entry.grow(kv, entry.prefill_tokens)
        if self._checkpoints is not None:
            self._checkpoints.make_room(self.running + 1)
        return True

    def _set_aside(self, steps: int) -> int:
        """Return the room kept for the output still to come from admitted jobs."""
        left = sum(entry.job.output_tokens - entry.generated for entry in self.prefilling)
        for entry in self._decoding.values():
            left += entry.finish_step - steps
        return max(self.running, ceil(self._cls.output_reserve_ratio * left))

    def _add_chunk(self, entry: Entry, budget: int) -> int:
        """Schedule up to ``budget`` tokens of a prompt and give them room in the pool."""
        tokens = min(budget, entry.todo)
        entry.grow(self._kv, entry.prefill_tokens - entry.todo + tokens)
        self.batch.append((entry, tokens))
        return tokens
