"""KV caches on their way from those who prefill to those who decode: what waits at either end of a link.

Owns the tokens that decisions have put on links and that have not arrived, by slot, and what a token takes:
as configured, until the engines of the fleet tell how long their transfers took.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from epp.signals.slots import grown
from epp.types import BACKLOG_MS, KV_BYTES_PER_TOKEN, LINK_GBPS, TOKEN_MS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epp.signals.metrics_text import EngineSample
    from epp.types import Floats, Slots

#: Tokens after which what was learned before counts for nothing, and the fewest that teach.
_LEARNED_OVER, _LEAST = 1e6, 1e4


def token_ms(kv_bytes_per_token: float, link_gbps: float) -> float:
    """Return the time that a token's KV cache takes on a link."""
    return kv_bytes_per_token * 8.0 / (link_gbps * 1e6)


class Links:
    """Tokens on links, by slot."""

    def __init__(self) -> None:
        #: Time of a token on any link, in ms.
        self.token_ms = token_ms(KV_BYTES_PER_TOKEN, LINK_GBPS)
        self._tokens: Floats = np.zeros(0, np.float64)
        self._open: dict[str, tuple[tuple[int, ...], float]] = {}
        #: By slot, transfers and tokens that have arrived since the engine last told of its own, and what it
        #: told: how many and their seconds, those of other pickers and of every part among them.
        self._arrived: dict[int, tuple[int, float]] = {}
        self._told: dict[int, tuple[float, float]] = {}
        self._sums = (0.0, 0.0)  # tokens and seconds, old ones fading

    def resize(self, capacity: int) -> None:
        """Make room for slots below ``capacity``."""
        self._tokens = grown(self._tokens, capacity, 0.0)

    def columns(self, slots: Slots) -> Mapping[str, Floats]:
        """Return the columns of some endpoints."""
        ms: Floats = np.full(len(slots), self.token_ms)
        return {TOKEN_MS: ms, BACKLOG_MS: ms * self._tokens[slots]}

    def reserve(self, key: str, slots: tuple[int, int], tokens: float) -> None:
        """Put tokens on the links of two endpoints."""
        self._open[key] = (slots, tokens)
        for slot in slots:
            self._tokens[slot] += tokens

    def end(self, key: str, *, arrived: bool) -> None:
        """Take what has arrived, or never will, off its links; an unknown key is fine."""
        slots, tokens = self._open.pop(key, ((), 0.0))
        for slot in slots:
            self._tokens[slot] -= tokens
        if slots and tokens and arrived:
            count, before = self._arrived.get(slots[-1], (0, 0.0))
            self._arrived[slots[-1]] = count + 1, before + tokens

    def observe(self, slot: int, sample: EngineSample, now_s: float) -> None:  # noqa: ARG002 - a listener
        """Learn from what an engine tells of its transfers: each of ours took their mean time."""
        if sample.transfer_s_total is None or sample.transfers_total is None:
            return
        told = sample.transfers_total, sample.transfer_s_total
        before, self._told[slot] = self._told.get(slot, told), told
        transfers, seconds = told[0] - before[0], told[1] - before[1]
        count, tokens = self._arrived.pop(slot, (0, 0.0))
        if transfers <= 0.0 or seconds <= 0.0 or not count:
            return
        kept = 1.0 - min(tokens / _LEARNED_OVER, 1.0)
        known_tokens, known_s = self._sums
        self._sums = kept * known_tokens + tokens, kept * known_s + seconds / transfers * count
        if self._sums[0] >= _LEAST:
            self.token_ms = self._sums[1] * 1e3 / self._sums[0]

    def forget(self, slot: int) -> None:
        """Take all off an endpoint's link."""
        for key, (slots, tokens) in self._open.items():
            self._open[key] = (tuple(one for one in slots if one != slot), tokens)
        self._tokens[slot] = 0.0
        self._told.pop(slot, None)
        self._arrived.pop(slot, None)
