"""Stickiness by a hash of the prompt's start modulo the number of endpoints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from epp.policies.balancing import LeastRequest
from epp.policies.base import Need, Policy
from epp.types import Ranking

if TYPE_CHECKING:
    from epp.policies.base import Weights
    from epp.types import RequestInfo, Snapshot

_WITHOUT_KEY = LeastRequest()


@dataclass(frozen=True, slots=True)
class SessionAffinityHash256(Policy):
    """The first 256 tokens, hashed, modulo the number of endpoints.

    ``cost[i] = (i - xxh3(prefix_key)) mod n``, in turns: the GORGO reference's ``simple-session-affinity``,
    the baseline that its paper compares with. Any two prompts with the same first 256 tokens share an
    endpoint - so a system prompt shared by everyone puts everyone in one place, whatever the load - and one
    endpoint more or less remaps nearly every session. Depends on the order of the endpoints.

    Differs from the original: blocks of the prompt are hashed instead of token ids (the same equality of
    prompts, up to a block), and a prompt too short for one block goes by `LeastRequest`.
    """

    name = "session-affinity-hash256"
    needs = frozenset({Need.PROMPT})

    def rank(self, request: RequestInfo, snapshot: Snapshot, weights: Weights, seed: int) -> Ranking:
        """Turns from the prefix's endpoint, or the counts of `LeastRequest` without a prefix."""
        if not request.prefix_key:
            return _WITHOUT_KEY.rank(request, snapshot, weights, seed)
        count = len(snapshot)
        home = xxhash.xxh3_64_intdigest(request.prefix_key.encode()) % count
        turns = ((np.arange(count) - home) % count).astype(np.float64)
        return Ranking(turns, {"turns": turns})
