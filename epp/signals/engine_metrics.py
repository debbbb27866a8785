"""What engines say of themselves, and how old it is.

Owns the last sample of each endpoint, its staleness and the detection of restarts. A value that is older than
the limit is unknown, never zero and never the last one for ever.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from epp.signals.metrics_text import NO_ADAPTERS
from epp.signals.slots import grown

if TYPE_CHECKING:
    from collections.abc import Callable

    from epp.signals.metrics_text import Adapters, EngineSample
    from epp.types import Floats

#: Rows of `EngineMetrics.block`.
RUNNING, WAITING, KV_USAGE, USED_TOKENS = range(4)
#: A process reports one start time for life; anything less than this apart is rounding.
_SAME_START_S = 1.0
#: The newest process behind an address has ended when nothing was heard of it for so long.
_GONE_S = 60.0


class EngineMetrics:
    """Samples by slot.

    Args:
        stale_after_s: age beyond which values are unknown.
    """

    def __init__(self, stale_after_s: float = 10.0) -> None:
        self._stale_after_s = stale_after_s
        self._block = np.full((4, 0), math.nan, np.float64)
        #: Time of the last sample, by slot; NaN before the first. Not to be written.
        self.updated_s: Floats = np.zeros(0, np.float64)
        #: Tokens of a KV cache's block, by slot; 0 where the engine does not tell. Not to be written.
        self.kv_block_tokens: Floats = np.zeros(0, np.float64)
        #: By slot, utilization of its busiest GPU (0..1), and when that was read.
        self._gpu: dict[int, tuple[float, float]] = {}
        self._stale_at_s = math.inf  # no sample is stale before
        self._last: dict[int, EngineSample] = {}
        self._started_s: dict[int, float] = {}
        self._heard_s: dict[int, float] = {}
        #: Called with slot, sample and time of each sample, by name.
        self.on_sample: dict[str, Callable[[int, EngineSample, float], None]] = {}
        #: Changes with every value that anybody can see.
        self.version = 0

    def resize(self, capacity: int) -> None:
        """Make room for slots below ``capacity``."""
        self._block = grown(self._block, capacity, math.nan)
        self.updated_s = grown(self.updated_s, capacity, math.nan)
        self.kv_block_tokens = grown(self.kv_block_tokens, capacity, 0.0)

    def update(self, slot: int, sample: EngineSample, now_s: float) -> bool:
        """Take a scrape.

        Returns:
            True when the engine is another process than in the sample before: it started later, or, where no
            start time is known, its token counters went back. An earlier start time is no restart while the
            newest process is heard of, because several may answer behind one address; later it is, because a
            clock that was ahead when that one started has been set.
        """
        restarted = self._is_restart(slot, sample, now_s)
        self._block[RUNNING, slot] = _known(sample.running)
        self._block[WAITING, slot] = _known(sample.waiting)
        usage = self._block[KV_USAGE, slot] = _known(sample.kv_usage)
        self._block[USED_TOKENS, slot] = usage * _known(sample.kv_capacity_tokens)
        self.updated_s[slot] = now_s
        self.kv_block_tokens[slot] = sample.kv_block_tokens or 0
        self.version += 1
        self._stale_at_s = min(self._stale_at_s, now_s + self._stale_after_s)
        self._last[slot] = sample
        for listener in self.on_sample.values():
            listener(slot, sample, now_s)
        start = sample.process_start_time_s
        if start is not None:
            self._started_s[slot] = start if restarted else max(start, self._started_s.get(slot, start))
            if start >= self._started_s[slot] - _SAME_START_S:
                self._heard_s[slot] = now_s
        return restarted

    def update_gpu(self, slot: int, utilization: float, now_s: float) -> None:
        """Take the utilization of an endpoint's busiest GPU, 0..1."""
        self._gpu[slot] = utilization, now_s

    def gpu(self, slot: int, now_s: float) -> float:
        """Return the utilization of an endpoint's busiest GPU, -1 where unknown or stale."""
        utilization, read_s = self._gpu.get(slot, (-1.0, now_s))
        return utilization if now_s - read_s <= self._stale_after_s else -1.0

    def started_s(self, slot: int) -> float:
        """Return the Unix time at which the slot's newest process started, 0 where it is not known."""
        return self._started_s.get(slot, 0.0)

    def restarted(self, slot: int, started_s: float, now_s: float) -> None:
        """Note a newer process that another picker has heard of."""
        self._started_s[slot], self._heard_s[slot] = started_s, now_s

    def adapters(self, slot: int) -> Adapters:
        """Return the LoRA adapters of the last sample."""
        sample = self._last.get(slot)
        return NO_ADAPTERS if sample is None else sample.adapters

    def forget(self, slot: int) -> None:
        """Clear the slot."""
        self._block[:, slot] = math.nan
        self.updated_s[slot] = math.nan
        self.kv_block_tokens[slot] = 0
        self.version += 1
        for store in (self._last, self._started_s, self._heard_s, self._gpu):
            store.pop(slot, None)

    def block(self, now_s: float) -> Floats:
        """Return the rows above by slot, ``[4, capacity]``, NaN where unknown or stale.

        Not to be written; valid until the next call.
        """
        if now_s > self._stale_at_s:
            fresh = now_s - self.updated_s <= self._stale_after_s  # False for NaN
            self._block[:, ~fresh] = math.nan
            self.version += 1
            left = self.updated_s[fresh]
            self._stale_at_s = float(left.min()) + self._stale_after_s if left.size else math.inf
        return self._block

    def _is_restart(self, slot: int, sample: EngineSample, now_s: float) -> bool:
        started, start = self._started_s.get(slot), sample.process_start_time_s
        if started is not None and start is not None:
            gone = now_s - self._heard_s[slot] > _GONE_S
            return start > started + _SAME_START_S or (gone and start < started - _SAME_START_S)
        before = self._last.get(slot)
        if before is None or start is not None or started is not None:
            return False
        return _went_back(before.prompt_tokens_total, sample.prompt_tokens_total) or _went_back(
            before.generation_tokens_total, sample.generation_tokens_total
        )


def _known(value: float | None) -> float:
    return math.nan if value is None else value


def _went_back(before: float | None, now: float | None) -> bool:
    return before is not None and now is not None and now < before
