"""KV caches on their way from those who prefill to those who decode: what waits at either end of a link.

Owns the tokens that decisions have put on links and that have not arrived, by slot, and what a token takes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from epp.signals.slots import grown
from epp.types import BACKLOG_MS, TOKEN_MS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epp.types import Floats, Slots

#: Of Llama 3.1 8B in bf16: two of 8 heads of 128 numbers in each of 32 layers.
KV_BYTES_PER_TOKEN = 131_072
LINK_GBPS = 100.0


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

    def end(self, key: str) -> None:
        """Take what has arrived, or never will, off its links; an unknown key is fine."""
        slots, tokens = self._open.pop(key, ((), 0.0))
        for slot in slots:
            self._tokens[slot] -= tokens

    def forget(self, slot: int) -> None:
        """Take all off an endpoint's link."""
        for key, (slots, tokens) in self._open.items():
            self._open[key] = (tuple(one for one in slots if one != slot), tokens)
        self._tokens[slot] = 0.0
