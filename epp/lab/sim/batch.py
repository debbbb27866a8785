"""Putting together the next prefill batch: who is admitted, and how many tokens of whose prompt.

Owns the queue and the prompts under way. Must not know time or what the GPU does. Rules: first come, first
served, the head of the queue blocks those behind it; a prompt under way goes before the queue; admission
credits the cached prefix and sets aside room for a share of the output still to come.
"""

from __future__ import annotations

from collections import deque
from math import ceil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epp.lab.sim.checkpoints import Checkpoints
    from epp.lab.sim.engine_class import EngineClass
    from epp.lab.sim.entry import Entry
    from epp.lab.sim.kv_cache import KvCache


class Batcher:
    """Queue, prompts under way and the batch being computed.

    Args:
        cls: the constants.
        kv: the pool that admission takes room in.
        checkpoints: where prefixes can be taken up, None for everywhere.
        decoding: the engine's decode batch by job id, read only.
    """

    __slots__ = ("_checkpoints", "_cls", "_decoding", "_kv", "batch", "prefilling", "waiting")

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
        """The batch that was computed; the next one is empty."""
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
        """Room kept for the output still to come from admitted jobs."""
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

    def fork(
        self,
        kv: KvCache,
        checkpoints: Checkpoints | None,
        decoding: Mapping[int, Entry],
        copies: Mapping[int, Entry],
    ) -> Batcher:
        """The same state over other stores, with entries replaced by their copies (by `id`)."""
        twin = Batcher(self._cls, kv, checkpoints, decoding)
        twin.waiting.extend(copies[id(entry)] for entry in self.waiting)
        twin.prefilling = [copies[id(entry)] for entry in self.prefilling]
        twin.batch = [(copies[id(entry)], tokens) for entry, tokens in self.batch]
        return twin
