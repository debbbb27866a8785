"""Hit ratios: cached tokens as engines report them, over those that the prefix index expected.

Owns the ratios, and which processes report cached tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from epp.signals.slots import grown

if TYPE_CHECKING:
    from epp.types import Floats

#: Weight left of the past after one more report: the last fifty or so count.
_FADING = 0.98
#: Tokens expected and found that a ratio starts from: one request does not make it.
_PRIOR_TOKENS = 2048.0
_MOST = 1.5


class HitRatios:
    """Hit ratios by slot."""

    def __init__(self) -> None:
        # Lists: they are read and written one by one, where an array's element costs an object.
        self._reported: list[float] = []
        self._predicted: list[float] = []
        #: By slot, 0 to 1.5; 1 before anything is known. Not to be written.
        self.hit_ratio: Floats = np.ones(0, np.float64)
        #: Slots whose processes report cached tokens, and for which API.
        self._reports: set[tuple[int, str]] = set()

    def resize(self, capacity: int) -> None:
        """Make room for slots below ``capacity``."""
        for sums in (self._reported, self._predicted):
            sums.extend([_PRIOR_TOKENS] * (capacity - len(sums)))
        self.hit_ratio = grown(self.hit_ratio, capacity, 1.0)

    def forget(self, slot: int) -> None:
        """Forget a slot's engine."""
        self._reported[slot] = self._predicted[slot] = _PRIOR_TOKENS
        self.hit_ratio[slot] = 1.0
        self._reports = {known for known in self._reports if known[0] != slot}

    def sums(self, slot: int) -> tuple[float, float]:
        """Return the tokens that a slot's ratio rests on: reported, and expected."""
        return self._reported[slot], self._predicted[slot]

    def adopt(self, slot: int, reported: float, predicted: float) -> None:
        """Take another picker's tokens in the place of its own, where those are more."""
        if predicted > self._predicted[slot]:
            self._reported[slot], self._predicted[slot] = reported, predicted
            self.hit_ratio[slot] = min(max(reported / predicted, 0.0), _MOST)

    def to_prefill(self, slot: int, prompt_tokens: int, cached_tokens: float) -> float:
        """Estimate the tokens of a prompt that the slot's engine has to prefill."""
        return max(prompt_tokens - float(self.hit_ratio[slot]) * cached_tokens, 0.0)

    def cached_or_left_out(self, slot: int, api: str, cached_tokens: int | None) -> int | None:
        """Return an answer's cached tokens, 0 where a process that reports them leaves them out."""
        if cached_tokens is not None:
            self._reports.add((slot, api))
            return cached_tokens
        return 0 if (slot, api) in self._reports else None

    def observe(self, slot: int, predicted_tokens: float, reported_tokens: float) -> None:
        """Take one answer's cached tokens; both in the same tokens. Nothing expected says nothing."""
        if predicted_tokens <= 0.0:
            return
        for sums, tokens in ((self._predicted, predicted_tokens), (self._reported, reported_tokens)):
            # What fades gives way to the prior, so that silence and small numbers end at a ratio of 1.
            sums[slot] = _PRIOR_TOKENS + (sums[slot] - _PRIOR_TOKENS) * _FADING + tokens
        self.hit_ratio[slot] = min(max(self._reported[slot] / self._predicted[slot], 0.0), _MOST)
